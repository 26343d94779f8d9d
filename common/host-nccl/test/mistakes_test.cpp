// Programs with a mistake, on the stand-in: each mistake is reported with the call, the ranks and the difference.
#include <testing/faults.hpp>
#include <testing/host_nccl.hpp>

#include <gtest/gtest.h>

#include <ostream>

namespace {

using namespace multinode::testing;
using namespace std::chrono_literals;

struct Mistake {
  std::string name;
  std::vector<std::string> says;
  int ranks = 2;
  friend void PrintTo(const Mistake& mistake, std::ostream* out) { *out << mistake.name; }
};

const std::vector<Mistake> mistakes = {
    {"count",
     {"different counts in collective number 1 of the communicator: rank 0 (host ",
      ") called ncclAllReduce(100 x float, sum), rank 1 (host ", ") called ncclAllReduce(50 x float, sum)",
      "rank 0: code 5: invalid usage: different counts", "rank 1: code 5: invalid usage: different counts"}},
    {"type", {"different types in collective", "(100 x float, sum)", "(100 x int32, sum)"}},
    {"reduction", {"different reductions in collective", "(100 x float, sum)", "(100 x float, max)"}},
    {"root",
     {"different roots in collective", "ncclBroadcast(100 x float, root 0)", "ncclBroadcast(100 x float, root 1)"}},
    {"root_out_of_range", {"rank 1: code 4: invalid argument: ncclBroadcast on rank 1: root 7 of a communicator of 2"}},
    {"order",
     {"different calls in collective number 1 of the communicator: rank 0", "ncclAllReduce(100 x float, sum)",
      "ncclBroadcast(100 x float, root 0)"}},
    {"unpaired_send",
     {"host-nccl: ncclSend(100 x float, to rank 1) of rank 0 (host ",
      ") has waited for 1 s for its ncclRecv on rank 1; that rank's last call: none"}},
    {"no_group", {" of rank 0 (host ", "Both send first: the calls of such a pair belong between ncclGroupStart and"}},
    {"no_group_end",
     {"host-nccl: a group has been open without ncclGroupEnd (its first call is ncclAllReduce(100 x "
      "float, sum)) for 1 s now",
      "ncclAllReduce(100 x float, sum), collective number 1, has waited for 1 s on rank 0; rank 1 (host ",
      ") has not called it; its last call: none",
      "host-nccl: a thread ended inside a group, without ncclGroupEnd: 1 of its calls never made"}},
    {"group_end_without_start", {"rank 0: code 5: invalid usage: ncclGroupEnd without ncclGroupStart"}},
    {"message_count",
     {"different counts in message number 1 between two ranks: rank 0",
      "called ncclSend(100 x float, to rank 1), rank 1", "called ncclRecv(50 x float, from rank 0)"}},
    {"message_type", {"different types in message number 1", "(100 x float, to rank 1)", "(100 x int32, from rank 0)"}},
    {"to_itself", {"rank 1: code 5: invalid usage: ncclSend of rank 1 with itself, without the ncclRecv in the same"}},
    {"missing_collective",
     {"ncclAllReduce(100 x float, sum), collective number 1, has waited for 1 s on ranks 0, 2; "
      "rank 1 (host ",
      ") has not called it; its last call: none"},
     3},
    {"after_destroy", {"rank 0: code 4: invalid argument: ncclAllReduce after ncclCommDestroy"}},
    {"after_abort", {"rank 0: code 4: invalid argument: ncclAllReduce after ncclCommAbort"}},
    {"after_finalize", {": code 5: invalid usage: ncclAllReduce after ncclCommFinalize"}},
    {"device", {": cudaErrorInvalidDevice: cudaSetDevice: no device 9: there are 4\n"}},
    {"same_rank", {"rank 1: code 5: invalid usage: ncclCommInitRank: rank 0 joined twice: from host "}},
    {"same_gpu", {"duplicate GPU: rank ", ") both use device 0"}},
    {"host_memory",
     {"rank 0: code 4: invalid argument: ncclAllReduce on rank 0: the send buffer: it (400 bytes at ",
      ") is not device memory"}},
    {"small_buffer",
     {"ncclAllGather on rank 0: the receive buffer: it (800 bytes at ",
      ") extends beyond its allocation of 400 bytes"}},
    {"stream_of_another_device", {"ncclAllReduce on rank 0: the stream is of device 1, the communicator's is 0"}},
    {"too_early",
     {"rank 0: code 4: invalid argument: ncclAllReduce: the call before it is still "
      "in progress: wait until ncclCommGetAsyncError says ncclSuccess"}},
    {"missing_rank", {"host-nccl: ncclCommInitRankConfig of 2 ranks has waited for 1 s: rank 1 has not called it."}},
};

class Mistakes : public testing::TestWithParam<Mistake> {};

TEST_P(Mistakes, AreReported) {
  auto environment = on_host_nccl();
  environment["HOST_NCCL_DEADLINE"] = "1";
  const Ranks::End end =
      Ranks(Starter::bare, GetParam().ranks, {PATH_nccl_mistakes, "--mistake", GetParam().name}, environment).wait();
  for (const std::string& text : GetParam().says)
    EXPECT_NE(end.output.find(text), std::string::npos) << text << "\n" << end.output;
  EXPECT_EQ(end.status, GetParam().name == "device" ? 1 : 0) << end.output;
}

INSTANTIATE_TEST_SUITE_P(Nccl, Mistakes, testing::ValuesIn(mistakes), [](const auto& info) { return info.param.name; });

TEST(HostNccl, CorrectProgramsCauseNoReport) {
  for (const int ranks : {2, 3, 4}) {
    const Ranks::End end =
        Ranks(Starter::bare, ranks, {PATH_nccl_mistakes, "--mistake", "none"}, on_host_nccl()).wait();
    EXPECT_EQ(end.status, 0) << end.output;
    EXPECT_EQ(occurrences(end.output, ": done\n"), std::size_t(ranks)) << end.output;
    EXPECT_EQ(end.output.find("host-nccl:"), std::string::npos) << end.output;
  }
}

TEST(HostNccl, WithoutDevicesThereIsNoGpu) {
  auto environment = on_host_nccl();
  environment["HOST_NCCL_DEVICES"] = "";
  const Result result = run({PATH_nccl_mistakes, "--mistake", "device"}, environment);
  EXPECT_EQ(result.status, 77) << result.all();
  EXPECT_SAYS(result.err, "no GPU; set HOST_NCCL_DEVICES=N to use N stand-ins");
  EXPECT_EQ(result.out, "");
  environment["HOST_NCCL_DEVICES"] = "four";
  EXPECT_SAYS(run({PATH_nccl_mistakes, "--mistake", "device"}, environment).err,
              "HOST_NCCL_DEVICES must be a number of devices from 0 to 64, not 'four'");
}

TEST(HostNccl, LeaksAreReported) {
  const Result result = run({PATH_nccl_mistakes, "--mistake", "left_behind"}, on_host_nccl());
  EXPECT_SAYS(result.err, "host-nccl: leaked at exit: 1 communicator\n");
  EXPECT_SAYS(result.err, "host-nccl: leaked at exit: 1 buffer, 1 stream\n");
}

}  // namespace
