// Mistakes with NCCL, on emulated GPUs, with one thread per rank: each is reported with the call, the ranks and the
// difference.
#include <gtest/gtest.h>
#include <nccl.h>
#include <test/support/says.hpp>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace mistakes_test {

using namespace std::chrono_literals;

const int four_devices = setenv("EMULATED_GPUS", "4", 1), one_second = setenv("EMULATED_GPU_DEADLINE", "1", 1);

// One rank, which keeps the errors that it gets. If only one rank is wrong, it is rank 1.
struct Rank {
  int number, size;
  ncclUniqueId id;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  void *in = nullptr, *out = nullptr;  // 100 floats each
  std::string heard{};

  bool wrong() const { return number == 1; }
  int next() const { return (number + 1) % size; }
  int previous() const { return (number + size - 1) % size; }
  ncclResult_t hear(ncclResult_t code) {
    if (code != ncclSuccess && code != ncclInProgress)
      heard += "rank " + std::to_string(number) + ": code " + std::to_string(code) + ": " + ncclGetErrorString(code) +
               ": " + ncclGetLastError(comm) + "\n";
    return code;
  }

  void initialize(int rank, int device, bool blocking = true) {
    cudaSetDevice(device);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking;
    hear(blocking ? ncclCommInitRank(&comm, size, id, rank) : ncclCommInitRankConfig(&comm, size, id, rank, &config));
    settle();
  }
  // Waits until the last call is no longer in progress, at most a bit longer than the deadline for reports.
  ncclResult_t settle() {
    ncclResult_t code = ncclInProgress;
    const auto end = std::chrono::steady_clock::now() + 1500ms;
    while (comm && ncclCommGetAsyncError(comm, &code) == ncclSuccess && code == ncclInProgress &&
           std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(1ms);
    return code;
  }
  // The first call of a blocking communicator would block this thread until the others make it.
  void start(bool blocking) {
    initialize(number, number, blocking);
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaMalloc(&in, 400);
    cudaMalloc(&out, 400);
  }
  ncclResult_t all_reduce(std::size_t count = 100, ncclDataType_t type = ncclFloat32, ncclRedOp_t op = ncclSum) {
    settle();
    return hear(ncclAllReduce(in, out, count, type, op, comm, stream));
  }
  ncclResult_t broadcast(int root) {
    settle();
    return hear(ncclBroadcast(in, out, 100, ncclFloat32, root, comm, stream));
  }
  ncclResult_t send(int peer) {
    settle();
    return hear(ncclSend(in, 100, ncclFloat32, peer, comm, stream));
  }
  ncclResult_t receive(int peer, std::size_t count = 100, ncclDataType_t type = ncclFloat32) {
    settle();
    return hear(ncclRecv(out, count, type, peer, comm, stream));
  }
  // Waits until the stream is done, NCCL reports an error, or 5 s have passed.
  void wait() {
    const auto end = std::chrono::steady_clock::now() + 5s;
    if (hear(settle()) != ncclSuccess) return;
    while (cudaStreamQuery(stream) == cudaErrorNotReady && std::chrono::steady_clock::now() < end) {
      ncclResult_t code = ncclSuccess;
      EXPECT_EQ(ncclCommGetAsyncError(comm, &code), ncclSuccess);
      if (hear(code) != ncclSuccess) return;
      std::this_thread::sleep_for(1ms);
    }
  }
  // Starts to join a communicator of 2 ranks, without waiting for the other.
  void begin_alone() {
    ncclUniqueId own{};
    EXPECT_EQ(ncclGetUniqueId(&own), ncclSuccess);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    hear(ncclCommInitRankConfig(&comm, 2, own, 0, &config));
  }
  void all_reduce_after(ncclResult_t code) {
    EXPECT_EQ(code, ncclSuccess);
    all_reduce();
    comm = nullptr;
  }
  void end() {
    if (comm) ncclCommAbort(comm);
    cudaFree(in);
    cudaFree(out);
    if (stream) cudaStreamDestroy(stream);
  }
};

using Make = std::function<void(Rank&)>;
Make started(const Make& make, bool blocking = true) {
  return [=](Rank& r) { r.start(blocking), make(r); };
}
Make waits(const Make& make) {
  return [=](Rank& r) { r.start(false), make(r), r.wait(); };
}

// What the ranks hear, and what the emulation prints.
std::string reports_of(int ranks, const Make& make) {
  ncclUniqueId id{};
  EXPECT_EQ(four_devices + one_second + ncclGetUniqueId(&id), 0);
  std::vector<Rank> all;
  for (int number = 0; number < ranks; ++number) all.push_back({number, ranks, id});
  std::barrier mistake_is_made(ranks);  // otherwise one rank's abort could precede another's mistake
  ::testing::internal::CaptureStderr();
  {
    std::vector<std::jthread> threads;
    for (Rank& rank : all)
      threads.emplace_back([&] {
        make(rank);
        mistake_is_made.arrive_and_wait();
        rank.end();
      });
  }
  std::string reports = ::testing::internal::GetCapturedStderr();
  for (const Rank& rank : all) reports += rank.heard;
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
     waits([](Rank& r) { r.all_reduce(r.wrong() ? 50 : 100); }),
     {"different counts in collective number 1 of the communicator: rank 0 (host ",
      ") called ncclAllReduce(100 x float, sum), rank 1 (host ", ") called ncclAllReduce(50 x float, sum)",
      "rank 0: code 5: invalid usage: different counts", "rank 1: code 5: invalid usage: different counts"}},
    {"type",
     waits([](Rank& r) { r.all_reduce(100, r.wrong() ? ncclInt32 : ncclFloat32); }),
     {"different types in collective", "(100 x float, sum)", "(100 x int32, sum)"}},
    {"reduction",
     waits([](Rank& r) { r.all_reduce(100, ncclFloat32, r.wrong() ? ncclMax : ncclSum); }),
     {"different reductions in collective", "(100 x float, sum)", "(100 x float, max)"}},
    {"root",
     waits([](Rank& r) { r.broadcast(r.wrong() ? 1 : 0); }),
     {"different roots in collective", "ncclBroadcast(100 x float, root 0)", "ncclBroadcast(100 x float, root 1)"}},
    {"root_out_of_range",
     started([](Rank& r) { r.broadcast(7); }),
     {"rank 1: code 4: invalid argument: ncclBroadcast on rank 1: root 7 of a communicator of 2"}},
    {"order",
     waits([](Rank& r) {
       if (r.wrong()) r.broadcast(0);
       r.all_reduce();
       if (!r.wrong()) r.broadcast(0);
     }),
     {"different calls in collective number 1 of the communicator: rank 0", "ncclAllReduce(100 x float, sum)",
      "ncclBroadcast(100 x float, root 0)"}},
    {"unpaired_send",
     waits([](Rank& r) { r.wrong() ? ncclSuccess : r.send(1); }),
     {"emulated-gpu: ncclSend(100 x float, to rank 1) of rank 0 (host ",
      ") has waited for 1 s for its ncclRecv on rank 1; that rank's last call: none"}},
    {"no_group",
     waits([](Rank& r) { r.send(r.next()), r.receive(r.previous()); }),
     {" of rank 0 (host ", "Both send first: the calls of such a pair belong between ncclGroupStart and"}},
    {"no_group_end",
     started(
         [](Rank& r) {
           if (r.wrong()) r.hear(ncclGroupStart());
           r.all_reduce();
           if (r.wrong())
             std::this_thread::sleep_for(3s);
           else
             r.wait();
         },
         false),
     {"emulated-gpu: a group has been open without ncclGroupEnd (its first call is ncclAllReduce(100 x "
      "float, sum)) for 1 s now",
      "ncclAllReduce(100 x float, sum), collective number 1, has waited for 1 s on rank 0; rank 1 (host ",
      ") has not called it; its last call: none",
      "emulated-gpu: a thread ended inside a group, without ncclGroupEnd: 1 of its calls never made"}},
    {"group_end_without_start",
     [](Rank& r) { r.hear(ncclGroupEnd()); },
     {"rank 0: code 5: invalid usage: ncclGroupEnd without ncclGroupStart"}},
    {"message_count",
     waits([](Rank& r) { r.wrong() ? r.receive(0, 50) : r.send(1); }),
     {"different counts in message number 1 between two ranks: rank 0",
      "called ncclSend(100 x float, to rank 1), rank 1", "called ncclRecv(50 x float, from rank 0)"}},
    {"message_type",
     waits([](Rank& r) { r.wrong() ? r.receive(0, 100, ncclInt32) : r.send(1); }),
     {"different types in message number 1", "(100 x float, to rank 1)", "(100 x int32, from rank 0)"}},
    {"to_itself",
     started([](Rank& r) { r.send(r.number); }),
     {"rank 1: code 5: invalid usage: ncclSend of rank 1 with itself, without the ncclRecv in the same"}},
    {"missing_collective",
     waits([](Rank& r) { r.wrong() ? ncclSuccess : r.all_reduce(); }),
     {"ncclAllReduce(100 x float, sum), collective number 1, has waited for 1 s on ranks 0, 2; rank 1 (host ",
      ") has not called it; its last call: none"},
     3},
    {"after_destroy",
     started([](Rank& r) { r.all_reduce_after(ncclCommDestroy(r.comm)); }),
     {"rank 0: code 4: invalid argument: ncclAllReduce after ncclCommDestroy"}},
    {"after_finalize",
     started([](Rank& r) { r.hear(ncclCommFinalize(r.comm)), r.all_reduce(); }),
     {": code 5: invalid usage: ncclAllReduce after ncclCommFinalize"}},
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
    {"too_early",
     [](Rank& r) {
       if (r.wrong()) return;
       r.begin_alone();
       r.hear(ncclAllReduce(nullptr, nullptr, 0, ncclFloat32, ncclSum, r.comm, nullptr));
     },
     {"rank 0: code 4: invalid argument: ncclAllReduce: the call before it is still "
      "in progress: wait until ncclCommGetAsyncError says ncclSuccess"}},
    {"missing_rank",
     [](Rank& r) {
       if (r.wrong()) return;
       r.begin_alone();
       std::this_thread::sleep_for(1500ms);
     },
     {"emulated-gpu: ncclCommInitRankConfig of 2 ranks has waited for 1 s: rank 1 has not called it."}},
};

class Mistakes : public ::testing::TestWithParam<Mistake> {};

TEST_P(Mistakes, AreReported) {
  const std::string reports = reports_of(GetParam().ranks, GetParam().make);
  for (const std::string& text : GetParam().says) EXPECT_SAYS(reports, text);
}

INSTANTIATE_TEST_SUITE_P(Nccl, Mistakes, ::testing::ValuesIn(mistakes),
                         [](const auto& info) { return info.param.name; });

TEST(HostNccl, CorrectProgramsCauseNoReport) {
  for (const int ranks : {2, 3, 4}) {
    std::atomic<int> done = 0;
    EXPECT_EQ(reports_of(ranks, started([&](Rank& r) {
                           r.all_reduce();
                           ncclGroupStart();
                           r.send(r.next());
                           r.receive(r.previous());
                           r.hear(ncclGroupEnd());
                           r.wait();
                           done += cudaStreamQuery(r.stream) == cudaSuccess;
                           r.hear(ncclCommDestroy(std::exchange(r.comm, nullptr)));
                         })),
              "");
    EXPECT_EQ(done, ranks);
  }
}

[[noreturn]] void leave_all_behind() {
  setenv("EMULATED_GPU_CHECK", "1", 1);
  Rank rank{0, 1, {}};
  ncclGetUniqueId(&rank.id);
  rank.start(true);
  std::exit(0);
}

TEST(HostNcclDeathTest, LeaksAreReported) {
  EXPECT_EXIT(
      leave_all_behind(), ::testing::ExitedWithCode(0),
      "emulated-gpu: leaked at exit: 1 communicator\n(.|\n)*emulated-gpu: leaked at exit: 2 buffers, 1 stream\n");
}

}  // namespace mistakes_test
