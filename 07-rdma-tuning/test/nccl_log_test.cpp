// NCCL's log lines. Hand-written, in the formats of NCCL 2.5 to 2.28 (those of its format strings and of logs that
// users publish): no GPU made them.
#include "rdma_tune/nccl_log.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sstream>

namespace nccl_log_test {

using rdma::NcclLog;
using Connections = std::map<std::string, int>;

NcclLog parse(const std::string& text) {
  std::istringstream in(text);
  return rdma::read_nccl_log(in);
}

const std::string roce = R"(# nThread 1 nGpus 1 minBytes 8 maxBytes 8
node1:41:41 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0
node1:41:41 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>
node1:41:41 [0] NCCL INFO NCCL version 2.28.9+cuda13.0
node1:41:52 [0] NCCL INFO NCCL_IB_GID_INDEX set by environment to 3.
node1:41:52 [0] NCCL INFO NCCL_IB_HCA set to mlx5
node1:41:52 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_bond_0:2/RoCE [RO]; OOB eth0:10.0.0.1<0>
node1:41:52 [0] NCCL INFO Initialized NET plugin IB
node1:41:52 [0] NCCL INFO Using network IB
node1:41:52 [0] NCCL INFO comm 0x55d0 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0
node1:41:52 [0] NCCL INFO Channel 00/04 :    0   7   6   5   4   3   2   1
node1:41:52 [0] NCCL INFO Channel 00/0 : 9[1] -> 0[0] [receive] via NET/IB/0/GDRDMA
node1:41:52 [0] NCCL INFO Channel 01/0 : 9[1] -> 0[0] [receive] via NET/IB/1/GDRDMA
node1:41:52 [0] NCCL INFO Channel 00/0 : 0[0] -> 7[7] via P2P/CUMEM/read
node1:41:52 [0] NCCL INFO Channel 01/0 : 0[0] -> 7[7] via P2P/CUMEM/read
node1:41:52 [0] NCCL INFO Channel 02/0 : 0[0] -> 8[0] [send] via NET/IB/0(1)/GDRDMA
node1:41:52 [0] NCCL INFO Channel 03/0 : 0[0] -> 8[0] [send] via NET/IB/1
node1:41:60 [0] NCCL INFO NET/IB: NCCL Dev 0 IbDev 0 Port 1 qpn 576 mtu 5 GID 3 (0/100000AFFFF0000) fifoRkey=0x1 fifoLkey=0x1
node1:41:60 [0] NCCL INFO NET/IB: IbDev 0 Port 1 qpn 576 query_ece={supported=1, vendor_id=0x15b3, options=0x0, comp_mask=0x0}
node1:41:52 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1
node1:41:52 [0] NCCL INFO ncclCommInitRank comm 0x55d0 rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x1 - Init COMPLETE
)";

TEST(NcclLog, RoceAndGpuDirect) {
  const NcclLog log = parse(roce);
  EXPECT_EQ(log.lines, 20);
  EXPECT_EQ(log.versions, std::set<std::string>{"2.28.9+cuda13.0"});
  EXPECT_EQ(log.networks, std::set<std::string>{"IB"});
  EXPECT_EQ(log.hcas, (std::set<std::string>{"mlx5_0:1/RoCE", "mlx5_bond_0:2/RoCE"}));
  EXPECT_EQ(log.connections, (Connections{{"NET/IB", 4}, {"P2P/CUMEM", 2}})) << "a list of ranks is no connection";
  EXPECT_EQ(log.gpu_direct, 3);
  EXPECT_EQ(log.gid_indices, std::set<int>{3});
  EXPECT_FALSE(log.no_ib_device);
  EXPECT_EQ(log.over_rdma(), 4);
  EXPECT_EQ(log.over_tcp(), 0);
}

TEST(NcclLog, SilentFallBackToSockets) {
  const NcclLog log = parse(R"(node1:7:7 [0] NCCL INFO NET/IB : No device found.
node1:7:7 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0> [1]eth1:fe80::1%eth1<0>
node1:7:7 [0] NCCL INFO Using network Socket
node1:7:9 [0] NCCL INFO NET/Socket: Using 1 threads and 1 sockets per thread
node1:7:7 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0
node1:7:7 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0/Shared
)");
  EXPECT_TRUE(log.no_ib_device);
  EXPECT_EQ(log.networks, std::set<std::string>{"Socket"});
  EXPECT_EQ(log.over_tcp(), 2);
  EXPECT_EQ(log.over_rdma(), 0);
}

// "[send]" came with 2.4, "NET/IB/0/GDRDMA" before it, Ring before Channel; blanks and colons moved about.
TEST(NcclLog, OlderVersionsAndOtherNetworks) {
  const NcclLog log = parse(R"(NCCL version 2.5.6+cuda10.0
a:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB ; OOB ib0:192.168.11.1<0>
a:1:2 [0] NCCL INFO Ring 00 : 3[3] -> 4[0] [send] via NET/IB/0/GDRDMA
a:1:2 [0] NCCL INFO Ring 00 : 0[0] -> 1[1] via P2P/direct pointer
a:1:2 [0] NCCL INFO Ring 00 : 1[1] -> 2[2] via direct shared memory
a:1:2 [0] NCCL INFO Channel 01 : 2[c7000] -> 0[87000] [receive] via NET/IB/5/GDRDMA
a:1:2 [0] NCCL INFO Channel 00 : 2[2] -> 3[3] via SHM/direct/direct
b:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/AWS Libfabric/3/GDRDMA
b:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IBext_v8/2
b:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/GPUDirectTCPX_v7/2
b:1:2 [0] NCCL INFO CollNet 00/0 : 8 [receive] via COLLNET/SHARP/0/GDRDMA
b:1:2 [0] NCCL INFO NET/IB: Dev 1 Port 1 qpn 34 mtu 3 LID 12
)");
  EXPECT_EQ(log.versions, std::set<std::string>{"2.5.6+cuda10.0"});
  EXPECT_EQ(log.hcas, std::set<std::string>{"mlx5_0:1/IB"});
  EXPECT_EQ(log.connections, (Connections{{"NET/IB", 2},
                                          {"P2P/direct pointer", 1},
                                          {"SHM/direct", 2},
                                          {"NET/AWS Libfabric", 1},
                                          {"NET/IBext_v8", 1},
                                          {"NET/GPUDirectTCPX_v7", 1},
                                          {"COLLNET/SHARP", 1}}));
  EXPECT_EQ(log.over_rdma(), 5);
  EXPECT_EQ(log.over_tcp(), 1);
  EXPECT_TRUE(log.gid_indices.empty()) << "InfiniBand has a LID, no GID index";
}

TEST(NcclLog, MergedNics) {
  const NcclLog log = parse(
      "n:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [2]={[0] mlx5_0:1/RoCE, [1] "
      "mlx5_1:1/RoCE} [RO]; OOB eth0:fe80::1%eth0<0>\n");
  EXPECT_EQ(log.devices(), (std::set<std::string>{"mlx5_0", "mlx5_1"}));
}

// mpirun --tag-output, srun -l and NCCL_DEBUG_TIMESTAMP_FORMAT put something in front; Windows' line ends follow.
TEST(NcclLog, PrefixesOfLaunchers) {
  for (const std::string prefix :
       {"[1,4]<stdout>:[4]: ", "12: ", "[2026-11-21 08:00:00] ", "\033[36m(worker pid=3)\033[0m "}) {
    const NcclLog log = parse(prefix + "h:1:2 [0] NCCL INFO Using network IB\r\n" + prefix +
                              "h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0\r\n");
    EXPECT_EQ(log.networks, std::set<std::string>{"IB"}) << prefix;
    EXPECT_EQ(log.over_rdma(), 1) << prefix;
  }
}

TEST(NcclLog, WarningsOnce) {
  std::string text;
  for (int i = 0; i < 100; ++i)
    text += "n:1:2 [0] misc/ibvwrap.cc:187 NCCL WARN Call to ibv_modify_qp failed with error Network is unreachable\n";
  for (int i = 0; i < 100; ++i) text += "n:1:2 [0] NCCL WARN another " + std::to_string(i) + "\n";
  const NcclLog log = parse(text);
  ASSERT_EQ(log.warnings.size(), 8u);
  EXPECT_EQ(log.warnings[0], "Call to ibv_modify_qp failed with error Network is unreachable");
  EXPECT_EQ(log.warnings[1], "another 0");
  EXPECT_EQ(log.lines, 200);
}

TEST(NcclLog, WhatIsNoLog) {
  EXPECT_EQ(parse("").lines, 0);
  EXPECT_EQ(parse("Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0\nUsing network IB\n").lines, 0);
  const NcclLog garbage = parse(
      "NCCL INFO NET/IB : Using [0]\nNCCL INFO Channel via NET/\nNCCL INFO NET/IB\n"
      "NCCL INFO NET/Socket : Using [x]eth0:1 [9999999999]eth1:1 [0]:\nNCCL version mismatch\n"
      "NCCL INFO NET/IB : Using [0]:1/RoCE [1]mlx5_0:x/RoCE [2]mlx5_0:1\n");
  EXPECT_EQ(garbage.lines, 6);
  EXPECT_TRUE(garbage.hcas.empty());
  EXPECT_TRUE(garbage.connections.empty());
  EXPECT_TRUE(garbage.versions.empty());
}

TEST(NcclLog, ControlCharactersDoNotReachTheTerminal) {
  const NcclLog log = parse("NCCL INFO Using network I\033[31mB\nNCCL INFO Channel 0 : 0 -> 1 via NET/\001\377/0\n");
  EXPECT_EQ(log.networks, std::set<std::string>{"I?[31mB"});
  EXPECT_TRUE(log.connections.contains("NET/??"));
  EXPECT_NO_THROW(log.json().dump());
}

// Bytes come from a pipe in pieces of any size.
TEST(NcclLog, PiecesOfAnySize) {
  const NcclLog whole = parse(roce);
  for (const std::size_t size : {1u, 2u, 7u, 63u, 1000u}) {
    NcclLog log;
    rdma::NcclLogStream stream(log);
    for (std::size_t at = 0; at < roce.size(); at += size) stream.add(std::string_view(roce).substr(at, size));
    stream.end();
    EXPECT_EQ(log.json(), whole.json()) << size;
  }
}

TEST(NcclLog, LastLineWithoutNewlineAndALineWithoutEnd) {
  EXPECT_EQ(parse("NCCL INFO Using network IB").networks, std::set<std::string>{"IB"});
  std::string endless;
  endless.resize(10'000'000, 'x');
  const NcclLog log = parse(endless + "\nNCCL INFO Using network IB\n");
  EXPECT_EQ(log.networks, std::set<std::string>{"IB"});
}

}  // namespace nccl_log_test
