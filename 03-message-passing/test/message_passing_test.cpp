// The check of a block, and the programs as a user runs them.
#include <message_passing/exchange.hpp>

#include <test/support/emulated_gpu.hpp>
#include <test/support/faults.hpp>
#include <test/support/json_lines.hpp>
#include <test/support/program_test.hpp>
#include <test/support/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <list>
#include <ostream>
#include <vector>

namespace message_passing_test {

using namespace multinode::testing;
using namespace std::chrono_literals;

TEST(Exchange, EveryDamageShows) {
  std::vector<std::int32_t> block(1001);
  fill(block, 2, 7);
  EXPECT_EQ(count_wrong(block, 2, 7), 0u);
  EXPECT_GT(count_wrong(block, 1, 7), 900u) << "another rank's block";
  EXPECT_GT(count_wrong(block, 2, 6), 900u) << "an earlier round's block";
  EXPECT_GT(count_wrong(std::span(block).subspan(1), 2, 7), 900u) << "a shifted block";
  for (const std::size_t i : {0u, 500u, 1000u}) {
    block[i] ^= 1 << 30;
    EXPECT_EQ(count_wrong(block, 2, 7), 1u) << "one bit of element " << i;
    block[i] ^= 1 << 30;
  }
}

struct Way {
  Starter starter;
  std::string program;

  std::string name() const { return name_of(starter) + program.substr(program.rfind('_')); }
  friend void PrintTo(const Way& way, std::ostream* out) { *out << way.name(); }
};

// All combinations of launcher and program in this build.
std::vector<Way> ways() {
  std::vector<Way> all;
#ifdef PATH_message_passing_mpi
  all.push_back({Starter::mpirun, PATH_message_passing_mpi});
#endif
#ifdef PATH_message_passing_gloo
  all.push_back({Starter::bare, PATH_message_passing_gloo});
#ifdef PATH_mnrun
  setenv("MNRUN", PATH_mnrun, 1);
  all.push_back({Starter::mnrun, PATH_message_passing_gloo});
#endif
#endif
#if defined(PATH_message_passing_nccl) && defined(EMULATED_GPU)  // on emulated GPUs
  all.push_back({Starter::bare, PATH_message_passing_nccl});
#ifdef MULTINODE_HAVE_MPI
  all.push_back({Starter::mpirun, PATH_message_passing_nccl});
#endif
#endif
  return all;
}

// With the first launcher of each program only.
std::vector<Way> one_way_per_program() {
  std::vector<Way> some;
  for (const Way& way : ways())
    if (std::ranges::find(some, way.program, &Way::program) == some.end()) some.push_back(way);
  return some;
}

int repetitions(int usual) {
  const char* times = std::getenv("MULTINODE_KILLS");  // a campaign sets 20
  return times ? std::atoi(times) : usual;
}

class MessagePassing : public ::testing::TestWithParam<Way> {
 protected:
#ifdef EMULATED_GPU
  void SetUp() override {
    if (!GetParam().program.ends_with("_nccl")) return;
    for (const auto& [name, value] : on_emulated_gpus(7)) setenv(name.c_str(), value.c_str(), 1);
  }
  void TearDown() override {
    for (const auto& [name, value] : on_emulated_gpus()) unsetenv(name.c_str());
  }
#endif
  Ranks::End run(int ranks, std::vector<std::string> options, std::chrono::milliseconds timeout = patience) {
    options.insert(options.begin(), GetParam().program);
    return Ranks(GetParam().starter, ranks, options).wait(timeout);
  }
};

class OneLauncher : public MessagePassing {};  // for what does not depend on the launcher

TEST_P(MessagePassing, EveryRankHasReceived) {
  for (const int ranks : {2, 4, 7}) {
    const Ranks::End end = run(ranks, {});
    EXPECT_EQ(end.status, 0) << end.output;
    for (int peer = 1; peer < ranks; ++peer) {
      EXPECT_EQ(occurrences(end.output, "Rank 0 sent data to Rank " + std::to_string(peer) + "\n"), 1u) << end.output;
      EXPECT_EQ(occurrences(end.output, "Rank " + std::to_string(peer) + " has received data from rank 0"), 1u);
    }
    EXPECT_SAYS(end.output, "RIGHT: 0 of " + std::to_string(1000 * (ranks - 1)) + " elements wrong");
  }
}

TEST_P(OneLauncher, OneElementAndLargeBlocks) {
  EXPECT_SAYS(run(2, {"--count", "1"}).output, "RIGHT: 0 of 1 elements wrong");
  EXPECT_SAYS(run(3, {"--count", "4M", "--rounds", "2"}).output, "RIGHT: 0 of 16777216 elements wrong");
}

TEST_P(OneLauncher, ACorruptedElementIsFoundAndWritten) {
  const TemporaryFolder folder;
  const Ranks::End end = run(3, {"--corrupt", "2", "--json", folder / "results"});
  EXPECT_EQ(end.status, 1) << end.output;
  EXPECT_SAYS(end.output, "rank 2: element 500 is ");
  EXPECT_SAYS(end.output, "WRONG: 1 of 2000 elements wrong");
  const std::vector<nlohmann::json> lines = json_lines(folder / "results");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].at("fingerprint").at("world_size"), 3);
  EXPECT_EQ(lines[1], (nlohmann::json{{"checked", 2000}, {"right", false}, {"wrong", 1}}));
}

TEST_P(OneLauncher, AMuteRankIsNamed) {
  const auto start = [](const char* count) {
    return Ranks(GetParam().starter, 3, {GetParam().program, "--mute", "1", "--timeout", "5", "--count", count});
  };
  Ranks small = start("1"), large = start("1M");
  for (Ranks* const ranks : {&small, &large}) {
    const Ranks::End end = ranks->wait();
    EXPECT_TRUE(end.survivors_ended) << end.output;
    EXPECT_EQ(end.status, 1) << end.output;
    EXPECT_SAYS(end.output, "timed out after 5 s: rank ");
    EXPECT_SAYS(end.output, "; rank 1 (host ");
    EXPECT_EQ(occurrences(end.output, "timed out after"), 1u) << end.output;
  }
}

TEST_P(OneLauncher, AStoppedRankIsNamed) {
  if (GetParam().starter == Starter::mpirun && !is_open_mpi())
    GTEST_SKIP() << "MPICH's mpirun waits for the frozen rank";
  const std::vector<std::string> endless{GetParam().program, "--rounds", "100000000", "--timeout", "5"};
  for (int i = 0; i < repetitions(1); ++i) {
    std::list<Ranks> runs;  // they wait for their verdicts at the same time
    for (const int stopped : {1, 2}) {
      Ranks& ranks = runs.emplace_back(GetParam().starter, 3, endless);
      ASSERT_TRUE(ranks.wait_for("round (100) of"));
      ranks.signal(stopped, SIGSTOP);
    }
    for (const int stopped : {1, 2}) {
      const Ranks::End end = runs.front().wait();
      runs.pop_front();
      EXPECT_TRUE(end.survivors_ended) << end.output.substr(end.output.size() - 2000);
      EXPECT_SAYS(end.output.substr(end.output.rfind("timed out")), "; rank " + std::to_string(stopped) + " (host ");
      EXPECT_SAYS(end.output, "is frozen");
    }
  }
}

TEST_P(MessagePassing, AKilledRankIsNamedAndEndsTheOthers) {
  std::mt19937 random(20261121);
  std::string record;
  for (int i = 0; i < repetitions(3); ++i)
    EXPECT_EQ(kill_one(GetParam().starter, 4, {GetParam().program, "--rounds", "100000000"}, "round (\\d+) of", 10, 500,
                       random, &record),
              "");
  std::cout << record;
}

TEST_P(OneLauncher, BadCommandLinesAreRefused) {
  const struct {
    std::vector<std::string> options;
    std::string says;
    int ranks = 2;
  } cases[] = {{{"--cuont", "8"}, "unrecognised option '--cuont'"},
               {{"--count", "0"}, "--count must be from 1"},
               {{"--rounds", "0"}, "--rounds must be from 1"},
               {{"--mute", "2"}, "--mute must be from 1 to 1, not 2"},
               {{"--corrupt", "0"}, "--corrupt must be from 1 to 1, not 0"},
               {{"--backend", "horse"}, "--backend horse: this program shows"},
               {{"--json", "/nowhere/file"}, "/nowhere/file"},
               {{}, "needs 2 ranks or more", 1}};
  for (const auto& c : cases) {
    const Ranks::End end = run(c.ranks, c.options);
    EXPECT_EQ(end.status, 2) << end.output;
    EXPECT_EQ(occurrences(end.output, c.says), 1u) << c.says << "\n" << end.output;
  }
}

INSTANTIATE_TEST_SUITE_P(By, MessagePassing, ::testing::ValuesIn(ways()),
                         [](const auto& info) { return info.param.name(); });
INSTANTIATE_TEST_SUITE_P(By, OneLauncher, ::testing::ValuesIn(one_way_per_program()),
                         [](const auto& info) { return info.param.name(); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MessagePassing);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OneLauncher);

#if defined(PATH_message_passing_mpi) && defined(PATH_mnrun)
TEST(MessagePassingMpi, UnderAPlainAgentSaysWhatToUse) {
  setenv("MNRUN", PATH_mnrun, 1);
  const Ranks::End end = Ranks(Starter::mnrun, 2, {PATH_message_passing_mpi}).wait();
  EXPECT_EQ(end.status, 2) << end.output;
  EXPECT_SAYS(end.output, "start it with mpirun, or srun --mpi=pmix");
}
#endif

#ifdef PATH_message_passing_nccl
TEST(MessagePassingNccl, WithoutAGpuSays77) {
  const Ranks::End end = Ranks(Starter::bare, 2, {PATH_message_passing_nccl}).wait();
  if (end.status == 0) GTEST_SKIP() << "there is a GPU here";
  EXPECT_EQ(end.status, 77) << end.output;
  EXPECT_SAYS(end.output, "has no GPU that can be used");
}
#endif

}  // namespace message_passing_test
