#include <test/support/json_lines.hpp>
#include <test/support/program_test.hpp>
#include <test/support/temporary_folder.hpp>

#include <fmt/core.h>
#include <gtest/gtest.h>

namespace all_reduce_bench_test {

using multinode::testing::Result;
using multinode::testing::run;
using multinode::testing::under_mpirun;

Result bench(int ranks, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), PATH_all_reduce_bench);
  return run(ranks == 1 ? arguments : under_mpirun(ranks, arguments));
}

TEST(AllReduceBench, IsRightAndItsLinesHaveTheNumbersOfTheJson) {
  const multinode::testing::TemporaryFolder folder;
  for (const int ranks : {2, 3}) {
    const std::string file = folder / std::to_string(ranks);
    const Result r = bench(ranks, {"--rows", "50", "--trials", "3", "--json", file});
    EXPECT_EQ(r.status, 0) << r.all();
    const auto json = multinode::testing::json_lines(file).at(1);
    const double algbw = json.at("algbw_gb_per_s"), busbw = json.at("busbw_gb_per_s");
    EXPECT_EQ(r.out, fmt::format("all_reduce of a 0.0004 GB payload over mpi, {} ranks, mean of 3 trials:\n"
                                 "  algbw: {:.3f} GBps ({:.1f} Gbps)\n  busbw: {:.3f} GBps ({:.1f} Gbps)\n"
                                 "RIGHT: 0 elements wrong\n",
                                 ranks, algbw, 8 * algbw, busbw, 8 * busbw));
    EXPECT_DOUBLE_EQ(busbw, algbw * 2 * (ranks - 1) / ranks);
    EXPECT_EQ(json.at("payload_bytes"), 50 * 2000 * 4);
    EXPECT_EQ(json.at("ranks"), ranks);
  }
}

TEST(AllReduceBench, OneRankHasNoBusBandwidth) {
  const Result r = bench(1, {"--rows", "50"});
  EXPECT_EQ(r.status, 0) << r.all();
  EXPECT_SAYS(r.out, "busbw: n/a");
}

TEST(AllReduceBench, ASpoiledElementIsFoundInEveryTrial) {
  const Result r = bench(2, {"--rows", "50", "--warmup", "1", "--trials", "4", "--corrupt", "1"});
  EXPECT_EQ(r.status, 1) << r.all();
  EXPECT_SAYS(r.out, "WRONG: 5 elements wrong");
}

TEST(AllReduceBench, WhatDoesNotFitIsRefusedWithWhatDoes) {
  const Result r = bench(1, {"--rows", "100000000", "--columns", "1000000"});
  EXPECT_EQ(r.status, 2) << r.all();
  EXPECT_MATCH(r.err, "--rows 100000000 does not fit into memory: use at most [1-9][0-9]*");
}

}  // namespace all_reduce_bench_test
