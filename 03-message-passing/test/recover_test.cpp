// recover_nccl on emulated GPUs, with a rank that dies or falls silent. The test serves the store, so any rank may
// die.
#include <multinode/store/secret.hpp>
#include <multinode/store/tcp_store.hpp>
#include <testing/emulated_gpu.hpp>
#include <testing/faults.hpp>
#include <testing/json_lines.hpp>
#include <testing/program_test.hpp>
#include <testing/temporary_folder.hpp>

#include <gtest/gtest.h>
#include <nccl.h>

#include <signal.h>

#include <memory>
#include <thread>

namespace recover_test {

using namespace multinode::testing;
using namespace std::chrono_literals;
using Words = std::vector<std::string>;

class Job {
 public:
  Job(int ranks, const Words& options) {
    Words command{PATH_recover_nccl};
    command.insert(command.end(), options.begin(), options.end());
    for (int rank = 0; rank < ranks; ++rank) {
      auto environment = on_emulated_gpus();
      environment["MNRUN_STORE"] = "127.0.0.1:" + std::to_string(store_.port());
      environment["MNRUN_RUN_ID"] = "test";
      environment["RANK"] = environment["LOCAL_RANK"] = std::to_string(rank);
      environment["WORLD_SIZE"] = std::to_string(ranks);
      processes_.push_back(std::make_unique<Process>(command, environment));
    }
  }
  Process& rank(int rank) { return *processes_[static_cast<std::size_t>(rank)]; }

 private:
  multinode::TcpStoreServer store_;
  std::vector<std::unique_ptr<Process>> processes_;
};

std::string all_but(int lost, int ranks) {
  std::string text;
  for (int rank = 0; rank < ranks; ++rank)
    if (rank != lost) text += (text.empty() ? "" : ",") + std::to_string(rank);
  return text;
}

class Recover : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && NCCL_VERSION_CODE < NCCL_VERSION(2, 27, 0)) GTEST_SKIP() << "ncclCommShrink came with NCCL 2.27";
  }
  Words options(Words more) const {
    if (GetParam()) more.push_back("--shrink");
    return more;
  }
};

TEST_P(Recover, NoRankDies) {
  const TemporaryFolder folder;
  Job job(3, options({"--json", folder / "results"}));
  for (const int rank : {0, 1, 2}) {
    const Result result = job.rank(rank).wait();
    EXPECT_EQ(result.status, 0) << result.all();
    EXPECT_EQ(result.err, "");
    if (rank == 0) {
      EXPECT_SAYS(result.out, "RIGHT: 20 steps, recoveries: 0, ranks at the end: 0,1,2\n");
    }
  }
  EXPECT_EQ(json_lines(folder / "results").at(0),
            nlohmann::json::parse(R"({"ranks":[0,1,2],"recoveries":0,"right":true,"steps":20})"));
}

TEST_P(Recover, AnyRankThatDiesIsLeftOut) {
  for (const int ranks : {3, 4})
    for (int lost = 0; lost < ranks; ++lost) {
      SCOPED_TRACE(std::to_string(lost) + " of " + std::to_string(ranks));
      Job job(ranks, options({"--kill", std::to_string(lost)}));
      EXPECT_EQ(job.rank(lost).wait().status, 128 + SIGKILL);
      const int first = lost == 0 ? 1 : 0;
      for (int rank = 0; rank < ranks; ++rank) {
        if (rank == lost) continue;
        const Result result = job.rank(rank).wait();
        EXPECT_EQ(result.status, 0) << result.all();
        EXPECT_LT(result.seconds, 20s) << "it waited for the deadline";
        EXPECT_SAYS(result.out, "rank " + std::to_string(rank) + ": trouble: ncclAllReduce");
        EXPECT_SAYS(result.out, " with ranks " + all_but(lost, ranks) + "\n");
        EXPECT_EQ(occurrences(result.out, "has shrunk the communicator"), GetParam() ? 1u : 0u) << result.all();
        if (rank == first) {
          if (lost != 0) {
            EXPECT_SAYS(result.out, "step 3 is right among ranks " + all_but(-1, ranks) + "\n");
          }
          EXPECT_SAYS(result.out, "step 5 is right among ranks " + all_but(lost, ranks) + "\n");
          EXPECT_SAYS(result.out, "RIGHT: 20 steps, recoveries: 1, ranks at the end: " + all_but(lost, ranks) + "\n");
        }
      }
    }
}

TEST_P(Recover, ARankThatIsSilentIsLeftOutAtTheDeadlineAndLearnsIt) {
  Job job(3, options({"--steps", "1000000000", "--timeout", "5"}));
  ASSERT_TRUE(job.rank(0).wait_for("step 10 is right"));
  job.rank(1).signal(SIGSTOP);
  ASSERT_TRUE(job.rank(0).wait_for("continues from step \\d+ with ranks 0,2"));
  ASSERT_TRUE(job.rank(0).wait_for("is right among ranks 0,2"));
  job.rank(1).signal(SIGCONT);
  const Result late = job.rank(1).wait();
  EXPECT_EQ(late.status, 1) << late.all();
  EXPECT_SAYS(late.err,
              "the other ranks have continued without this one, because it was silent for longer than --timeout");
}

TEST_P(Recover, TwoDieOneAfterTheOther) {
  Job job(4, options({"--steps", "1000000000"}));
  ASSERT_TRUE(job.rank(0).wait_for("step 10 is right"));
  job.rank(0).signal(SIGKILL);
  ASSERT_TRUE(job.rank(1).wait_for("is right among ranks 1,2,3"));
  job.rank(2).signal(SIGKILL);
  ASSERT_TRUE(job.rank(1).wait_for("is right among ranks 1,3"));
}

INSTANTIATE_TEST_SUITE_P(Ways, Recover, testing::Bool(),
                         [](const auto& info) { return info.param ? "ByShrinking" : "ByANewId"; });

// Here the test is that peer.
TEST(RecoverNccl, Rank0KeepsTheStoreUntilItsLastPeerHasLeft) {
  const FreePort port;
  auto environment = on_emulated_gpus();
  environment.insert({{"RANK", "0"}, {"LOCAL_RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "127.0.0.1"}});
  environment["MASTER_PORT"] = std::to_string(port.number());
  const multinode::Secret secret{"the secret of a test", ""};
  environment["MULTINODE_SECRET"] = secret.bytes;
  Process rank0({PATH_recover_nccl, "--steps", "2000"}, environment);
  multinode::TcpStore store({"127.0.0.1", port.number()}, 60s, {.token = token_for(secret, "recover /0")});
  ASSERT_TRUE(rank0.wait_for("RIGHT: 2000 steps"));
  std::this_thread::sleep_for(1s);  // for a rank 0 that ends at once
  EXPECT_NO_THROW(store.set("trouble", "0"));
  store.goodbye();
  EXPECT_EQ(rank0.wait().status, 0);
}

TEST(RecoverNccl, RefusesWhatItCannotDo) {
  EXPECT_EQ(run({PATH_recover_nccl, "--backend", "mpi"}, on_emulated_gpus()).status, 2);
  const Result alone = run({PATH_recover_nccl}, on_emulated_gpus());
  EXPECT_EQ(alone.status, 2);
  EXPECT_SAYS(alone.err, "no meeting place: set MASTER_ADDR and MASTER_PORT, or start it with mnrun");
  const Result none = run({PATH_recover_nccl}, {{"LD_LIBRARY_PATH", EMULATED_GPU}});
  EXPECT_EQ(none.status, 77) << none.all();
}

}  // namespace recover_test
