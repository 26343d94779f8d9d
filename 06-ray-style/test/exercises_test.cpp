// The answers to the exercises of README.md.
#include "local_cluster.hpp"

namespace exercises_test {

using multinode::testing::occurrences;

class Exercise : public ClusterTest {
 private:
  const std::unique_ptr<Process> a_ = start_node(2), b_ = start_node(2);
};

TEST_F(Exercise, One_TheNumberOfTheAttempt) {
  const std::string text = "[ \"$CLUSTER_RESTART_COUNT\" = 1 ] && echo right";
  const Result once = result_of({"--max-failures", "1"}, text);
  EXPECT_EQ(once.status, 0) << once.all();
  EXPECT_EQ(occurrences(once.out, ") right\n"), 1u) << once.out;
  EXPECT_EQ(result_of({}, text).status, 1);
}

TEST_F(Exercise, Two_AProcessInANewSessionEndsWithTheJob) {
  const Result result = result_of({}, "setsid sleep 1000 >/dev/null 2>&1 & echo \"pid $!\"");
  EXPECT_EQ(result.status, 0) << result.all();
  const auto at = result.out.find(") pid ");
  ASSERT_NE(at, std::string::npos) << result.out;
  EXPECT_FALSE(is_running(std::stoi(result.out.substr(at + 6))));
}

TEST_F(Exercise, Three_PackTakesOneNodeAndSpreadBoth) {
  const std::string text = "echo \"node $GROUP_RANK of $GROUP_WORLD_SIZE, $LOCAL_WORLD_SIZE here\"";
  const Result pack = result_of({"--num-workers", "2"}, text);
  EXPECT_EQ(occurrences(pack.out, "node 0 of 1, 2 here\n"), 2u) << pack.all();
  const Result spread = result_of({"--num-workers", "2", "--spread"}, text);
  EXPECT_EQ(occurrences(spread.out, "node 0 of 2, 1 here\n"), 1u) << spread.all();
  EXPECT_EQ(occurrences(spread.out, "node 1 of 2, 1 here\n"), 1u) << spread.all();
}

}  // namespace exercises_test
