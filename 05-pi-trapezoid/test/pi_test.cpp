// pi as a user runs it.
#include <test/support/faults.hpp>
#include <test/support/json_lines.hpp>
#include <test/support/program_test.hpp>
#include <test/support/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <ostream>
#include <random>

namespace {

using namespace multinode::testing;
using namespace std::chrono_literals;

// Every way to start pi that this build has.
struct Way {
  Starter starter;
  std::string backend;
  friend std::ostream& operator<<(std::ostream& out, const Way& way) {  // for the tests' names
    return out << name_of(way.starter) << ", " << way.backend;
  }
};

std::vector<Way> ways() {
  std::vector<Way> all;
#ifdef MULTINODE_HAVE_MPI
  all.push_back({Starter::mpirun, "mpi"});
#endif
#ifdef MULTINODE_HAVE_GLOO
  all.push_back({Starter::bare, "gloo"});
#ifdef PATH_mnrun
  setenv("MNRUN", PATH_mnrun, 1);
  all.push_back({Starter::mnrun, "gloo"});
#endif
#endif
  return all;
}

class Pi : public ::testing::TestWithParam<Way> {
 protected:
  std::vector<std::string> command(std::vector<std::string> options) const {
    options.insert(options.begin(), {PATH_pi, "--backend", GetParam().backend});
    return options;
  }
  std::vector<std::string> endless() const { return command({"--n", "1e6", "--trials", "1000000000"}); }
  Ranks::End run(int ranks, const std::vector<std::string>& options) const {
    return Ranks(GetParam().starter, ranks, command(options)).wait();
  }
};

constexpr const char* answer_of_1000 = "0x1.921fb3de58d98p+1 with n = 1000, hash of all blocks 1a29386ac20a2539\n";
constexpr const char* answer_of_1e7 = "0x1.921fb54442d15p+1 with n = 10000000, hash of all blocks a5d441b79ccbf4c8\n";
constexpr const char* answer_of_1e9 = "0x1.921fb54442d18p+1 with n = 1000000000,";

TEST_P(Pi, HasTheSameBitsForEveryNumberOfProcesses) {
  const bool quick = GetParam().starter == Starter::bare;
  for (const int ranks : quick ? std::vector{1, 2, 3, 4, 5, 7, 8} : std::vector{5}) {
    const Ranks::End end = run(ranks, {"--n", "1e7", "--warmup", "0", "--trials", "1"});
    EXPECT_EQ(end.status, 0) << end.output;
    EXPECT_SAYS(end.output, answer_of_1e7);
    EXPECT_SAYS(end.output, "Total number of processes: " + std::to_string(ranks) + "\n");
  }
}

TEST_P(Pi, HasTheSameBitsForThreadsAndMoreProcessesThanBlocks) {
  EXPECT_SAYS(run(3, {"--n", "1e7", "--threads", "3", "--trials", "2"}).output, answer_of_1e7);
  EXPECT_SAYS(run(3, {"--n", "1000"}).output, answer_of_1000);
  EXPECT_EQ(run(2, {"--n", "1"}).status, 0);
}

TEST_P(Pi, ALostBlockIsSeen) {
  const Ranks::End end = run(3, {"--n", "1e7", "--corrupt", "2", "--warmup", "0", "--trials", "1"});
  EXPECT_EQ(end.status, 1) << end.output;
  EXPECT_SAYS(end.output, "is rounding: WRONG");
}

TEST_P(Pi, AKilledRankEndsAllAndIsNamed) {
  const char* const times = std::getenv("MULTINODE_KILLS");  // a campaign sets 20
  std::mt19937 random(std::random_device{}());
  for (int left = times ? std::atoi(times) : 1; left > 0; --left)
    EXPECT_EQ(kill_one(GetParam().starter, 3, endless(), "trial (\\d+) of", 1, 50, random), "");
}

// The mean of the times that rank 0 printed for its trials, and the average that it printed.
std::pair<double, double> mean_and_average(const std::string& output) {
  std::vector<double> seconds;
  for (const Match& trial : matches_in(output, "trial \\d of \\d: (\\S+) s")) seconds.push_back(std::stod(trial[1]));
  const Match average = match_in(output, "AVG Time: (\\S+)");
  if (seconds.empty() || average.empty()) return {-1, -2};
  return {std::accumulate(seconds.begin(), seconds.end(), 0.0) / double(seconds.size()), std::stod(average[1])};
}

// All ranks take about the same time. The original prints the sum over the ranks, here 4 times as much.
TEST_P(Pi, TheAverageIsNotASum) {
  const Ranks::End end = run(4, {"--n", "1e8", "--warmup", "1"});
  const auto [mean, average] = mean_and_average(end.output);
  EXPECT_LT(average, 2.5 * mean) << end.output;
  EXPECT_GT(average, 0.4 * mean) << end.output;
}

TEST_P(Pi, AStoppedRankIsNamed) {
  auto command = endless();
  command.insert(command.end(), {"--timeout", "2"});
  Ranks ranks(GetParam().starter, 3, command);
  ASSERT_TRUE(ranks.wait_for("trial (10) of"));
  ranks.signal(1, SIGSTOP);
  const Ranks::End end = ranks.wait();
  EXPECT_EQ(end.status, 1) << end.output;
  EXPECT_SAYS(end.output, "; rank 1 (host ");
}

std::string name_of_way(const ::testing::TestParamInfo<Way>& way) {
  return name_of(way.param.starter) + "_" + way.param.backend;
}
INSTANTIATE_TEST_SUITE_P(By, Pi, ::testing::ValuesIn(ways()), name_of_way);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Pi);

TEST(PiAlone, WritesJson) {
  const TemporaryFolder folder;
  const auto path = folder / "pi.json";
  ASSERT_EQ(run({PATH_pi, "--n", "1000", "--trials", "3", "--json", path}).status, 0);
  const auto lines = json_lines(path);
  EXPECT_EQ(lines.at(0).at("fingerprint").at("program"), "pi");
  const auto& result = lines.at(1);
  EXPECT_EQ(result.at("result").get<double>(), 0x1.921fb3de58d98p+1);
  EXPECT_EQ(result.at("bits"), "0x1.921fb3de58d98p+1");
  EXPECT_EQ(result.at("n"), 1000);
  EXPECT_EQ(result.at("processes"), 1);
  EXPECT_EQ(result.at("trials"), 3);
  EXPECT_TRUE(result.at("right").get<bool>());
  ASSERT_EQ(result.at("ranks").size(), 1U);
  EXPECT_EQ(result.at("ranks")[0].at("rank"), 0);
  EXPECT_LE(result.at("ranks")[0].at("fastest_seconds"), result.at("ranks")[0].at("seconds"));
  EXPECT_GE(result.at("ranks")[0].at("waited_seconds"), 0);
  EXPECT_EQ(lines.size(), 2u);
}

TEST(PiAlone, StartsItsThreads) {
  const Process pi({PATH_pi, "--n", "1e9", "--trials", "1000", "--threads", "40"});
  const std::string threads = "/proc/" + std::to_string(pi.pid()) + "/task";
  EXPECT_TRUE(soon([&] { return std::ranges::distance(std::filesystem::directory_iterator(threads)) >= 40; }));
  pi.signal(SIGKILL);
}

TEST(PiAlone, RefusesAWrongCommandLineInOneLine) {
  const std::pair<std::vector<std::string>, std::string> wrong[] = {
      {{"--n", "1.5"}, "--n must be a whole number from 1 to 1000000000000, such as 1000000, 1e9 or 64M, not '1.5'"},
      {{"--n", "0"}, "--n must be a whole number"},
      {{"--n", "1024G"}, "--n must be a whole number"},
      {{"--n", "64m"}, "--n must be a whole number"},
      {{"--n", "1e9x"}, "--n must be a whole number"},
      {{"--n", "nan"}, "--n must be a whole number"},
      {{"--trials", "0"}, "--trials must be from 1 to"},
      {{"--threads", "0"}, "--threads must be from 1 to 1024, not 0"},
      {{"--device", "tpu"}, "--device must be auto, cpu or gpu, not 'tpu'"},
      {{"--corrupt", "1", "--n", "1e7"}, "--corrupt 1: that rank has no block"},
      {{"--backend", "carrier-pigeon"}, "carrier-pigeon"},
      {{"--trails", "3"}, "--trails"},
      {{"1e9"}, "only options"},
      {{"--json", "/nonexistent/folder/file"}, "/nonexistent/folder/file"},
  };
  for (const auto& [options, says] : wrong) {
    std::vector<std::string> command{PATH_pi};
    command.insert(command.end(), options.begin(), options.end());
    const Result result = run(command);
    EXPECT_EQ(result.status, 2) << result.all();
    EXPECT_SAYS(result.err, says);
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_EQ(result.out, "");
  }
}

TEST(PiTutorialSlow, IsRightAtTheTutorialsSize) {
  for (const std::string n : {"999999937", "1e9"}) {
    const Result result = run({PATH_pi, "--n", n, "--warmup", "0", "--trials", "1"}, {}, 300s);
    EXPECT_EQ(result.status, 0) << result.all();
    EXPECT_EQ(result.out.find(answer_of_1e9) != std::string::npos, n == "1e9") << result.out;
  }
}

}  // namespace
