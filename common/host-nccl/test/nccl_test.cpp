// The stand-in for NCCL, with all ranks in one process. The programs of chapter 02 test the results of the collectives
// on it, recover_nccl of chapter 03 non-blocking communicators and ncclCommShrink, mistakes_test.cpp its reports.
#include <gtest/gtest.h>
#include <nccl.h>
#include <testing/says.hpp>

#include <cstdlib>
#include <functional>
#include <latch>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace nccl_test {

const int four_devices = setenv("HOST_NCCL_DEVICES", "4", 1);

#define ASSERT_NCCL_OK(call) ASSERT_EQ(call, ncclSuccess) << ncclGetLastError(nullptr)
#define EXPECT_NCCL_OK(call) EXPECT_EQ(call, ncclSuccess) << ncclGetLastError(nullptr)

// An array of int in device memory.
class Ints {
 public:
  explicit Ints(std::vector<int> values) : count_(values.size()) {
    cudaMalloc(&data_, count_ * sizeof(int));
    cudaMemcpy(data_, values.data(), count_ * sizeof(int), cudaMemcpyHostToDevice);
  }
  explicit Ints(std::size_t count) : count_(count) { cudaMalloc(&data_, count * sizeof(int)); }
  ~Ints() { cudaFree(data_); }
  Ints(const Ints&) = delete;
  Ints& operator=(const Ints&) = delete;
  void* data() const { return data_; }
  std::vector<int> get() const {
    std::vector<int> values(count_);
    cudaMemcpy(values.data(), data_, count_ * sizeof(int), cudaMemcpyDeviceToHost);
    return values;
  }

 private:
  void* data_ = nullptr;
  std::size_t count_;
};

struct Rank {
  int number, size;
  ncclComm_t comm;
  cudaStream_t stream;
};

// Runs body() for each rank, on one thread per rank.
void on_ranks(int size, const std::function<void(Rank&)>& body) {
  ASSERT_EQ(four_devices, 0);
  ncclUniqueId id{};
  ASSERT_NCCL_OK(ncclGetUniqueId(&id));
  std::vector<std::jthread> threads;
  for (int number = 0; number < size; ++number)
    threads.emplace_back([&, number] {
      cudaSetDevice(number);
      Rank rank{number, size, nullptr, nullptr};
      ASSERT_NCCL_OK(ncclCommInitRank(&rank.comm, size, id, number));
      cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking);
      body(rank);
      EXPECT_NCCL_OK(ncclCommDestroy(rank.comm));  // null after the test's own ncclCommAbort
      cudaStreamDestroy(rank.stream);
    });
}

using Values = std::vector<int>;

TEST(HostNccl, ARingInOneGroupAndAMessageToItself) {
  on_ranks(3, [](Rank& r) {
    const Ints out(Values{r.number, 7}), in(2), own(1);
    const int next = (r.number + 1) % r.size, previous = (r.number + 2) % r.size;
    ASSERT_NCCL_OK(ncclGroupStart());
    EXPECT_NCCL_OK(ncclSend(out.data(), 2, ncclInt32, next, r.comm, r.stream));
    EXPECT_NCCL_OK(ncclSend(out.data(), 1, ncclInt32, r.number, r.comm, r.stream));
    EXPECT_NCCL_OK(ncclRecv(own.data(), 1, ncclInt32, r.number, r.comm, r.stream));
    EXPECT_NCCL_OK(ncclRecv(in.data(), 2, ncclInt32, previous, r.comm, r.stream));
    ASSERT_NCCL_OK(ncclGroupEnd());
    cudaStreamSynchronize(r.stream);
    EXPECT_EQ(in.get(), (Values{previous, 7}));
    EXPECT_EQ(own.get(), Values{r.number});
  });
}

TEST(HostNccl, AnAbortEndsOperationsAndFailsTheOtherRanks) {
  std::latch issued(3);
  on_ranks(3, [&](Rank& r) {
    const Ints one(Values{1}), sum(1);
    if (r.number != 1) {
      EXPECT_NCCL_OK(ncclAllReduce(one.data(), sum.data(), 1, ncclInt32, ncclSum, r.comm, r.stream));
    }
    issued.arrive_and_wait();
    ncclResult_t code = ncclSuccess;
    while (r.number != 1 && code == ncclSuccess) ASSERT_NCCL_OK(ncclCommGetAsyncError(r.comm, &code));
    if (r.number != 1) {
      EXPECT_EQ(code, ncclRemoteError);
      EXPECT_SAYS(ncclGetLastError(nullptr), "has aborted the communicator");
      EXPECT_EQ(cudaStreamQuery(r.stream), cudaErrorNotReady);  // until this rank also aborts
    }
    EXPECT_NCCL_OK(ncclCommAbort(std::exchange(r.comm, nullptr)));
    EXPECT_EQ(cudaStreamSynchronize(r.stream), cudaSuccess);
  });
}

TEST(HostNccl, BuffersAreRegisteredAndDeregisteredOnce) {
  on_ranks(2, [](Rank& rank) {
    const auto says = [](ncclResult_t code, ncclResult_t wanted, const std::string& why) {
      EXPECT_EQ(code, wanted);
      EXPECT_SAYS(ncclGetLastError(nullptr), why);
    };
    void* memory = nullptr;
    void* handle = nullptr;
    ASSERT_NCCL_OK(ncclMemAlloc(&memory, 4000));
    ASSERT_NCCL_OK(ncclCommRegister(rank.comm, memory, 4000, &handle));
    says(ncclCommRegister(rank.comm, memory, 4000, &handle), ncclInvalidUsage, "is registered already");
    EXPECT_NCCL_OK(ncclAllReduce(memory, memory, 1000, ncclInt32, ncclMax, rank.comm, rank.stream));
    cudaStreamSynchronize(rank.stream);
    EXPECT_NCCL_OK(ncclCommDeregister(rank.comm, handle));
    says(ncclCommDeregister(rank.comm, handle), ncclInvalidArgument, "no such buffer is registered");
    std::vector<int> host(1000);
    says(ncclCommRegister(rank.comm, host.data(), 4000, &handle), ncclInvalidArgument, "ncclCommRegister: ");
    says(ncclCommRegister(rank.comm, memory, 4001, &handle), ncclInvalidArgument, "ncclCommRegister: ");
    EXPECT_NCCL_OK(ncclMemFree(memory));
  });
}

TEST(HostNccl, OneThreadNeedsAGroupForSeveralRanks) {
  ncclUniqueId id{};
  ASSERT_NCCL_OK(ncclGetUniqueId(&id));
  ncclComm_t comms[2] = {};
  void* data[2] = {};
  ASSERT_NCCL_OK(ncclGroupStart());
  for (int i = 0; i < 2; ++i) {
    cudaSetDevice(i);
    cudaMalloc(&data[i], 4);
    ASSERT_NCCL_OK(ncclCommInitRank(&comms[i], 2, id, i));
  }
  ASSERT_NCCL_OK(ncclGroupEnd());
  const auto all_reduce = [&](int i) {
    cudaSetDevice(i);
    return ncclAllReduce(data[i], data[i], 1, ncclInt32, ncclSum, comms[i], nullptr);
  };
  EXPECT_NCCL_OK(all_reduce(0));
  EXPECT_EQ(all_reduce(1), ncclInvalidUsage);
  EXPECT_SAYS(ncclGetLastError(nullptr), "belong between ncclGroupStart and ncclGroupEnd");
  for (int i = 0; i < 2; ++i) {
    EXPECT_NCCL_OK(ncclCommAbort(comms[i]));
    cudaSetDevice(i);
    cudaFree(data[i]);
  }
}

}  // namespace nccl_test
