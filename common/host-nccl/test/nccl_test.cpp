// The stand-in for NCCL, with all ranks in one process: the results of its calls. Its reports of mistakes are tested in
// mistakes_test.cpp.
#include <gtest/gtest.h>
#include <nccl.h>
#include <testing/says.hpp>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <latch>
#include <numeric>
#include <string>
#include <thread>
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

// Waits until a call of a non-blocking communicator has finished.
ncclResult_t settle(ncclComm_t comm, ncclResult_t code) {
  while (code == ncclInProgress && ncclCommGetAsyncError(comm, &code) == ncclSuccess)
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  return code;
}

struct Rank {
  int number, size;
  ncclComm_t comm;
  cudaStream_t stream;
};

// Runs body() for each rank, on one thread per rank.
void on_ranks(int size, const std::function<void(Rank&)>& body, bool blocking = true, bool destroy = true) {
  ASSERT_EQ(four_devices, 0);
  ncclUniqueId id{};
  ASSERT_NCCL_OK(ncclGetUniqueId(&id));
  std::vector<std::jthread> threads;
  for (int number = 0; number < size; ++number)
    threads.emplace_back([&, number] {
      cudaSetDevice(number);
      Rank rank{number, size, nullptr, nullptr};
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = blocking;
      ASSERT_NCCL_OK(settle(rank.comm, ncclCommInitRankConfig(&rank.comm, size, id, number, &config)));
      cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking);
      body(rank);
      if (destroy) {
        EXPECT_NCCL_OK(settle(rank.comm, ncclCommFinalize(rank.comm)));
        EXPECT_NCCL_OK(ncclCommDestroy(rank.comm));
      }
      cudaStreamDestroy(rank.stream);
    });
}

using Values = std::vector<int>;

TEST(HostNccl, EveryCollectiveForEverySize) {
  for (int size = 1; size <= 4; ++size)
    on_ranks(size, [](Rank& r) {
      const int n = r.size, sum = n * (n + 1) / 2;
      const auto check = [&](const Values& in, std::size_t out_count, const auto& call, const Values& expected) {
        const Ints from(in), to(out_count);
        EXPECT_NCCL_OK(call(from.data(), to.data()));
        cudaStreamSynchronize(r.stream);
        if (!expected.empty()) {
          EXPECT_EQ(to.get(), expected);
        }
      };
      const int own = r.number + 1, root = n - 1;
      const bool is_root = r.number == root;
      Values all(static_cast<std::size_t>(n)), tens(all.size());
      std::iota(all.begin(), all.end(), 1);
      for (int i = 0; i < n; ++i) tens[std::size_t(i)] = 10 * own + i;  // for rank i
      const auto for_me = [&](int from) { return 10 * (from + 1) + r.number; };
      Values from_all;
      for (int i = 0; i < n; ++i) from_all.push_back(for_me(i));

      check({own, -own}, 2,
            [&](auto* in, auto* out) { return ncclAllReduce(in, out, 2, ncclInt32, ncclSum, r.comm, r.stream); },
            {sum, -sum});
      check({own}, 1,
            [&](auto* in, auto* out) { return ncclAllReduce(in, out, 1, ncclInt32, ncclMax, r.comm, r.stream); }, {n});
      check(
          {own}, 1,
          [&](auto* in, auto* out) { return ncclReduce(in, out, 1, ncclInt32, ncclMin, root, r.comm, r.stream); },
          is_root ? Values{1} : Values{});
      check({own}, 1, [&](auto* in, auto* out) { return ncclBroadcast(in, out, 1, ncclInt32, root, r.comm, r.stream); },
            {n});
      check(
          {own}, std::size_t(n),
          [&](auto* in, auto* out) { return ncclAllGather(in, out, 1, ncclInt32, r.comm, r.stream); }, all);
      check(tens, 1,
            [&](auto* in, auto* out) { return ncclReduceScatter(in, out, 1, ncclInt32, ncclSum, r.comm, r.stream); },
            {10 * sum + n * r.number});
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 3)
      check(
          tens, std::size_t(n),
          [&](auto* in, auto* out) { return ncclAlltoAll(in, out, 1, ncclInt32, r.comm, r.stream); }, from_all);
      check(
          {own}, std::size_t(n),
          [&](auto* in, auto* out) { return ncclGather(in, out, 1, ncclInt32, root, r.comm, r.stream); },
          is_root ? all : Values{});
      check(tens, 1, [&](auto* in, auto* out) { return ncclScatter(in, out, 1, ncclInt32, root, r.comm, r.stream); },
            {for_me(root)});
#endif
    });
}

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

TEST(HostNccl, NonBlockingCommunicatorsFinishLater) {
  on_ranks(
      3,
      [](Rank& r) {
        const Ints one(Values{1}), sum(1);
        for (int i = 0; i < 10; ++i)
          EXPECT_NCCL_OK(
              settle(r.comm, ncclAllReduce(one.data(), sum.data(), 1, ncclInt32, ncclSum, r.comm, r.stream)));
        cudaStreamSynchronize(r.stream);
        EXPECT_EQ(sum.get(), Values{3});
      },
      false);
}

TEST(HostNccl, AnAbortEndsOperationsAndFailsTheOtherRanks) {
  std::latch issued(3);
  on_ranks(
      3,
      [&](Rank& r) {
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
        EXPECT_NCCL_OK(ncclCommAbort(r.comm));
        EXPECT_EQ(cudaStreamSynchronize(r.stream), cudaSuccess);
      },
      true, false);
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
TEST(HostNccl, SurvivorsShrinkWithoutTheRankOfTheHub) {
  std::latch issued(4);
  on_ranks(
      4,
      [&](Rank& r) {
        if (r.number == 0) {
          issued.arrive_and_wait();
          EXPECT_NCCL_OK(ncclCommAbort(r.comm));
          return;
        }
        const Ints own(Values{r.number}), sum(1);
        EXPECT_NCCL_OK(ncclAllReduce(own.data(), sum.data(), 1, ncclInt32, ncclSum, r.comm, r.stream));  // never ends
        issued.arrive_and_wait();
        ncclComm_t rest = nullptr;
        int dead = 0;
        EXPECT_NE(ncclCommShrink(r.comm, &r.number, 1, &rest, nullptr, NCCL_SHRINK_ABORT), ncclSuccess);  // itself
        ASSERT_NCCL_OK(ncclCommShrink(r.comm, &dead, 1, &rest, nullptr, NCCL_SHRINK_ABORT));
        EXPECT_NCCL_OK(ncclAllReduce(own.data(), sum.data(), 1, ncclInt32, ncclSum, rest, r.stream));
        cudaStreamSynchronize(r.stream);
        EXPECT_EQ(sum.get(), Values{6});
        EXPECT_NCCL_OK(ncclCommAbort(r.comm));
        EXPECT_NCCL_OK(ncclCommDestroy(rest));
      },
      true, false);
}
#endif

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
