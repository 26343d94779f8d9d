#include "rdma_tune/simulate.hpp"

#include "tree.hpp"

#include <multinode/check.hpp>

#include <gtest/gtest.h>

namespace simulate_test {

using rdma::NcclSettings, rdma::NcclVersion, rdma::parse_nccl_version;
using rdma::testing::Tree;

// The index that NCCL takes of the first device's port 1, or -1 where it fails.
int taken(const std::string& tree_name, const std::string& version, const multinode::Environment& variables = {}) {
  const Tree tree = Tree::load(tree_name);
  const rdma::System system = rdma::read_system(tree.sys());
  return simulate_nccl(system.devices.at(0).ports.at(0), parse_nccl_version(version, "--nccl"),
                       NcclSettings::read(variables))
      .index;
}

TEST(Simulate, ByVersion) {
  struct Row {
    const char* tree;
    int v2_20, v2_21, v2_26_2;
  };
  for (const Row& row : {
           Row{"s1-plain", 0, 1, 1},
           Row{"s2-readd", 0, 1, 1},
           Row{"s3-nov4", 0, 0, 0},  // no IPv4 at all: it stays on fe80
           Row{"s4-vlan", 0, 1, 1},
           Row{"s7-bond", 0, 1, 1},
           Row{"mlx5-pairs", 0, 3, 3},
           Row{"bond-12", 0, 15, 15},
           Row{"vlan", 0, 5, 5},             // a VLAN is as good to it as any
           Row{"ipv4-link-local", 0, 3, 3},  // and so is 169.254
           Row{"ipv6-only", 0, 0, 0},
           Row{"pod-vf", 0, -1, 7},  // EINVAL
           Row{"infiniband", 0, 0, 0},
       }) {
    EXPECT_EQ(taken(row.tree, "2.20.5"), row.v2_20) << row.tree;
    EXPECT_EQ(taken(row.tree, "2.21"), row.v2_21) << row.tree;
    EXPECT_EQ(taken(row.tree, "2.26.1"), row.v2_21) << row.tree;
    EXPECT_EQ(taken(row.tree, "2.26.2"), row.v2_26_2) << row.tree;
    EXPECT_EQ(taken(row.tree, "2.28"), row.v2_26_2) << row.tree;
  }
}

TEST(Simulate, ByItsVariables) {
  EXPECT_EQ(taken("s1-plain", "2.20", {{"NCCL_IB_GID_INDEX", "3"}}), 3);  // unchecked
  EXPECT_EQ(taken("s1-plain", "2.28", {{"NCCL_IB_GID_INDEX", "2"}}), 2);
  EXPECT_EQ(taken("s1-plain", "2.28", {{"NCCL_IB_GID_INDEX", "-1"}}), 1);
  EXPECT_EQ(taken("s1-plain", "2.20", {{"NCCL_IB_GID_INDEX", "-1"}}), -1);
  EXPECT_EQ(taken("infiniband", "2.28", {{"NCCL_IB_GID_INDEX", "3"}}), 0);  // not looked at
  EXPECT_EQ(taken("s3-nov4", "2.28", {{"NCCL_IB_ADDR_FAMILY", "AF_INET6"}}), 2);
  EXPECT_EQ(taken("ipv6-only", "2.28", {{"NCCL_IB_ADDR_FAMILY", "AF_INET6"}}), 3);
  EXPECT_EQ(taken("ipv6-only", "2.21", {{"NCCL_IB_ADDR_FAMILY", "AF_INET6"}}), 3);  // empty slots are passed over
  EXPECT_EQ(taken("ipv6-only", "2.20", {{"NCCL_IB_ADDR_FAMILY", "AF_INET6"}}), 0);  // not known then
  EXPECT_EQ(taken("mlx5-pairs", "2.28", {{"NCCL_IB_ROCE_VERSION_NUM", "1"}}), 2);
  EXPECT_EQ(taken("mlx5-pairs", "2.28", {{"NCCL_IB_ADDR_FAMILY", "AF_INET6"}}), 5);
  EXPECT_EQ(taken("ipv4-link-local", "2.28", {{"NCCL_IB_ADDR_RANGE", "10.0.0.0/8"}}), 5);
  EXPECT_EQ(taken("s2-readd", "2.28", {{"NCCL_IB_ADDR_RANGE", "10.9.9.0/24"}}), 3);
  EXPECT_EQ(taken("s2-readd", "2.28", {{"NCCL_IB_ADDR_RANGE", "172.16.0.0/12"}}), 0);
  EXPECT_EQ(taken("s2-readd", "2.28", {{"NCCL_IB_ADDR_RANGE", "fd00::/8"}}), 1);  // another family's: ignored
}

TEST(Simulate, RefusesWhatIsNoNumber) {
  EXPECT_THROW(NcclSettings::read({{"NCCL_IB_GID_INDEX", "three"}}), multinode::UsageError);
  EXPECT_THROW(NcclSettings::read({{"NCCL_IB_ROCE_VERSION_NUM", "2.0"}}), multinode::UsageError);
  EXPECT_THROW(NcclSettings::read({{"NCCL_IB_ADDR_RANGE", "here"}}), multinode::UsageError);
  EXPECT_FALSE(NcclSettings::read({{"NCCL_IB_GID_INDEX", ""}}).gid_index);
}

TEST(NcclVersion, ParsedAndCompared) {
  EXPECT_EQ(parse_nccl_version("2.26.2", "").text(), "2.26.2");
  EXPECT_EQ(parse_nccl_version("2.26", "").text(), "2.26");
  EXPECT_LT(parse_nccl_version("2.26.1", ""), (NcclVersion{2, 26, 2}));
  EXPECT_GE(parse_nccl_version("2.26", ""), (NcclVersion{2, 26, 2}));
  EXPECT_GT(parse_nccl_version("3.0", ""), (NcclVersion{2, 26, 2}));
  for (const char* text : {"", "2", "2.", "2.x", "v2.20", "2.20.", "2.20.1.1", "2.-1", "2.20-1", "2..3"})
    EXPECT_THROW(parse_nccl_version(text, "--nccl"), multinode::UsageError) << text;
}

}  // namespace simulate_test
