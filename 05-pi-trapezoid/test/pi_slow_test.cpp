// pi at the tutorial's size, as the tutorial has it, and many deaths.
#include <testing/faults.hpp>

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

namespace {

using namespace multinode::testing;
using namespace std::chrono_literals;

constexpr const char* recorded = "0x1.921fb54442d18p+1";  // of n = 1e9

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
  const std::string port = std::to_string(free_port());
  const auto node = [&](const char* rank) {
    return std::vector<std::string>{PATH_mnrun,  "--nnodes",      "2",         "--nproc-per-node",
                                    "20",        "--node-rank",   rank,        "--master-addr",
                                    "127.0.0.1", "--master-port", port,        PATH_pi,
                                    "--backend", "gloo",          "--timeout", "300"};
  };
  Process second(node("1"));
  const Result first = run(node("0"), {}, 500s);
  EXPECT_EQ(first.status, 0) << first.all();
  EXPECT_EQ(second.wait(60s).status, 0);
  EXPECT_NE(first.out.find("Total number of processes: 40\n"), std::string::npos) << first.out;
  EXPECT_NE(first.out.find(recorded), std::string::npos) << first.out;
}
#endif

void kill_twenty(Starter starter, const std::string& backend) {
  std::mt19937 random(std::random_device{}());
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(kill_one(starter, 3, {PATH_pi, "--backend", backend, "--n", "1e6", "--trials", "1000000000"},
                       "\ntrial (\\d+) of", 1, 200, random),
              "");
}

#ifdef MULTINODE_HAVE_MPI
TEST(PiSlow, TwentyOfTwentyDeathsByMpirun) { kill_twenty(Starter::mpirun, "mpi"); }
#endif
#ifdef MULTINODE_HAVE_GLOO
TEST(PiSlow, TwentyOfTwentyDeathsWithoutALauncher) { kill_twenty(Starter::bare, "gloo"); }
#endif

}  // namespace
