// pi at the tutorial's size, as the tutorial has it, and many deaths.
#include <testing/faults.hpp>

#include <gtest/gtest.h>

#include <signal.h>

#include <cstdlib>
#include <random>
#include <utility>

namespace {

using namespace multinode::testing;
using namespace std::chrono_literals;

constexpr const char* recorded = "0x1.921fb54442d18p+1";  // of n = 1e9

TEST(PiSlow, TheInnerLoopIsAsFastAsTheDivisionUnitAllows) {
#if !defined(NDEBUG) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "not an optimised build";
#endif
  const Result result = run({PATH_pi, "--bench"});
  EXPECT_EQ(result.status, 0) << result.all();
  EXPECT_NE(result.out.find("fast enough"), std::string::npos) << result.out;
}

TEST(PiSlow, IsRightAtTheTutorialsSize) {
  for (const std::string n : {"1e8", "999999937", "1e9"}) {
    const Result result = run({PATH_pi, "--n", n, "--warmup", "0", "--trials", "1"}, {}, 300s);
    EXPECT_EQ(result.status, 0) << result.all();
    EXPECT_EQ(result.out.find(recorded) != std::string::npos, n == "1e9") << result.out;
  }
}

#ifdef MULTINODE_HAVE_MPI
TEST(PiSlow, FortyProcessesByMpirun) {
  const Result result = run(under_mpirun(40, {PATH_pi, "--backend", "mpi", "--timeout", "300"}), {}, 500s);
  EXPECT_EQ(result.status, 0) << result.all();
  EXPECT_NE(result.out.find("Total number of processes: 40\n"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find(recorded), std::string::npos) << result.out;
}
#endif

#if defined(MULTINODE_HAVE_GLOO) && defined(PATH_mnrun)
TEST(PiSlow, TwentyProcessesOnEachOfTwoNodesByMnrun) {
  const FreePort free_port;
  const std::string port = std::to_string(free_port.number());
  const auto node = [&](const char* rank) {
    return std::vector<std::string>{PATH_mnrun,  "--nnodes",      "2",         "--nproc-per-node",
                                    "20",        "--node-rank",   rank,        "--master-addr",
                                    "127.0.0.1", "--master-port", port,        PATH_pi,
                                    "--backend", "gloo",          "--timeout", "300"};
  };
  Process second(node("1"));
  const Result first = run(node("0"), {}, 500s);
  EXPECT_EQ(first.status, 0) << first.all();
  EXPECT_EQ(second.wait().status, 0);
  EXPECT_NE(first.out.find("Total number of processes: 40\n"), std::string::npos) << first.out;
  EXPECT_NE(first.out.find(recorded), std::string::npos) << first.out;
}
#endif

// Every way to start pi that this build has, and its backend.
std::vector<std::pair<Starter, std::string>> ways() {
  std::vector<std::pair<Starter, std::string>> all;
#ifdef MULTINODE_HAVE_MPI
  all.emplace_back(Starter::mpirun, "mpi");
#endif
#ifdef MULTINODE_HAVE_GLOO
  all.emplace_back(Starter::bare, "gloo");
#ifdef PATH_mnrun
  setenv("MNRUN", PATH_mnrun, 1);
  all.emplace_back(Starter::mnrun, "gloo");
#endif
#endif
  return all;
}

std::vector<std::string> endless(const std::string& backend) {
  return {PATH_pi, "--backend", backend, "--n", "1e6", "--trials", "1000000000"};
}

TEST(PiSlow, AKilledRankEndsAllAndIsNamedTwentyOfTwentyTimes) {
  std::mt19937 random(std::random_device{}());
  for (const auto& [starter, backend] : ways())
    for (int i = 0; i < 20; ++i)
      EXPECT_EQ(kill_one(starter, 3, endless(backend), "trial (\\d+) of", 1, 200, random), "")
          << name_of(starter) << ", " << backend;
}

TEST(PiSlow, AStoppedRankIsNamed) {
  for (const auto& [starter, backend] : ways()) {
    auto command = endless(backend);
    command.insert(command.end(), {"--timeout", "2"});
    Ranks ranks(starter, 3, command);
    ASSERT_TRUE(ranks.wait_for("trial (10) of")) << name_of(starter) << ", " << backend;
    ranks.signal(1, SIGSTOP);
    const Ranks::End end = ranks.wait();
    EXPECT_EQ(end.status, 1) << end.output;
    EXPECT_NE(end.output.find("; rank 1 (host "), std::string::npos) << end.output;
  }
}

}  // namespace
