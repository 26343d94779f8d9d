// Runs the programs over NCCL, on emulated GPUs (tools/emulated-gpu): they must call NCCL correctly, report the right
// results and leave nothing behind.
#include <test/support/emulated_gpu.hpp>
#include <test/support/program_test.hpp>

#include <gtest/gtest.h>

#include <algorithm>

namespace nccl_test {

using namespace multinode::testing;
using namespace std::chrono_literals;
using Words = std::vector<std::string>;

Result over_nccl(const std::string& program, const Words& options, std::map<std::string, std::string> environment = {},
                 int processes = 1) {
  Words command = {program, "--backend", "nccl", "-b", "64", "-e", "4096", "-f", "8"};
#ifdef PATH_mnrun
  if (processes > 1)
    command.insert(command.begin(), {PATH_mnrun, "--standalone", "--nproc-per-node", std::to_string(processes)});
#endif
  command.insert(command.end(), options.begin(), options.end());
  environment.merge(on_emulated_gpus());
  return run(command, environment);
}

void expect_right(const std::string& program, const Words& options, int processes = 1) {
  SCOPED_TRACE(testing::PrintToString(options));
  const Result result = over_nccl(program, options, {}, processes);
  EXPECT_EQ(result.status, 0) << result.all();
  EXPECT_SAYS(result.out, "# Out of bounds values : 0 OK");
  EXPECT_EQ(result.err, "");  // nothing left behind
}

class EveryCollective : public testing::TestWithParam<std::string> {};

TEST_P(EveryCollective, IsRightHoweverTheRanksAreDistributed) {
  expect_right(GetParam(), {"-g", "4", "-d", "all", "-w", "0", "-n", "1"});
  expect_right(GetParam(), {});
}

#ifdef PATH_mnrun
TEST_P(EveryCollective, IsRightAmongProcesses) {
  expect_right(GetParam(), {"-w", "0", "-n", "5"}, 3);
  expect_right(GetParam(), {"-w", "0", "-n", "5", "-g", "2"}, 2);
}
#endif

INSTANTIATE_TEST_SUITE_P(Nccl, EveryCollective,
                         testing::Values(PATH_all_gather_perf, PATH_all_reduce_perf, PATH_alltoall_perf,
                                         PATH_reduce_scatter_perf, PATH_sendrecv_perf),
                         [](const auto& info) {
                           const std::string name = info.param.substr(info.param.rfind('/') + 1);
                           return name.substr(0, name.rfind("_perf"));
                         });

TEST(Nccl, ShowsNoBandwidthOfAnEmulatedGpu) {
  const Result result = over_nccl(PATH_all_reduce_perf, {"-g", "2", "-n", "2", "--json", "/dev/stderr"});
  EXPECT_EQ(result.status, 0) << result.all();
  EXPECT_TRUE(result.out.starts_with("# 4 emulated GPUs: ")) << result.all();
  EXPECT_SAYS(result.out, "# Avg bus bandwidth    : n/a\n");
  EXPECT_SAYS(result.err, "\"gpu\":\"4 emulated GPUs: ");
  EXPECT_EQ(occurrences(result.err, "\"algbw_gb_per_s\":null"), 6u) << result.all();
  EXPECT_EQ(occurrences(result.err, "\"busbw_gb_per_s\":null"), 6u) << result.all();
  EXPECT_EQ(occurrences(result.err, "bw_gb_per_s"), 12u) << result.all();
  const Result bench =
      run({PATH_all_reduce_bench, "--backend", "nccl", "--rows", "10", "--columns", "10"}, on_emulated_gpus());
  EXPECT_EQ(bench.status, 0) << bench.all();
  EXPECT_SAYS(bench.out, "  algbw, busbw: n/a on emulated GPUs\n");
  EXPECT_EQ(bench.out.find("GBps"), std::string::npos) << bench.all();
}

#ifdef PATH_mnrun
TEST(Nccl, AProcessMaySeeItsOwnGpuOnlyButNotShareIt) {  // srun --gpus-per-task 1
  for (const auto& [visible, status] : {std::pair("$LOCAL_RANK", 0), std::pair("0", 77)}) {
    const Result result =
        run({PATH_mnrun, "--standalone", "--nproc-per-node", "2", "sh", "-c",
             "CUDA_VISIBLE_DEVICES=" + std::string(visible) + " exec \"$0\" --backend nccl --rows 10 --columns 10",
             PATH_all_reduce_bench},
            on_emulated_gpus());
    EXPECT_EQ(result.status, status) << result.all();
    EXPECT_SAYS(result.all(), status == 0 ? "RIGHT: 0 elements wrong" : "NCCL needs one GPU per rank");
  }
}

TEST(Nccl, EndsWithItsAsynchronousErrors) {  // only a rank that waits for others asks NCCL for errors
  const Result result = over_nccl(PATH_all_reduce_perf, {}, {{"EMULATED_GPU_FAULT", "error:60"}}, 3);
  EXPECT_EQ(result.status, 1) << result.all();
  EXPECT_SAYS(result.err, "an error as EMULATED_GPU_FAULT asks for");
  EXPECT_LT(result.seconds, 30s) << "it waited for the deadline";
}
#endif

#if defined(PATH_mnrun) && defined(MULTINODE_HAVE_GLOO)
TEST(Nccl, IsChosenWhereEachRankHasAGpuOfItsOwn) {
  for (const auto& [gpus, backend] : {std::pair(1, "gloo"), {2, "nccl"}}) {
    const Result result = run({PATH_mnrun, "--standalone", "--nproc-per-node", "2", PATH_all_reduce_perf, "-b", "64",
                               "-e", "64", "--json", "/dev/stderr"},
                              on_emulated_gpus(gpus));
    EXPECT_EQ(result.status, 0) << result.all();
    EXPECT_SAYS(result.err, "\"backend\":\"" + std::string(backend) + "\"");
  }
}
#endif

TEST(Nccl, TakesTheOtherOptions) {
  expect_right(PATH_all_reduce_perf, {"-g", "4", "-n", "1000", "-w", "0"});  // more samples than marks
  expect_right(PATH_all_reduce_perf, {"-g", "2", "-c", "3", "-N", "2"});
}

TEST(Nccl, SeesAWrongElement) {
  const Result result = over_nccl(PATH_all_reduce_perf, {"-g", "3", "--corrupt", "2"});
  EXPECT_EQ(result.status, 1) << result.all();
  EXPECT_SAYS(result.out, "# Out of bounds values : 6 FAILED");
}

TEST(Nccl, EndsAtTheDeadlineAndAborts) {
  const Result result = over_nccl(PATH_all_reduce_perf, {"-g", "2", "--timeout", "1"},
                                  {{"EMULATED_GPU_FAULT", "stuck:60"}, {"NCCL_DEBUG", "INFO"}});
  EXPECT_EQ(result.status, 1) << result.all();
  EXPECT_SAYS(result.err, "timed out after 1 s: rank 0");
  EXPECT_SAYS(result.err, "emulated-gpu: ncclCommAbort on rank 0\n");
}

TEST(Nccl, RefusesMoreRanksThanGpus) {
  const Result result = over_nccl(PATH_all_reduce_perf, {"-g", "5"});
  EXPECT_EQ(result.status, 77) << result.all();
  EXPECT_SAYS(result.err, "shows 4 GPU(s) to this one of 1 process(es) with 5 rank(s) each");
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.all();
}

}  // namespace nccl_test
