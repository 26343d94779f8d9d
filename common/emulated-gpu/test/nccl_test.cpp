// The emulated NCCL, with all ranks in one process. The programs of chapter 02 test the results of the collectives
// on it, mistakes_test.cpp its reports.
#include "cuda.hpp"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <latch>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace nccl_test {

using namespace std::chrono_literals;

const int four_devices = setenv("EMULATED_GPUS", "4", 1);

using Values = std::vector<int>;
using Ints = Array<int>;

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

void all_reduce(const Rank& r, const Ints& in, const Ints& out) {
  EXPECT_NCCL_OK(ncclAllReduce(in, out, 1, ncclInt32, ncclSum, r.comm, r.stream));
}

TEST(HostNccl, TheOrderOfAReductionVariesFromCallToCall) {
  std::set<float> sums;  // in another order, 1 is lost: 2^24 + 1 is no float
  on_ranks(3, [&](Rank& r) {
    const Array<float> in({std::array{0x1p24f, 1.0f, -0x1p24f}[static_cast<std::size_t>(r.number)]}), out({0});
    for (int call = 0; call < 20; ++call) {
      EXPECT_NCCL_OK(ncclAllReduce(in, out, 1, ncclFloat32, ncclSum, r.comm, r.stream));
      if (const float got = out.get()[0]; r.number == 0) sums.insert(got);
    }
  });
  EXPECT_EQ(sums, (std::set<float>{0, 1}));
}

TEST(HostNccl, InitAllAndWhatACommunicatorSaysOfItself) {
  const int devices[] = {3, 0, 2}, twice[] = {1, 1}, none[] = {4};
  ncclComm_t comms[3] = {};
  void* data[3] = {};
  ASSERT_NCCL_OK(ncclCommInitAll(comms, 3, devices));
  for (int i = 0; i < 3; ++i) {
    int size = 0, rank = -1, device = -1;
    EXPECT_NCCL_OK(ncclCommCount(comms[i], &size));
    EXPECT_NCCL_OK(ncclCommUserRank(comms[i], &rank));
    EXPECT_NCCL_OK(ncclCommCuDevice(comms[i], &device));
    EXPECT_EQ((std::array{size, rank, device}), (std::array{3, i, devices[i]}));
    cudaSetDevice(devices[i]);
    cudaMalloc(&data[i], 4);
    cudaMemcpy(data[i], &devices[i], 4, cudaMemcpyHostToDevice);
  }
  ASSERT_NCCL_OK(ncclGroupStart());
  for (int i = 0; i < 3; ++i) EXPECT_NCCL_OK(ncclBcast(data[i], 1, ncclInt32, 2, comms[i], nullptr));
  ASSERT_NCCL_OK(ncclGroupEnd());
  for (int i = 0; i < 3; ++i) {
    int received = 0;
    cudaSetDevice(devices[i]);
    cudaMemcpy(&received, data[i], 4, cudaMemcpyDeviceToHost);
    EXPECT_EQ(received, 2);
    cudaFree(data[i]);
    EXPECT_NCCL_OK(ncclCommDestroy(comms[i]));
  }
  EXPECT_EQ(ncclCommInitAll(comms, 2, twice), ncclInvalidUsage);
  EXPECT_EQ(ncclCommInitAll(comms, 1, none), ncclInvalidArgument);
  EXPECT_SAYS(ncclGetLastError(nullptr), "ncclCommInitAll: Invalid device 4");
}

TEST(HostNccl, WhatIsNotEmulatedSaysSo) {
  ncclUniqueId id{};
  ASSERT_NCCL_OK(ncclGetUniqueId(&id));
  cudaSetDevice(0);
  const auto expect_refused = [](ncclResult_t code, ncclResult_t wanted, const char* why) {
    EXPECT_EQ(code, wanted);
    EXPECT_SAYS(ncclGetLastError(nullptr), why);
  };
  ncclComm_t comm = nullptr;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const auto initialize = [&] { return ncclCommInitRankConfig(&comm, 1, id, 0, &config); };
  expect_refused(initialize(), ncclInvalidArgument, "blocking communicators only");
  config.magic = 1;
  expect_refused(initialize(), ncclInvalidArgument, "is not from NCCL_CONFIG_INITIALIZER");
  config = NCCL_CONFIG_INITIALIZER;
  config.size = 24;  // of a program that was compiled with an older header
  ASSERT_NCCL_OK(initialize());
  ncclRedOp_t op{};
  float two = 2;
  expect_refused(ncclRedOpCreatePreMulSum(&op, &two, ncclFloat32, ncclScalarHostImmediate, comm), ncclInvalidUsage,
                 "ncclRedOpCreatePreMulSum is not emulated");
  expect_refused(ncclCommSplit(comm, 0, 0, &comm, nullptr), ncclInvalidUsage, "ncclCommSplit is not emulated");
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 0)
  const Ints data(Values(1));
  expect_refused(ncclAllReduce(data, data, 1, ncclFloat8e4m3, ncclSum, comm, nullptr), ncclInvalidArgument,
                 "ncclAllReduce: type 10 is not emulated");
#endif
  EXPECT_NCCL_OK(ncclCommDestroy(comm));
  for (const char* name : {"pncclGetVersion", "pncclCommSplit"}) EXPECT_NE(dlsym(RTLD_DEFAULT, name), nullptr) << name;
}

// What one rank's call prints that waits longer than the deadline of 1 s (mistakes_test.cpp), until the other rank
// calls.
std::string reports_of_waiting(const std::function<void(Rank&)>& call) {
  ::testing::internal::CaptureStderr();
  std::atomic<bool> returned = false;
  on_ranks(2, [&](Rank& r) {
    if (r.number == 1) {
      std::this_thread::sleep_for(1500ms);
      EXPECT_FALSE(returned);
    }
    call(r);
    returned = true;
    EXPECT_EQ(cudaStreamSynchronize(r.stream), cudaSuccess);
  });
  return ::testing::internal::GetCapturedStderr();
}

TEST(HostNccl, TheFirstCallsBlockTheirThreadUntilThePeersCall) {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 22, 0)
  EXPECT_SAYS(reports_of_waiting([](Rank& r) {
                const Ints one(Values{1}), sum(Values(1));
                all_reduce(r, one, sum);
              }),
              "ncclAllReduce(1 x int32, sum), collective number 1, has waited for 1 s on rank 0; rank 1 (host");
#endif
  EXPECT_SAYS(reports_of_waiting([](Rank& r) {
                const Ints data(Values(1));
                EXPECT_NCCL_OK(r.number == 0 ? ncclSend(data, 1, ncclInt32, 1, r.comm, r.stream)
                                             : ncclRecv(data, 1, ncclInt32, 0, r.comm, r.stream));
              }),
              ". The thread waits in the call, because the first one sets up the connection");
}

TEST(HostNccl, LaterCallsReturnBeforeThePeersCall) {
  std::latch returned(1);
  on_ranks(2, [&](Rank& r) {
    const Ints one(Values{1}), sum(Values(1));
    all_reduce(r, one, sum);
    if (r.number == 1) returned.wait();
    all_reduce(r, one, sum);
    if (r.number == 0) returned.count_down();
    cudaStreamSynchronize(r.stream);
    EXPECT_EQ(sum.get(), Values{2});
  });
}

TEST(HostNccl, ARingInOneGroupAndAMessageToItself) {
  on_ranks(3, [](Rank& r) {
    const Ints out(Values{r.number, 7}), in(Values(2)), own(Values(1));
    const int next = (r.number + 1) % r.size, previous = (r.number + 2) % r.size;
    ASSERT_NCCL_OK(ncclGroupStart());
    EXPECT_NCCL_OK(ncclSend(out, 2, ncclInt32, next, r.comm, r.stream));
    EXPECT_NCCL_OK(ncclSend(out, 1, ncclInt32, r.number, r.comm, r.stream));
    EXPECT_NCCL_OK(ncclRecv(own, 1, ncclInt32, r.number, r.comm, r.stream));
    EXPECT_NCCL_OK(ncclRecv(in, 2, ncclInt32, previous, r.comm, r.stream));
    ASSERT_NCCL_OK(ncclGroupEnd());
    cudaStreamSynchronize(r.stream);
    EXPECT_EQ(in.get(), (Values{previous, 7}));
    EXPECT_EQ(own.get(), Values{r.number});
  });
}

TEST(HostNccl, AnAbortEndsTheOperationsOfItsOwnRank) {
  std::latch issued(3);
  on_ranks(3, [&](Rank& r) {
    const Ints one(Values{1}), sum(Values(1));
    all_reduce(r, one, sum);  // connects, so that the next call does not wait for the others
    cudaStreamSynchronize(r.stream);
    if (r.number != 1) all_reduce(r, one, sum);
    issued.arrive_and_wait();
    EXPECT_EQ(cudaStreamQuery(r.stream), r.number == 1 ? cudaSuccess : cudaErrorNotReady);
    EXPECT_NCCL_OK(ncclCommAbort(std::exchange(r.comm, nullptr)));
    EXPECT_EQ(cudaStreamSynchronize(r.stream), cudaSuccess);
  });
}

// The state of rank 0 whose operation waits for rank 1, a while after that has aborted. Both use GPU 0 or 1 each, and
// the machines have these names.
std::pair<ncclResult_t, std::string> after_the_abort_of_the_other(const char* machine, const char* other, int device) {
  ncclUniqueId id{};
  EXPECT_NCCL_OK(ncclGetUniqueId(&id));
  ncclComm_t comms[2] = {};
  cudaStream_t streams[2] = {};
  void* data[2] = {};
  EXPECT_NCCL_OK(ncclGroupStart());
  for (int i = 0; i < 2; ++i) {
    cudaSetDevice(i * device);
    cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking);
    cudaMalloc(&data[i], 4);
    setenv("NCCL_HOSTID", i == 0 ? machine : other, 1);
    EXPECT_NCCL_OK(ncclCommInitRank(&comms[i], 2, id, i));
  }
  EXPECT_NCCL_OK(ncclGroupEnd());
  unsetenv("NCCL_HOSTID");
  const auto all_reduce = [&](int i) {
    EXPECT_NCCL_OK(ncclAllReduce(data[i], data[i], 1, ncclInt32, ncclSum, comms[i], streams[i]));
  };
  EXPECT_NCCL_OK(ncclGroupStart());
  all_reduce(0);
  all_reduce(1);
  EXPECT_NCCL_OK(ncclGroupEnd());
  for (const cudaStream_t stream : streams) cudaStreamSynchronize(stream);
  all_reduce(0);
  EXPECT_NCCL_OK(ncclCommAbort(comms[1]));
  ncclResult_t code = ncclSuccess;
  const auto end = std::chrono::steady_clock::now() + 1500ms;
  while (code == ncclSuccess && std::chrono::steady_clock::now() < end)
    EXPECT_NCCL_OK(ncclCommGetAsyncError(comms[0], &code));
  const std::string text = code == ncclSuccess ? "" : ncclGetLastError(nullptr);
  EXPECT_NCCL_OK(ncclCommAbort(comms[0]));
  for (void* one : data) cudaFree(one);
  for (const cudaStream_t stream : streams) cudaStreamDestroy(stream);
  return {code, text};
}

// Ranks with different host ids may share a GPU.
TEST(HostNccl, OnlyOtherMachinesHearThatARankIsGone) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(after_the_abort_of_the_other("a", "a", 1).first, ncclSuccess);
  EXPECT_SAYS(::testing::internal::GetCapturedStderr(),
              "ncclAllReduce(1 x int32, sum), collective number 2, has waited for 1 s on rank 0; rank 1 (host");
  const auto [code, text] = after_the_abort_of_the_other("a", "b", 0);
  EXPECT_EQ(code, ncclRemoteError);
  EXPECT_SAYS(text, "has aborted the communicator");
}

TEST(HostNccl, TheEndOfACommunicatorWaitsForItsGraphs) {
  for (const auto end : {&ncclCommDestroy, &ncclCommAbort, &ncclCommFinalize}) {
    ::testing::internal::CaptureStderr();
    on_ranks(1, [&](Rank& r) {
      const Ints one(Values{1}), sum(Values(1));
      cudaGraph_t graph{};
      cudaGraphExec_t executable{};
      ASSERT_EQ(cudaStreamBeginCapture(r.stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
      all_reduce(r, one, sum);
      ASSERT_EQ(cudaStreamEndCapture(r.stream, &graph), cudaSuccess);
      ASSERT_EQ(cudaGraphInstantiateWithFlags(&executable, graph, 0), cudaSuccess);
      cudaGraphDestroy(graph);
      std::atomic<bool> ended = false;
      std::jthread thread([&] {
        EXPECT_NCCL_OK(end(r.comm));
        ended = true;
      });
      std::this_thread::sleep_for(1500ms);
      EXPECT_FALSE(ended);
      cudaGraphExecDestroy(executable);
      thread.join();
      if (end != &ncclCommFinalize) r.comm = nullptr;
    });
    EXPECT_SAYS(::testing::internal::GetCapturedStderr(),
                " on rank 0 has waited for 1 s for a graph that holds a captured call of this communicator");
  }
}

TEST(HostNccl, BuffersAreRegistered) {
  on_ranks(2, [](Rank& rank) {
    void *memory = nullptr, *handle = nullptr;
    ASSERT_NCCL_OK(ncclMemAlloc(&memory, 4000));
    ASSERT_NCCL_OK(ncclCommRegister(rank.comm, memory, 4000, &handle));
    EXPECT_NCCL_OK(ncclAllReduce(memory, memory, 1000, ncclInt32, ncclMax, rank.comm, rank.stream));
    cudaStreamSynchronize(rank.stream);
    EXPECT_NCCL_OK(ncclCommDeregister(rank.comm, handle));
    EXPECT_EQ(ncclCommRegister(rank.comm, memory, 4001, &handle), ncclInvalidArgument);
    EXPECT_SAYS(ncclGetLastError(nullptr), "ncclCommRegister: ");
    EXPECT_NCCL_OK(ncclMemFree(memory));
  });
}

}  // namespace nccl_test
