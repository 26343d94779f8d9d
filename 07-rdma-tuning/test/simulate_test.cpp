#include "rdma_tune/simulate.hpp"

#include "rdma_tune/options.hpp"
#include "tree.hpp"

#include <multinode/check.hpp>

#include <gtest/gtest.h>

namespace simulate_test {

using rdma::NcclVersion, rdma::parse_nccl_version;
using rdma::testing::Tree;

// What NCCL makes of NCCL_IB_HCA is among its recorded answers (gid_answers_test.cpp).
TEST(Node, WhetherNcclUsesRdma) {
  const Tree tree = Tree::load("infiniband-and-roce");
  const rdma::System system = rdma::read_system(tree.sys());
  const auto reason = [&](const multinode::Environment& variables) {
    return nccl_node(system, {2, 28}, variables).reason;
  };
  EXPECT_EQ(reason({}), "");
  EXPECT_EQ(reason({{"NCCL_NET", "ib"}}), "");
  EXPECT_EQ(reason({{"NCCL_SOCKET_IFNAME", "eth"}}), "");
  EXPECT_EQ(reason({{"NCCL_IB_DISABLE", "1"}}), "NCCL_IB_DISABLE=1");
  EXPECT_EQ(reason({{"NCCL_NET", "Socket"}}), "NCCL_NET=Socket");
  EXPECT_EQ(reason({{"NCCL_IB_HCA", "^"}}), "NCCL_IB_HCA");
  EXPECT_EQ(reason({{"NCCL_SOCKET_IFNAME", "nope"}}), "it fails: NCCL_SOCKET_IFNAME=nope names no interface here");
}

TEST(NcclVersion, ParsedAndCompared) {
  EXPECT_EQ(parse_nccl_version("2.26.2").text(), "2.26.2");
  EXPECT_EQ(parse_nccl_version("2.26").text(), "2.26");
  EXPECT_LT(parse_nccl_version("2.26.1"), (NcclVersion{2, 26, 2}));
  EXPECT_GE(parse_nccl_version("2.26"), (NcclVersion{2, 26, 2}));
  EXPECT_GT(parse_nccl_version("3.0"), (NcclVersion{2, 26, 2}));
  for (const char* text : {"", "2", "2.", "2.x", "v2.20", "2.20.", "2.20.1.1", "2.-1", "2.20-1", "2..3"})
    EXPECT_THROW(parse_nccl_version(text), multinode::UsageError) << text;
}

}  // namespace simulate_test
