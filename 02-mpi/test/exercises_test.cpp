// What README.md and reference.md say without showing a run: the answer to exercise 3, and lines that are not executed.
#include <testing/json_lines.hpp>
#include <testing/program_test.hpp>
#include <testing/temporary_folder.hpp>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace exercises_test {

using namespace multinode::testing;

#if defined(PATH_mnrun) && defined(PATH_all_reduce_perf) && defined(MULTINODE_HAVE_GLOO)

Result run_ranks(int ranks, std::vector<std::string> command) {
  command.insert(command.begin(), {PATH_mnrun, "--standalone", "--nproc-per-node", std::to_string(ranks)});
  return run(command);
}
std::vector<nlohmann::json> results(int ranks, std::vector<std::string> command) {
  const TemporaryFolder folder;
  const std::string file = folder / "results";
  command.insert(command.end(), {"--json", file});
  const Result result = run_ranks(ranks, command);
  EXPECT_EQ(result.status, 0) << result.all();
  std::vector<nlohmann::json> all = json_lines(file);
  std::erase_if(all, [](const auto& line) { return line.contains("fingerprint"); });
  return all;
}

// 40 GB/s on 8 ranks are 70 GB/s over each link. The programs' factors are those of the calculation.
TEST(Exercise, TheLinksOfAnAllReduce) {
  const auto all_reduce = [](double n) { return 2 * (n - 1) / n; };
  const auto all_gather = [](double n) { return (n - 1) / n; };
  EXPECT_DOUBLE_EQ(40 * all_reduce(8), 70);
  EXPECT_NEAR(70 / all_reduce(64), 35.6, 0.05);
  EXPECT_NEAR(70 / all_gather(64), 71.1, 0.05);
  const auto factor = [](const nlohmann::json& result) {
    return result.at("busbw_gb_per_s").get<double>() / result.at("algbw_gb_per_s").get<double>();
  };
  for (const nlohmann::json& result : results(2, {PATH_all_reduce_perf, "-b", "64", "-e", "64", "-g", "4"}))
    EXPECT_DOUBLE_EQ(factor(result), all_reduce(8));
  for (const nlohmann::json& result : results(1, {PATH_all_gather_perf, "-b", "64", "-e", "64", "-g", "8"}))
    EXPECT_DOUBLE_EQ(factor(result), all_gather(8));
}

TEST(Exercise, OnlyARootGetsAnything) {
  const std::vector<std::string> reduce{PATH_reduce_perf, "-b", "1K", "-e", "1K", "--corrupt", "1"};
  const Result refused = run_ranks(4, reduce);
  EXPECT_EQ(refused.status, 2) << refused.all();
  EXPECT_SAYS(refused.err, "rank 1 receives no result of reduce with root 0");
  std::vector<std::string> all_roots = reduce;
  all_roots.insert(all_roots.end(), {"-r", "all"});
  const Result corrupted = run_ranks(4, all_roots);
  EXPECT_EQ(corrupted.status, 1) << corrupted.all();
  EXPECT_SAYS(corrupted.out, "# Out of bounds values : 2 FAILED");
  EXPECT_EQ(occurrences(corrupted.err, "rank 1: block 0: element "), 2u) << corrupted.err;
}

TEST(Exercise, WholeElementsOnEveryRank) {
  const std::vector<nlohmann::json> all = results(3, {PATH_all_gather_perf, "-b", "1000", "-e", "1000"});
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(all[0].at("size_bytes"), 996);
  EXPECT_EQ(all[0].at("count"), 83);
}

#endif

}  // namespace exercises_test
