// The README's questions 3 and 4, and two statements of the README and of reference.md.
#include "scratch.hpp"
#include "tree.hpp"

#include <testing/program_test.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace exercises_test {

using multinode::testing::run;
using rdma::testing::Scratch, rdma::testing::Tree;
using ::testing::HasSubstr, ::testing::Not;

std::string said(const Tree& tree, std::vector<std::string> words) {
  words.insert(words.begin(), PATH_rdma_tune);
  words.insert(words.end(), {"--sysfs", tree.sys().string()});
  const auto result = run(words);
  EXPECT_EQ(result.status, 0) << result.all();
  return result.out;
}

TEST(RdmaExercises, TheIndexForNodesThatSpeakIpv6) {
  const Tree tree = Tree::load("mlx5-pairs");
  EXPECT_THAT(said(tree, {"--family", "ipv6"}), HasSubstr("yes, GID 5"));
  EXPECT_THAT(said(tree, {}), HasSubstr("yes, GID 3"));
}

TEST(RdmaExercises, ARangeLeadsNcclPastALinkLocalAddress) {
  const Tree tree = Tree::load("ipv4-link-local");
  const auto index = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"simulate", "--nccl", "2.28"});
    return said(tree, words);
  };
  EXPECT_THAT(index({}), HasSubstr("WRONG: link-local (169.254)"));
  EXPECT_THAT(index({"--addr-range", "10.1.0.0/16"}), Not(HasSubstr("WRONG")));
  EXPECT_THAT(index({"--addr-range", "10.1.0.0/16"}), HasSubstr("mlx5_0     1      5          5"));
}

TEST(RdmaExercises, NoVersionFindsTheGidOfAPodForSure) {
  const Tree tree = Tree::load("pod-vf");
  EXPECT_THAT(said(tree, {"simulate", "--nccl", "2.26.1"}), HasSubstr("WRONG: NCCL fails"));
  EXPECT_THAT(said(tree, {"simulate", "--nccl", "2.26.2"}), HasSubstr("2 or 7"));
}

TEST(RdmaExercises, OfTwoAgainstTwoNobodyIsAccused) {
  Scratch scratch;
  std::vector<std::string> command{PATH_rdma_tune, "compare"};
  for (const char* node : {"0", "1", "2", "3"}) {
    Tree tree = Tree::load("mlx5-pairs");
    if (*node > '1') tree.add("F 444 /sys/class/infiniband/mlx5_0/ports/1/rate = 25 Gb/sec (1X EDR)\\n");
    command.push_back(scratch / node);
    said(tree, {"--json", command.back()});
  }
  const auto result = run(command);
  EXPECT_EQ(result.status, 1) << result.all();
  EXPECT_THAT(result.out, HasSubstr("100 Gb/sec (4X EDR)"));
  EXPECT_THAT(result.out, HasSubstr("25 Gb/sec (1X EDR)"));
  EXPECT_THAT(result.out, Not(HasSubstr("odd")));
  EXPECT_THAT(result.out, HasSubstr("no value has a majority"));
}

}  // namespace exercises_test
