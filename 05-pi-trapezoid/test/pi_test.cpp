// pi as a user runs it.
#include "recorded.hpp"

#include <testing/faults.hpp>
#include <testing/json_lines.hpp>
#include <testing/program_test.hpp>
#include <testing/temporary_folder.hpp>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
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
  std::string kill_one_of_three(int last_trial) {
    return kill_one(GetParam().starter, 3, endless(), "trial (\\d+) of", 1, last_trial, random_);
  }

 private:
  std::mt19937 random_{std::random_device{}()};
};

std::string bits(const std::string& output) {
  std::smatch match;
  const std::regex line("pi = .* = (0x\\S+) with n = (\\d+), hash of all blocks (.*)");
  if (!std::regex_search(output, match, line)) return "no answer";
  return match[1].str() + " " + match[3].str();
}

std::string bits_of(std::int64_t n) {
  for (const Recorded& r : recorded)
    if (r.n == n) {
      char text[64];
      std::snprintf(text, sizeof text, "%a %016llx", r.answer, static_cast<unsigned long long>(r.hash));
      return text;
    }
  return "not recorded";
}

TEST_P(Pi, HasTheSameBitsForEveryNumberOfProcesses) {
  for (const int ranks : {1, 2, 3, 4, 5, 7, 8}) {
    const Ranks::End end = run(ranks, {"--n", "1e7", "--warmup", "0", "--trials", "1"});
    EXPECT_EQ(end.status, 0) << end.output;
    EXPECT_EQ(bits(end.output), bits_of(10'000'000)) << end.output;
    EXPECT_SAYS(end.output, "Total number of processes: " + std::to_string(ranks) + "\n");
  }
}

TEST_P(Pi, HasTheSameBitsForThreadsAndMoreProcessesThanBlocks) {
  EXPECT_EQ(bits(run(3, {"--n", "1e7", "--threads", "3", "--trials", "2"}).output), bits_of(10'000'000));
  EXPECT_EQ(bits(run(3, {"--n", "1000"}).output), bits_of(1'000));
  EXPECT_EQ(run(2, {"--n", "1"}).status, 0);
}

TEST_P(Pi, ALostBlockIsSeen) {
  const Ranks::End end = run(3, {"--n", "1e7", "--corrupt", "2", "--warmup", "0", "--trials", "1"});
  EXPECT_EQ(end.status, 1) << end.output;
  EXPECT_SAYS(end.output, "is rounding: WRONG");
}

TEST_P(Pi, AKilledRankEndsAllAndIsNamed) { EXPECT_EQ(kill_one_of_three(50), ""); }

// The mean of the times that rank 0 printed for its trials, and what is printed as the average.
std::pair<double, double> mean_and_average(const std::string& output) {
  std::vector<double> seconds;
  const std::regex trial("trial \\d of \\d: (\\S+) s");
  for (std::sregex_iterator match(output.begin(), output.end(), trial), end; match != end; ++match)
    seconds.push_back(std::stod((*match)[1]));
  std::smatch match;
  if (seconds.empty() || !std::regex_search(output, match, std::regex("AVG Time: (\\S+)"))) return {-1, -2};
  return {std::accumulate(seconds.begin(), seconds.end(), 0.0) / double(seconds.size()), std::stod(match[1])};
}

// All ranks take about as long. The original's sum over 4 ranks would be 4 times as long.
TEST_P(Pi, TheAverageIsNotASum) {
  const Ranks::End end = run(4, {"--n", "1e8", "--warmup", "1"});
  const auto [mean, average] = mean_and_average(end.output);
  EXPECT_LT(average, 2.5 * mean) << end.output;
  EXPECT_GT(average, 0.4 * mean) << end.output;
}

class PiSlow : public Pi {};

TEST_P(PiSlow, AKilledRankEndsAllAndIsNamedTwentyOfTwentyTimes) {
  for (int i = 0; i < 20; ++i) EXPECT_EQ(kill_one_of_three(200), "");
}

TEST_P(PiSlow, AStoppedRankIsNamed) {
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
INSTANTIATE_TEST_SUITE_P(By, PiSlow, ::testing::ValuesIn(ways()), name_of_way);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PiSlow);

TEST(PiAlone, TheAverageIsTheMeanOfTheTrials) {
  const Result result = run({PATH_pi, "--n", "3e7", "--trials", "4"});
  const auto [mean, average] = mean_and_average(result.out);
  EXPECT_NEAR(average, mean, 2e-6) << result.out;
}

TEST(PiAlone, WritesJson) {
  const TemporaryFolder folder;
  const auto path = folder / "pi.json";
  ASSERT_EQ(run({PATH_pi, "--n", "1000", "--trials", "3", "--json", path}).status, 0);
  const auto lines = json_lines(path);
  EXPECT_EQ(lines.at(0).at("fingerprint").at("program"), "pi");
  const auto& result = lines.at(1);
  EXPECT_EQ(result.at("result").get<double>(), recorded[1].answer);
  EXPECT_EQ(result.at("bits"), "0x1.921fb3de58d98p+1");
  EXPECT_EQ(result.at("n"), 1000);
  EXPECT_EQ(result.at("processes"), 1);
  EXPECT_EQ(result.at("trials"), 3);
  EXPECT_TRUE(result.at("right").get<bool>());
  ASSERT_EQ(result.at("ranks").size(), 1U);
  EXPECT_EQ(result.at("ranks")[0].at("rank"), 0);
  EXPECT_LE(result.at("ranks")[0].at("fastest_seconds"), result.at("ranks")[0].at("seconds"));
  EXPECT_EQ(lines.size(), 2u);
}

TEST(PiAlone, RefusesAWrongCommandLineInOneLine) {
  const std::pair<std::vector<std::string>, std::string> wrong[] = {
      {{"--n", "1.5e9"}, "--n must be a whole number such as 1000000, 1e9 or 64M, not '1.5e9'"},
      {{"--n", "0"}, "--n must be from 1 to 1000000000000, not 0"},
      {{"--trials", "0"}, "--trials must be from 1 to"},
      {{"--threads", "0"}, "--threads must be from 1 to 1024, not 0"},
      {{"--isa", "mmx"}, "--isa must be auto, "},
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

// At the tutorial's size, and as the tutorial has it.
constexpr const char* answer_of_1e9 = "0x1.921fb54442d18p+1";

TEST(PiAloneSlow, TheInnerLoopIsAsFastAsTheDivisionUnitAllows) {
#if !defined(NDEBUG) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "not an optimised build";
#endif
  const Result result = run({PATH_pi, "--bench"});
  EXPECT_EQ(result.status, 0) << result.all();
  EXPECT_SAYS(result.out, "fast enough");
}

TEST(PiTutorialSlow, IsRightAtTheTutorialsSize) {
  for (const std::string n : {"1e8", "999999937", "1e9"}) {
    const Result result = run({PATH_pi, "--n", n, "--warmup", "0", "--trials", "1"}, {}, 300s);
    EXPECT_EQ(result.status, 0) << result.all();
    EXPECT_EQ(result.out.find(answer_of_1e9) != std::string::npos, n == "1e9") << result.out;
  }
}

[[maybe_unused]] void expect_forty(const Result& result) {
  EXPECT_EQ(result.status, 0) << result.all();
  EXPECT_SAYS(result.out, "Total number of processes: 40\n");
  EXPECT_SAYS(result.out, answer_of_1e9);
}

#ifdef MULTINODE_HAVE_MPI
TEST(PiTutorialSlow, FortyProcessesByMpirun) {
  expect_forty(run(under_mpirun(40, {PATH_pi, "--backend", "mpi", "--timeout", "300"}), {}, 500s));
}
#endif

#if defined(MULTINODE_HAVE_GLOO) && defined(PATH_mnrun)
TEST(PiTutorialSlow, TwentyProcessesOnEachOfTwoNodesByMnrun) {
  const FreePort free_port;
  const std::string port = std::to_string(free_port.number());
  const auto node = [&](const char* rank) {
    return std::vector<std::string>{PATH_mnrun,  "--nnodes",      "2",         "--nproc-per-node",
                                    "20",        "--node-rank",   rank,        "--master-addr",
                                    "127.0.0.1", "--master-port", port,        PATH_pi,
                                    "--backend", "gloo",          "--timeout", "300"};
  };
  Process second(node("1"));
  expect_forty(run(node("0"), {}, 500s));
  EXPECT_EQ(second.wait().status, 0);
}
#endif

}  // namespace
