// fashion_mnist --live: ranks die, and the training lives on. bench/live_kills kills at random moments; here are the
// ends of the story.
#include "fashion_mnist_ways.hpp"

#include <algorithm>
#include <fstream>

#if defined(MULTINODE_HAVE_GLOO) && defined(PATH_mnrun)
namespace live_test {

std::vector<std::string> live(int ranks, Settings settings = {}) {
  settings.insert({{"--live", std::to_string(ranks)}, {"--log-every", "1"}, {"--min-accuracy", "0"}});
  return command(PATH_fashion_mnist, learn(settings));
}

// Of process `parent`, in the order in which they were started.
std::vector<pid_t> children_of(pid_t parent) {
  std::ifstream in("/proc/" + std::to_string(parent) + "/task/" + std::to_string(parent) + "/children");
  std::vector<pid_t> children;
  for (pid_t child = 0; in >> child;) children.push_back(child);
  return children;
}

TEST(Live, TrainsTheParametersOfAnOrdinaryTraining) {
  for (const auto& [ranks, optimizer] : {std::pair(1, "sgd"), {2, "adam"}, {3, "sgd"}}) {
    const Settings settings{{"--optimizer", optimizer}, {"--min-accuracy", "0"}};
    const Result alive = run(live(ranks, settings));
    EXPECT_EQ(alive.status, 0) << alive.all();
    const Ranks::End plain = Ranks(Starter::bare, ranks, command(PATH_fashion_mnist, learn(settings))).wait();
    EXPECT_EQ(parameters_in(alive.all()), parameters_in(plain.output)) << ranks << " ranks, " << optimizer;
  }
}

// Two of three die at once; the third has the state, and the new ones take it.
TEST(Live, TheSurvivorKeepsItsProcessAndGivesItsStateToTheNewRanks) {
  const Settings settings{{"--epochs", "12"}, {"--optimizer", "adam"}};
  const std::string whole = parameters_in(run(live(3, settings)).all());
  Process process(live(3, settings));
  ASSERT_TRUE(process.wait_for("step 20 of")) << process.wait(1s).all();
  const std::vector<pid_t> before = children_of(process.pid());
  ASSERT_EQ(before.size(), 3u);
  ASSERT_EQ(::kill(before[0], SIGKILL), 0);
  ASSERT_EQ(::kill(before[2], SIGKILL), 0);
  ASSERT_TRUE(process.wait_for("all ranks continue after step ")) << process.wait(1s).all();
  const std::vector<pid_t> after = children_of(process.pid());
  EXPECT_EQ(std::ranges::count(after, before[1]), 1) << "the survivor is the same process";
  const Result result = process.wait();
  EXPECT_EQ(result.status, 0) << result.all();
  EXPECT_EQ(parameters_in(result.all()), whole) << result.all();
  EXPECT_EQ(occurrences(result.all(), "was killed by signal 9"), 2u) << result.all();
}

TEST(Live, ARankThatHangsIsKilledAndReplaced) {
  const Settings settings{{"--epochs", "12"}, {"--timeout", "2"}};
  const std::string whole = parameters_in(run(live(2, settings)).all());
  Process process(live(2, settings));
  ASSERT_TRUE(process.wait_for("step 20 of")) << process.wait(1s).all();
  ASSERT_EQ(::kill(children_of(process.pid()).at(1), SIGSTOP), 0);
  const Result result = process.wait();
  EXPECT_EQ(result.status, 0) << result.all();
  EXPECT_SAYS(result.all(), "rank 1 (pid ");
  EXPECT_SAYS(result.all(), ") did not answer within the deadline and is killed");
  EXPECT_EQ(parameters_in(result.all()), whole) << result.all();
}

TEST(Live, EndsWithTheReasonWhenARestartWouldNotHelp) {
  Process process(live(2, {{"--epochs", "100000"}, {"--restarts", "0"}}));
  ASSERT_TRUE(process.wait_for("step 5 of")) << process.wait(1s).all();
  ASSERT_EQ(::kill(children_of(process.pid()).at(1), SIGKILL), 0);
  const Result killed = process.wait();
  EXPECT_EQ(killed.status, 1) << killed.all();
  EXPECT_SAYS(killed.all(), "was killed by signal 9 (Killed), after 0 restarts; --restarts allows no more\n");
  const Result nan = run(live(2, {{"--learning-rate", "1e6"}, {"--epochs", "20"}}));
  EXPECT_EQ(nan.status, 1) << nan.all();
  EXPECT_SAYS(nan.all(), " ended with exit status 1: a new one would do the same\n");
  EXPECT_SAYS(nan.all(), "; a smaller --learning-rate may help\n");
}

TEST(Live, BadCommandLinesAreRefused) {
  expect_refused({{live(2, {{"--checkpoint", "kept"}}), "--live: without --checkpoint"}});
  const Ranks::End twice = Ranks(Starter::mnrun, 2, live(2)).wait();
  EXPECT_EQ(twice.status, 2) << twice.output;
  EXPECT_EQ(occurrences(twice.output, "--live starts the ranks itself"), 1u) << twice.output;
}

}  // namespace live_test
#endif
