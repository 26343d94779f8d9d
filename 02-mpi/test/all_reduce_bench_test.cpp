#include <testing/program_test.hpp>
#include <testing/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace all_reduce_bench_test {

using multinode::testing::Result;
using multinode::testing::run;
using multinode::testing::under_mpirun;

const std::string program = PATH_all_reduce_bench;

Result bench(int ranks, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), program);
  return run(ranks == 1 ? arguments : under_mpirun(ranks, arguments));
}

TEST(AllReduceBench, IsRightAndPrintsItsLines) {
  for (const int ranks : {2, 3}) {
    const Result r = bench(ranks, {"--rows", "50", "--trials", "3"});
    EXPECT_EQ(r.status, 0) << r.all();
    EXPECT_TRUE(std::regex_search(
        r.out, std::regex("payload over \\w+, " + std::to_string(ranks) +
                          " ranks, mean of 3 trials:\n  algbw: [0-9.]+ GBps \\([0-9.]+ Gbps\\)\n  busbw: [0-9.]+ "
                          "GBps \\([0-9.]+ Gbps\\)\nRIGHT: 0 elements wrong\n")))
        << r.out;
  }
}

TEST(AllReduceBench, OneRankHasNoBusBandwidth) {
  const Result r = bench(1, {"--rows", "50"});
  EXPECT_EQ(r.status, 0) << r.all();
  EXPECT_NE(r.out.find("busbw: n/a"), std::string::npos) << r.out;
}

TEST(AllReduceBench, ASpoiledElementIsFoundInEveryTrial) {
  const Result r = bench(2, {"--rows", "50", "--warmup", "1", "--trials", "4", "--corrupt", "1"});
  EXPECT_EQ(r.status, 1) << r.all();
  EXPECT_NE(r.out.find("WRONG: 5 elements wrong"), std::string::npos) << r.out;
}

TEST(AllReduceBench, WhatDoesNotFitIsRefusedWithWhatDoes) {
  const Result r = bench(1, {"--rows", "100000000", "--columns", "1000000"});
  EXPECT_EQ(r.status, 2) << r.all();
  EXPECT_TRUE(
      std::regex_search(r.err, std::regex("--rows 100000000 does not fit into memory: use at most [1-9][0-9]*")))
      << r.err;
}

TEST(AllReduceBench, TheJsonHasTheSameNumbers) {
  const multinode::testing::TemporaryFolder folder;
  const std::string file = folder / "bench.json";
  const Result r = bench(2, {"--rows", "50", "--json", file});
  ASSERT_EQ(r.status, 0) << r.all();
  std::ifstream in(file);
  std::string line;
  ASSERT_TRUE(std::getline(in, line) && std::getline(in, line));
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json.at("payload_bytes"), 50 * 2000 * 4);
  EXPECT_EQ(json.at("ranks"), 2);
  char text[64];
  std::snprintf(text, sizeof text, "busbw: %.3f GBps", json.at("busbw_gb_per_s").get<double>());
  EXPECT_NE(r.out.find(text), std::string::npos) << r.out << text;
}

}  // namespace all_reduce_bench_test
