#include "rdma_tune/simulate.hpp"

#include "rdma_tune/options.hpp"
#include "tree.hpp"

#include <multinode/check.hpp>

#include <gtest/gtest.h>

namespace simulate_test {

using rdma::NcclVersion, rdma::parse_nccl_version;
using rdma::testing::Tree;

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
