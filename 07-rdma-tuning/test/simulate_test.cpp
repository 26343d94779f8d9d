#include "rdma_tune/simulate.hpp"

#include "rdma_tune/options.hpp"
#include "tree.hpp"

#include <multinode/check.hpp>

#include <gtest/gtest.h>

namespace simulate_test {

using rdma::NcclVersion, rdma::parse_nccl_version;
using rdma::testing::Tree;

// The index that NCCL takes of the first device's port 1: "3", "2 or 7", or "fails".
std::string taken(const std::string& tree_name, const std::string& version,
                  const multinode::Environment& variables = {}) {
  const Tree tree = Tree::load(tree_name);
  const rdma::System system = rdma::read_system(tree.sys());
  return nccl_gid(system.devices.at(0).ports.at(0), parse_nccl_version(version, "--nccl"), variables).text();
}

TEST(Simulate, ByVersion) {
  struct Row {
    const char* tree;
    const char *v2_20, *v2_21, *v2_26_2;
  };
  for (const Row& row : {
           Row{"s1-plain", "0", "1", "1"},
           Row{"s2-readd", "0", "1", "1"},
           Row{"s3-nov4", "0", "0", "0"},  // no IPv4 at all: it stays on fe80
           Row{"s4-vlan", "0", "1", "1"},
           Row{"s7-bond", "0", "1", "1"},
           Row{"mlx5-pairs", "0", "3", "3"},
           Row{"bond-12", "0", "15", "15"},
           Row{"vlan", "0", "5", "5"},             // a VLAN is as good to it as any
           Row{"ipv4-link-local", "0", "3", "3"},  // and so is 169.254
           Row{"ipv6-only", "0", "0", "0"},
           Row{"pod-vf", "0", "fails", "2 or 7"},  // EINVAL
           Row{"infiniband", "0", "0", "0"},
       }) {
    EXPECT_EQ(taken(row.tree, "2.20.5"), row.v2_20) << row.tree;
    EXPECT_EQ(taken(row.tree, "2.21"), row.v2_21) << row.tree;
    EXPECT_EQ(taken(row.tree, "2.26.1"), row.v2_21) << row.tree;
    EXPECT_EQ(taken(row.tree, "2.26.2"), row.v2_26_2) << row.tree;
    EXPECT_EQ(taken(row.tree, "2.28"), row.v2_26_2) << row.tree;
  }
}

TEST(Simulate, ByItsVariables) {
  EXPECT_EQ(taken("s1-plain", "2.20", {{"NCCL_IB_GID_INDEX", "3"}}), "3");  // unchecked
  EXPECT_EQ(taken("s1-plain", "2.28", {{"NCCL_IB_GID_INDEX", "2"}}), "2");
  EXPECT_EQ(taken("s1-plain", "2.28", {{"NCCL_IB_GID_INDEX", "-1"}}), "1");
  EXPECT_EQ(taken("s1-plain", "2.20", {{"NCCL_IB_GID_INDEX", "-1"}}), "fails");
  EXPECT_EQ(taken("infiniband", "2.28", {{"NCCL_IB_GID_INDEX", "3"}}), "0");  // not looked at
  EXPECT_EQ(taken("s3-nov4", "2.28", {{"NCCL_IB_ADDR_FAMILY", "AF_INET6"}}), "2");
  EXPECT_EQ(taken("ipv6-only", "2.28", {{"NCCL_IB_ADDR_FAMILY", "AF_INET6"}}), "3");
  EXPECT_EQ(taken("ipv6-only", "2.21", {{"NCCL_IB_ADDR_FAMILY", "AF_INET6"}}), "3");  // empty slots are passed over
  EXPECT_EQ(taken("ipv6-only", "2.20", {{"NCCL_IB_ADDR_FAMILY", "AF_INET6"}}), "0");  // not known then
  EXPECT_EQ(taken("mlx5-pairs", "2.28", {{"NCCL_IB_ROCE_VERSION_NUM", "1"}}), "2");
  EXPECT_EQ(taken("mlx5-pairs", "2.28", {{"NCCL_IB_ADDR_FAMILY", "AF_INET6"}}), "5");
  EXPECT_EQ(taken("ipv4-link-local", "2.28", {{"NCCL_IB_ADDR_RANGE", "10.0.0.0/8"}}), "5");
  EXPECT_EQ(taken("s2-readd", "2.28", {{"NCCL_IB_ADDR_RANGE", "10.9.9.0/24"}}), "3");
  EXPECT_EQ(taken("s2-readd", "2.28", {{"NCCL_IB_ADDR_RANGE", "172.16.0.0/12"}}), "0");
  EXPECT_EQ(taken("s2-readd", "2.28", {{"NCCL_IB_ADDR_RANGE", "fd00::/8"}}), "1");  // another family's: ignored
}

// As NCCL reads them: strtoll, where no digits are 0; a range that is none is ignored.
TEST(Simulate, OddValues) {
  EXPECT_EQ(taken("mlx5-pairs", "2.28", {{"NCCL_IB_GID_INDEX", "three"}}), "0");
  EXPECT_EQ(taken("mlx5-pairs", "2.28", {{"NCCL_IB_GID_INDEX", "04x"}}), "4");
  EXPECT_EQ(taken("mlx5-pairs", "2.28", {{"NCCL_IB_GID_INDEX", ""}}), "3");
  EXPECT_EQ(taken("mlx5-pairs", "2.28", {{"NCCL_IB_ROCE_VERSION_NUM", "v1"}}), "2");
  EXPECT_EQ(taken("mlx5-pairs", "2.28", {{"NCCL_IB_ADDR_RANGE", "here"}}), "3");
  EXPECT_EQ(taken("mlx5-pairs", "2.21", {{"NCCL_IB_ADDR_RANGE", "10.1.0.5"}}), "fails");  // it crashes
}

class Node : public ::testing::Test {
 protected:
  // The devices that NCCL 2.28 uses of a node with eight InfiniBand and two RoCE cards.
  std::string used(const multinode::Environment& variables) const {
    std::string names;
    for (const rdma::NcclPort& port : nccl_node(system_, {2, 28}, variables).ports)
      names += (names.empty() ? "" : " ") + port.device->name;
    return names;
  }
  std::string reason(const multinode::Environment& variables) const {
    return nccl_node(system_, {2, 28}, variables).reason;
  }

  const Tree tree_ = Tree::load("infiniband-and-roce");
  const rdma::System system_ = rdma::read_system(tree_.sys());
};

TEST_F(Node, NcclUsesWhatItsVariablesSelect) {
  const std::string all = "mlx5_0 mlx5_1 mlx5_2 mlx5_3 mlx5_4 mlx5_5 mlx5_6 mlx5_7 mlx5_8 mlx5_9";
  EXPECT_EQ(used({}), all);
  EXPECT_EQ(used({{"NCCL_IB_HCA", "mlx5_4,mlx5_9:1"}}), "mlx5_4 mlx5_9");
  EXPECT_EQ(used({{"NCCL_IB_HCA", "=mlx5"}}), "");
  EXPECT_EQ(used({{"NCCL_IB_HCA", "^mlx5_4,mlx5_9:2"}}),
            "mlx5_0 mlx5_1 mlx5_2 mlx5_3 mlx5_5 mlx5_6 mlx5_7 mlx5_8 mlx5_9");
  EXPECT_EQ(used({{"NCCL_NET", "ib"}}), all);
}

TEST_F(Node, NcclDoesNotUseRdma) {
  EXPECT_EQ(reason({{"NCCL_IB_DISABLE", "1"}}), "NCCL_IB_DISABLE=1");
  EXPECT_EQ(reason({{"NCCL_NET", "Socket"}}), "NCCL_NET=Socket");
  EXPECT_EQ(reason({{"NCCL_IB_HCA", "^"}}), "NCCL_IB_HCA");
  EXPECT_EQ(reason({{"NCCL_SOCKET_IFNAME", "nope"}}), "it fails: NCCL_SOCKET_IFNAME=nope names no interface here");
  EXPECT_EQ(reason({{"NCCL_SOCKET_IFNAME", "eth"}}), "");
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
