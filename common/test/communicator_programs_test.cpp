// The backends of Communicator in whole programs that fail.
#include <multinode/communicator/device.hpp>
#include <test/support/emulated_gpu.hpp>
#include <test/support/faults.hpp>
#include <test/support/temporary_folder.hpp>

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <list>

namespace multinode {
namespace {

std::vector<std::string> ranks(const std::string& backend, int count, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {PATH_communicator_check, "--backend", backend});
  if (backend == "mpi") return testing::under_mpirun(count, arguments);
  arguments.insert(arguments.begin(), {COMMUNICATOR_RANKS, std::to_string(count)});
  return arguments;
}

class Ranks : public ::testing::TestWithParam<std::string> {};

TEST_P(Ranks, AWrongElementOfEachKindIsSeen) {
  const testing::Result result = testing::run(ranks(GetParam(), 3, {"--corrupt", "1"}));
  EXPECT_EQ(result.status, 1) << result.all();
  EXPECT_SAYS(result.out, " 2 wrong");
  for (const char* kind : {"broadcast", "all_reduce"}) EXPECT_SAYS(result.err, "rank 1: " + std::string(kind));
}

TEST_P(Ranks, OneThatThrowsWhileAnOperationIsUnderWayEndsAll) {
  const testing::Result result = testing::run(ranks(GetParam(), 3, {"--leave", "1"}));
  EXPECT_EQ(result.status, 1) << result.all();
  EXPECT_LT(result.seconds.count(), 50) << "it waited for the deadline";
  EXPECT_SAYS(result.err, "rank 1 (");
  EXPECT_SAYS(result.err, "all_reduce of one rank alone was in progress");
}

// Each thread announces its own operations. After all of them a rank computes for longer than the deadline.
TEST_P(Ranks, TheWorldIsUsedBesideStartedOperations) {
  const testing::Result result = testing::run(ranks(GetParam(), 2, {"--timeout", "2", "--beside", "7"}));
  EXPECT_EQ(result.status, 0) << result.all();
}

// By `scontrol suspend`, Ctrl-Z or a laptop's lid: inside collectives of the library, for longer than the timeout and
// the 5 s in which the store's server must answer.
TEST_P(Ranks, ASuspendedRunContinues) {
  const testing::TemporaryFolder folder;
  std::vector<std::string> command = ranks(GetParam(), 3, {"--timeout", "4", "--until", folder / "end"});
  command.insert(command.begin(), {SUSPEND, "6.5", "started", folder / "end"});
  const testing::Result result = testing::run(command);
  EXPECT_EQ(result.status, 0) << result.all();
}

std::vector<std::string> backends() {
  std::vector<std::string> all;
#ifdef MULTINODE_HAVE_MPI
  all.emplace_back("mpi");
#endif
#ifdef MULTINODE_HAVE_GLOO
  all.emplace_back("gloo");
#endif
  return all;
}
INSTANTIATE_TEST_SUITE_P(Communicator, Ranks, ::testing::ValuesIn(backends()),
                         [](const auto& name) { return name.param; });

#ifdef MULTINODE_HAVE_MPI
// Not by the exit status of mpirun: that of Open MPI 4.1.4 reports it, and then sometimes hangs in
// PMIx_server_finalize, when all ranks have ended.
TEST(MpiRanks, OneThatStopsInMpiFinalizeIsNamed) {
  testing::Process mpirun(ranks("mpi", 3, {"--timeout", "5", "--freeze", "1"}));
  EXPECT_TRUE(
      mpirun.wait_for("timed out after 5 s: rank [02] \\(.*\\) waits in MPI_Finalize .*; rank 1 \\(.*\\) is frozen"));
  std::vector<std::string> ended = {"0", "2"};
  if (testing::is_open_mpi()) {  // MPICH's mpirun waits for the frozen rank
    EXPECT_TRUE(mpirun.wait_for("Exit code: +1"));
    ended.emplace_back("1");
  }
  for (const std::string& rank : ended)
    EXPECT_TRUE(testing::soon([&] { return mpirun.find(testing::mpi_rank_variable(), rank) == 0; }))
        << "rank " << rank << " still runs";
}
#endif

#ifdef EMULATED_GPU
// The other ranks wait in cudaStreamSynchronize, which nothing announces.
TEST(NcclRanks, OneThatTheGpusWaitForIsNamed) {
  const std::string waits =
      "timed out after 4 s: rank [02] \\(.*\\) waits in all_reduce \\(collective number (\\d+)\\); rank 1 ";
  const std::pair<int, std::string> cases[] = {{0, waits + "\\(.*\\) is late: it is in its own code, after all_reduce"},
                                               {SIGSTOP, waits + "\\(.*\\) is frozen"},
                                               {SIGKILL, "rank 1 \\(.*\\) is gone"}};
  std::list<testing::Ranks> runs;  // they wait for their verdicts at the same time
  const std::vector<std::string> late{PATH_communicator_check, "--backend", "nccl", "--timeout", "4", "--late", "1"};
  for (const auto& [signal, named] : cases) {
    testing::Ranks& ranks = runs.emplace_back(testing::Starter::bare, 3, late, testing::on_emulated_gpus());
    ASSERT_TRUE(ranks.wait_for("waiting"));
    if (signal) ranks.signal(1, signal);
  }
  for (const auto& [signal, named] : cases) {
    const auto end = runs.front().wait();
    runs.pop_front();
    EXPECT_TRUE(end.survivors_ended) << end.output;
    EXPECT_MATCH(end.output, named);
  }
}

TEST(Refusal, NcclWithoutEmulatedGpus) {
  for (const auto& [devices, says] : {std::pair("", "set EMULATED_GPUS=N to use N emulated GPUs"),
                                      {"four", "EMULATED_GPUS must be a number of devices from 0 to 64, not 'four'"}}) {
    auto environment = testing::on_emulated_gpus();
    environment["EMULATED_GPUS"] = devices;
    const testing::Result result = testing::run({PATH_communicator_check, "--backend", "nccl"}, environment);
    EXPECT_EQ(result.status, 77) << result.all();
    EXPECT_SAYS(result.err, says);
  }
}

// Without Fabric Manager, for example. No backend must take the machine for one without a GPU.
TEST(Refusal, AGpuThatCudaCannotUse) {
  auto environment = testing::on_emulated_gpus();
  environment["EMULATED_GPU_FAULT"] = "device:802";
  for (const char* backend : {"auto", "nccl"}) {
    const testing::Result result = testing::run({PATH_communicator_check, "--backend", backend}, environment);
    EXPECT_EQ(result.status, 1) << result.all();
    EXPECT_SAYS(result.err, "cudaErrorSystemNotReady");
    EXPECT_SAYS(result.err, "is Fabric Manager running");
  }
}
#endif

TEST(Refusal, NcclWithoutAGpu) {
  if (device_count() > 0) GTEST_SKIP() << "there is a GPU";
  const testing::Result result = testing::run({PATH_communicator_check, "--backend", "nccl"});
#ifdef MULTINODE_HAVE_NCCL
  EXPECT_EQ(result.status, 77) << result.all();
#else
  EXPECT_EQ(result.status, 2) << result.all();
#endif
  EXPECT_SAYS(result.err, "--backend nccl: ");
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.all();
}

TEST(Refusal, MpiWithoutAnMpiLauncher) {
  const testing::Result result =
      testing::run({COMMUNICATOR_RANKS, "2", PATH_communicator_check, "--backend", "mpi", "--timeout", "10"});
  EXPECT_EQ(result.status, 2) << result.all();
#ifdef MULTINODE_HAVE_MPI
  EXPECT_SAYS(result.err, "start with mpirun");
#else
  EXPECT_SAYS(result.err, "libopenmpi-dev");
#endif
}

}  // namespace
}  // namespace multinode
