// The NCCL side of the programs, built with a stand-in for CUDA and NCCL (stand_in_gpus.cpp): that the calls are made
// as they should be, their times and results go where they belong, and nothing is left behind.
#include <testing/program_test.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>

namespace {

using namespace multinode::testing;
using namespace std::chrono_literals;
using Words = std::vector<std::string>;

Result over_nccl(const std::string& program, const Words& options,
                 const std::map<std::string, std::string>& environment = {}) {
  Words command = {program, "--backend", "nccl", "-b", "64", "-e", "4096", "-f", "8"};
  command.insert(command.end(), options.begin(), options.end());
  return run(command, environment);
}

void expect_right(const std::string& program, const Words& options) {
  SCOPED_TRACE(testing::PrintToString(options));
  const Result result = over_nccl(program, options);
  EXPECT_EQ(result.status, 0) << result.all();
  EXPECT_NE(result.out.find("# Out of bounds values : 0 OK"), std::string::npos) << result.all();
  EXPECT_EQ(result.err, "");  // nothing left behind
}

class EveryCollective : public testing::TestWithParam<std::string> {};

TEST_P(EveryCollective, IsRightHoweverTheRanksAreDistributed) {
  expect_right(GetParam(), {"-g", "4", "-d", "all", "-o", "all", "-r", "all"});
  expect_right(GetParam(), {"-g", "2", "-u", "1", "-m", "2"});
  expect_right(GetParam(), {"-t", "4", "-u", "3"});
  expect_right(GetParam(), {"-t", "2", "-g", "2", "-p", "1", "-R", "1"});
  expect_right(GetParam(), {"-t", "4", "-G", "3", "-m", "2"});
  expect_right(GetParam(), {"-g", "2", "-y", "1"});
  expect_right(GetParam(), {});
}

INSTANTIATE_TEST_SUITE_P(Nccl, EveryCollective,
                         testing::Values(PATH_all_gather_stand_in, PATH_all_reduce_stand_in, PATH_alltoall_stand_in,
                                         PATH_broadcast_stand_in, PATH_gather_stand_in, PATH_hypercube_stand_in,
                                         PATH_reduce_stand_in, PATH_reduce_scatter_stand_in, PATH_scatter_stand_in,
                                         PATH_sendrecv_stand_in),
                         [](const auto& info) {
                           const std::string name = info.param.substr(info.param.rfind('/') + 1);
                           return name.substr(0, name.rfind("_stand_in"));
                         });

TEST(Nccl, TakesTheOtherOptions) {
  const std::string program = PATH_all_reduce_stand_in;
  expect_right(program, {"-t", "2", "-z", "1"});
  expect_right(program, {"-g", "4", "-n", "1000", "-I", "1", "-w", "0"});  // more samples than marks
  expect_right(program, {"-t", "2", "-C", "1", "-c", "3", "-N", "2"});
  expect_right(program, {"-g", "2", "-R", "2"});
  const Result report = over_nccl(program, {"-M", "1"});
  EXPECT_NE(report.out.find("# GPU memory of rank 0: NCCL 0 MiB"), std::string::npos) << report.all();
}

TEST(Nccl, SeesAWrongElement) {
  for (const Words& ranks : {Words{"-g", "3"}, Words{"-t", "3"}}) {
    Words options = ranks;
    options.insert(options.end(), {"--corrupt", "2"});
    const Result result = over_nccl(PATH_all_reduce_stand_in, options);
    EXPECT_EQ(result.status, 1) << result.all();
    EXPECT_NE(result.out.find("# Out of bounds values : 6 FAILED"), std::string::npos) << result.all();
  }
}

TEST(Nccl, EndsAtTheDeadlineAndAborts) {
  for (const Words& ranks : {Words{"-g", "2"}, Words{"-t", "2"}, Words{"-G", "2"}, Words{"-t", "2", "-z", "1"}}) {
    Words options = ranks;
    options.insert(options.end(), {"--timeout", "1"});
    const Result result = over_nccl(PATH_all_reduce_stand_in, options, {{"STAND_IN_STUCK", "60"}});
    EXPECT_EQ(result.status, 1) << result.all();
    EXPECT_NE(result.err.find("timed out after 1 s: rank 0"), std::string::npos) << result.all();
    EXPECT_NE(result.err.find("rank 0 is aborted"), std::string::npos) << result.all();
    EXPECT_LT(result.seconds, 10s);
  }
}

TEST(Nccl, EndsWithItsAsynchronousErrors) {
  // Only a rank that has to wait asks: there is nothing to wait for in one thread.
  const Result result =
      over_nccl(PATH_all_reduce_stand_in, {"-t", "3"}, {{"STAND_IN_ERROR", "0"}, {"STAND_IN_STUCK", "60"}});
  EXPECT_EQ(result.status, 1) << result.all();
  EXPECT_NE(result.err.find("NCCL: an error of the stand-in"), std::string::npos) << result.all();
  EXPECT_LT(result.seconds, 10s);
}

TEST(Nccl, RefusesWhatItCannotDo) {
  const auto expect_refused = [](const Words& options, int status, const std::string& why) {
    const Result result = over_nccl(PATH_all_reduce_stand_in, options);
    EXPECT_EQ(result.status, status) << result.all();
    EXPECT_NE(result.err.find(why), std::string::npos) << result.all();
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.all();
  };
  expect_refused({"-g", "5"}, 77, "has 4 GPU(s) for 1 process(es) of 5 rank(s): NCCL wants one for each rank");
  expect_refused({"-G", "1", "-y", "1"}, 2, "-G: CUDA cannot capture the default stream: leave out -y");
  expect_refused({"-G", "1", "-z", "1"}, 2, "-G: nothing can be waited for inside a CUDA graph: leave out -z");
  expect_refused({"-G", "1", "-g", "2"}, 2, "-G: launching a graph may block");
  expect_refused({"--mpi-calls", "persistent"}, 2, "--mpi-calls: this is --backend nccl");
}

}  // namespace
