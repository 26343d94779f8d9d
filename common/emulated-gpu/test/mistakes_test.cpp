// Mistakes with NCCL, on emulated GPUs, with one thread per rank: each is reported with the call, the ranks and the
// difference.
#include <gtest/gtest.h>
#include <nccl.h>
#include <test/support/says.hpp>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
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

// What the ranks hear, and what the emulation prints. Ranks that still wait after two deadlines are aborted.
std::string reports_of(int ranks, const Make& make) {
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
    for (const auto end = std::chrono::steady_clock::now() + 2s;
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
    {"type",
     started([](Rank& r) { r.all_reduce(100, r.wrong() ? ncclInt32 : ncclFloat32); }),
     {"different types in collective", "(100 x float, sum)", "(100 x int32, sum)"}},
    {"reduction",
     started([](Rank& r) { r.all_reduce(100, ncclFloat32, r.wrong() ? ncclMax : ncclSum); }),
     {"different reductions in collective", "(100 x float, sum)", "(100 x float, max)"}},
    {"root",
     started([](Rank& r) { r.broadcast(r.wrong() ? 1 : 0); }),
     {"different roots in collective", "ncclBroadcast(100 x float, root 0)", "ncclBroadcast(100 x float, root 1)"}},
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
    {"message_type",
     started([](Rank& r) { r.wrong() ? r.receive(0, 100, ncclInt32) : r.send(1); }),
     {"different types in message number 1", "(100 x float, to rank 1)", "(100 x int32, from rank 0)"}},
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
    {"missing_rank",
     [](Rank& r) {
       if (r.wrong()) std::this_thread::sleep_for(1500ms);
       r.start();
     },
     {"emulated-gpu: ncclCommInitRank of 2 ranks has waited for 1 s: rank 1 has not called it."}},
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
                           r.hear(ncclCommDestroy(r.comm.exchange(nullptr)));
                         })),
              "");
    EXPECT_EQ(done, ranks);
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

}  // namespace mistakes_test
