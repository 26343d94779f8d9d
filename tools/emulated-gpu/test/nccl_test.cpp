// The emulated NCCL, with one thread per rank: mistakes are reported with the call, the ranks and the difference; then
// how it behaves. The programs of chapter 02 test the results of the collectives on it.
#include "cuda.hpp"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <latch>
#include <memory>
#include <numeric>
#include <set>
#include <thread>
#include <utility>

namespace nccl_test {

using namespace std::chrono_literals;

const int one_second = setenv("EMULATED_GPU_DEADLINE", "1", 1);
const auto late = 4s;  // when the deadline of 1 s has been reported, also on a busy machine

// One rank, which keeps the errors that it gets. If only one rank is wrong, it is rank 1.
struct Rank {
  int number, size;
  ncclUniqueId id;
  std::atomic<ncclComm_t> comm = nullptr;
  cudaStream_t stream = nullptr;
  void *in = nullptr, *out = nullptr;  // 100 floats each
  std::string heard{};

  bool wrong() const { return number == 1; }
  int next() const { return (number + 1) % size; }
  int previous() const { return (number + size - 1) % size; }
  void hear(ncclResult_t code) {
    if (code != ncclSuccess)
      heard += "rank " + std::to_string(number) + ": code " + std::to_string(code) + ": " + ncclGetErrorString(code) +
               ": " + ncclGetLastError(comm) + "\n";
  }
  void initialize(int rank, int device) {
    cudaSetDevice(device);
    ncclComm_t made = nullptr;
    hear(ncclCommInitRank(&made, size, id, rank));
    comm = made;
  }
  void start() {
    initialize(number, number);
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaMalloc(&in, 400);
    cudaMalloc(&out, 400);
  }
  void all_reduce(std::size_t count = 100, ncclDataType_t type = ncclFloat32, ncclRedOp_t op = ncclSum) {
    hear(ncclAllReduce(in, out, count, type, op, comm, stream));
  }
  void broadcast(int root) { hear(ncclBroadcast(in, out, 100, ncclFloat32, root, comm, stream)); }
  void send(int peer) { hear(ncclSend(in, 100, ncclFloat32, peer, comm, stream)); }
  void receive(int peer, std::size_t count = 100, ncclDataType_t type = ncclFloat32) {
    hear(ncclRecv(out, count, type, peer, comm, stream));
  }
  // Waits until the stream is done or NCCL reports an error.
  void wait() {
    while (comm && cudaStreamQuery(stream) == cudaErrorNotReady) {
      ncclResult_t code = ncclSuccess;
      if (ncclCommGetAsyncError(comm, &code) == ncclSuccess && code != ncclSuccess) return hear(code);
      std::this_thread::sleep_for(1ms);
    }
  }
  void abort() {
    if (const ncclComm_t ended = comm.exchange(nullptr)) ncclCommAbort(ended);
  }
};

using Make = std::function<void(Rank&)>;
Make started(const Make& make) {
  return [=](Rank& r) { r.start(), make(r), r.wait(); };
}

// What the ranks hear, and what the emulation prints. Ranks that still wait after `limit` are aborted.
std::string reports_of(int ranks, const Make& make, std::chrono::seconds limit = 60s) {
  ncclUniqueId id{};
  EXPECT_EQ(four_devices + one_second + ncclGetUniqueId(&id), 0);
  std::vector<std::unique_ptr<Rank>> all;
  for (int number = 0; number < ranks; ++number) all.emplace_back(new Rank{number, ranks, id});
  std::atomic<int> done = 0;
  ::testing::internal::CaptureStderr();
  {
    std::vector<std::jthread> threads;
    for (const auto& rank : all)
      threads.emplace_back([&] {
        make(*rank);
        ++done;
      });
    for (const auto end = std::chrono::steady_clock::now() + limit;
         done < ranks && std::chrono::steady_clock::now() < end;)
      std::this_thread::sleep_for(5ms);
    for (const auto& rank : all) rank->abort();
  }
  std::string reports = ::testing::internal::GetCapturedStderr();
  for (const auto& rank : all) {
    reports += rank->heard;
    cudaFree(rank->in);
    cudaFree(rank->out);
    if (rank->stream) cudaStreamDestroy(rank->stream);
  }
  return reports;
}

struct Mistake {
  std::string name;
  Make make;
  std::vector<std::string> says;
  int ranks = 2;
  friend void PrintTo(const Mistake& mistake, std::ostream* out) { *out << mistake.name; }
};

const std::vector<Mistake> mistakes = {
    {"count",
     started([](Rank& r) { r.all_reduce(r.wrong() ? 50 : 100); }),
     {"different counts in collective number 1 of the communicator: rank 0 (host ",
      ") called ncclAllReduce(100 x float, sum), rank 1 (host ", ") called ncclAllReduce(50 x float, sum)",
      "rank 0: code 5: invalid usage: different counts", "rank 1: code 5: invalid usage: different counts"}},
    {"root_out_of_range",
     started([](Rank& r) { r.broadcast(7); }),
     {"rank 1: code 4: invalid argument: ncclBroadcast on rank 1: root 7 of a communicator of 2"}},
    {"order",
     started([](Rank& r) {
       if (r.wrong()) r.broadcast(0);
       r.all_reduce();
       if (!r.wrong()) r.broadcast(0);
     }),
     {"different calls in collective number 1 of the communicator: rank 0", "ncclAllReduce(100 x float, sum)",
      "ncclBroadcast(100 x float, root 0)"}},
    {"unpaired_send",
     started([](Rank& r) {
       if (!r.wrong()) r.send(1);
     }),
     {"emulated-gpu: ncclSend(100 x float, to rank 1) of rank 0 (host ",
      ") has waited for 1 s for its ncclRecv on rank 1; that rank's last call: none"}},
    {"no_group",
     started([](Rank& r) { r.send(r.next()), r.receive(r.previous()); }),
     {" of rank 0 (host ", "Both send first: the calls of such a pair belong between ncclGroupStart and"}},
    {"no_group_end",
     started([](Rank& r) {
       if (r.wrong()) r.hear(ncclGroupStart());
       r.all_reduce();
     }),
     {"ncclAllReduce(100 x float, sum), collective number 1, has waited for 1 s on rank 0; rank 1 (host ",
      ") has not called it; its last call: none",
      "emulated-gpu: a thread ended inside a group, without ncclGroupEnd: 1 of its calls never made"}},
    {"no_group_of_one_thread",
     [](Rank& r) {
       ncclComm_t comms[2] = {};
       r.hear(ncclCommInitAll(comms, 2, nullptr));
       r.comm = comms[0];
       cudaMalloc(&r.out, 400);
       r.hear(ncclBcast(r.out, 100, ncclFloat32, 0, comms[0], nullptr));
       ncclCommAbort(comms[1]);
     },
     {"If one thread calls for several ranks, its calls belong between ncclGroupStart and ncclGroupEnd"},
     1},
    {"group_end_without_start",
     [](Rank& r) { r.hear(ncclGroupEnd()); },
     {"rank 0: code 5: invalid usage: ncclGroupEnd without ncclGroupStart"}},
    {"message_count",
     started([](Rank& r) { r.wrong() ? r.receive(0, 50) : r.send(1); }),
     {"different counts in message number 1 between two ranks: rank 0",
      "called ncclSend(100 x float, to rank 1), rank 1", "called ncclRecv(50 x float, from rank 0)"}},
    {"missing_collective",
     started([](Rank& r) {
       if (!r.wrong()) r.all_reduce();
     }),
     {"ncclAllReduce(100 x float, sum), collective number 1, has waited for 1 s on ranks 0, 2; rank 1 (host ",
      ") has not called it; its last call: none"},
     3},
    {"after_destroy",
     started([](Rank& r) {
       r.hear(ncclCommDestroy(r.comm));
       r.all_reduce();
       r.comm = nullptr;
     }),
     {"rank 0: code 4: invalid argument: ncclAllReduce after ncclCommDestroy"}},
    {"same_rank",
     [](Rank& r) { r.initialize(0, r.number); },
     {"rank 1: code 5: invalid usage: ncclCommInitRank: rank 0 joined twice: from host "}},
    {"same_gpu",
     [](Rank& r) { r.initialize(r.number, 1); },
     {"ncclCommInitRank: Duplicate GPU detected : rank ", " both on CUDA device 10: host ", " both use GPU 1"}},
    {"host_memory",
     started([](Rank& r) {
       float numbers[100] = {};
       r.hear(ncclAllReduce(numbers, r.out, 100, ncclFloat32, ncclSum, r.comm, r.stream));
     }),
     {"rank 0: code 4: invalid argument: ncclAllReduce on rank 0: the send buffer: it (400 bytes at ",
      ") is not device memory"}},
    {"small_buffer",
     started([](Rank& r) { r.hear(ncclAllGather(r.in, r.out, 100, ncclFloat32, r.comm, r.stream)); }),
     {"ncclAllGather on rank 0: the receive buffer: it (800 bytes at ",
      ") extends beyond its allocation of 400 bytes"}},
    {"stream_of_another_device",
     started([](Rank& r) {
       cudaStream_t other{};
       cudaSetDevice(r.number + 1);
       cudaStreamCreate(&other);
       r.hear(ncclAllReduce(r.in, r.out, 100, ncclFloat32, ncclSum, r.comm, other));
       cudaStreamDestroy(other);
     }),
     {"ncclAllReduce on rank 0: the stream is of device 1, the communicator's is 0"}},
    {"missing_rank",
     [](Rank& r) {
       if (r.wrong()) std::this_thread::sleep_for(late / 2);
       r.start();
     },
     {"emulated-gpu: ncclCommInitRank of 2 ranks has waited for 1 s: rank 1 has not called it."}},
};

class Mistakes : public ::testing::TestWithParam<Mistake> {};

TEST_P(Mistakes, AreReported) {
  const std::string reports = reports_of(GetParam().ranks, GetParam().make, late);
  for (const std::string& text : GetParam().says) EXPECT_SAYS(reports, text);
}

INSTANTIATE_TEST_SUITE_P(Nccl, Mistakes, ::testing::ValuesIn(mistakes),
                         [](const auto& info) { return info.param.name; });

// Runs body() for each rank of a correct program, and returns what is reported.
std::string on_ranks(int size, const Make& body) {
  const std::string reports = reports_of(size, started([&](Rank& r) {
                                           body(r);
                                           r.wait();
                                           r.hear(ncclCommDestroy(r.comm.exchange(nullptr)));
                                         }));
  EXPECT_EQ(reports.find(": code "), std::string::npos) << reports;
  return reports;
}

TEST(HostNccl, CorrectProgramsMoveEveryElementAndCauseNoReport) {
  const int block = 700001;  // a call travels in pieces, of which the last one is shorter
  const auto numbers = [](int first, int count) {
    std::vector<int> all(static_cast<std::size_t>(count));
    std::iota(all.begin(), all.end(), first);
    return all;
  };
  for (const int ranks : {2, 3, 4}) {
    EXPECT_EQ(on_ranks(ranks,
                       [&](Rank& r) {
                         const Array<int> in(numbers(r.number, ranks * block)), out(numbers(0, block)),
                             all(numbers(0, ranks * block));
                         r.hear(ncclReduceScatter(in, out, block, ncclInt32, ncclMax, r.comm, r.stream));
                         EXPECT_EQ(out.get(), numbers(ranks - 1 + r.number * block, block));
                         r.hear(ncclAllGather(out, all, block, ncclInt32, r.comm, r.stream));
                         EXPECT_EQ(all.get(), numbers(ranks - 1, ranks * block));
                         ncclGroupStart();
                         r.send(r.next());
                         r.send(r.number);
                         r.receive(r.previous());
                         r.receive(r.number);
                         r.hear(ncclGroupEnd());
                       }),
              "");
  }
}

[[noreturn]] void leave_all_behind() {
  setenv("EMULATED_GPU_CHECK", "1", 1);
  Rank rank{0, 1, {}};
  ncclGetUniqueId(&rank.id);
  rank.start();
  std::exit(0);
}

TEST(HostNcclDeathTest, LeaksAreReported) {
  EXPECT_EXIT(
      leave_all_behind(), ::testing::ExitedWithCode(0),
      "emulated-gpu: leaked at exit: 1 communicator\n(.|\n)*emulated-gpu: leaked at exit: 2 buffers, 1 stream\n");
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
  const Array<int> data({0});
  expect_refused(ncclAllReduce(data, data, 1, ncclFloat8e4m3, ncclSum, comm, nullptr), ncclInvalidArgument,
                 "ncclAllReduce: type 10 is not emulated");
#endif
  EXPECT_NCCL_OK(ncclCommDestroy(comm));
  for (const char* name : {"pncclGetVersion", "pncclCommSplit"}) EXPECT_NE(dlsym(RTLD_DEFAULT, name), nullptr) << name;
}

// What the call of one rank prints that waits longer than the deadline of 1 s, until the other rank calls.
std::string reports_of_waiting(const Make& call) {
  std::atomic<bool> returned = false;
  return reports_of(2, started([&](Rank& r) {
                      if (r.number == 1) {
                        std::this_thread::sleep_for(late);
                        EXPECT_FALSE(returned);
                      }
                      call(r);
                      returned = true;
                    }));
}

TEST(HostNccl, TheFirstCallsBlockTheirThreadUntilThePeersCall) {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 22, 0)
  EXPECT_SAYS(reports_of_waiting([](Rank& r) { r.all_reduce(); }),
              "ncclAllReduce(100 x float, sum), collective number 1, has waited for 1 s on rank 0; rank 1 (host");
#endif
  EXPECT_SAYS(reports_of_waiting([](Rank& r) { r.number == 0 ? r.send(1) : r.receive(0); }),
              ". The thread waits in the call, because the first one sets up the connection");
}

TEST(HostNccl, LaterCallsReturnBeforeThePeersCall) {
  std::latch returned(1);
  on_ranks(2, [&](Rank& r) {
    r.all_reduce();
    if (r.number == 1) returned.wait();
    r.all_reduce();
    if (r.number == 0) returned.count_down();
  });
}

TEST(HostNccl, AnAbortEndsTheOperationsOfItsOwnRank) {
  std::latch issued(3);
  on_ranks(3, [&](Rank& r) {
    r.all_reduce();  // connects, so that the next call does not wait for the others
    cudaStreamSynchronize(r.stream);
    if (r.number != 1) r.all_reduce();
    issued.arrive_and_wait();
    EXPECT_EQ(cudaStreamQuery(r.stream), r.number == 1 ? cudaSuccess : cudaErrorNotReady);
    EXPECT_NCCL_OK(ncclCommAbort(r.comm.exchange(nullptr)));
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
  for (const int i : {0, 1}) all_reduce(i);
  EXPECT_NCCL_OK(ncclGroupEnd());
  for (const cudaStream_t stream : streams) cudaStreamSynchronize(stream);
  all_reduce(0);
  EXPECT_NCCL_OK(ncclCommAbort(comms[1]));
  ncclResult_t code = ncclSuccess;
  const auto end = std::chrono::steady_clock::now() + late;
  for (; code == ncclSuccess && std::chrono::steady_clock::now() < end; std::this_thread::sleep_for(1ms))
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
    const auto make = started([&](Rank& r) {
      cudaGraph_t graph{};
      cudaGraphExec_t executable{};
      ASSERT_EQ(cudaStreamBeginCapture(r.stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
      r.all_reduce();
      ASSERT_EQ(cudaStreamEndCapture(r.stream, &graph), cudaSuccess);
      ASSERT_EQ(cudaGraphInstantiateWithFlags(&executable, graph, 0), cudaSuccess);
      cudaGraphDestroy(graph);
      std::atomic<bool> ended = false;
      std::jthread thread([&] {
        EXPECT_NCCL_OK(end(r.comm));
        ended = true;
      });
      std::this_thread::sleep_for(late);
      EXPECT_FALSE(ended);
      cudaGraphExecDestroy(executable);
      thread.join();
      if (end != &ncclCommFinalize) r.comm = nullptr;
    });
    EXPECT_SAYS(reports_of(1, make),
                " on rank 0 has waited for 1 s for a graph that holds a captured call of this communicator");
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which need memory themselves
TEST(HostNccl, ABufferTakesItsOwnSizeOfTheHost) {
  constexpr std::size_t mib = 1 << 20, bytes = 256 * mib;
  std::ofstream("/proc/self/clear_refs") << 5;  // the peak of this process starts again
  const std::vector<char> host(bytes, 1);
  on_ranks(2, [&](Rank& r) {
    void* buffer = nullptr;
    cudaMalloc(&buffer, bytes);
    cudaMemcpy(buffer, host.data(), bytes, cudaMemcpyHostToDevice);
    EXPECT_NCCL_OK(ncclBroadcast(buffer, buffer, bytes, ncclInt8, 1, r.comm, r.stream));
    cudaFree(buffer);
  });
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (std::size_t kib = 0; word == "VmHWM:" && status >> kib) {
      EXPECT_LT(kib << 10, 3 * bytes + 192 * mib);
    }
}
#endif

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
