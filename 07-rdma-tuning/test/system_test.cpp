#include "rdma_tune/system.hpp"

#include "tree.hpp"

#include <multinode/base/text.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

namespace system_test {

using rdma::Device, rdma::Gid, rdma::GidType, rdma::LinkLayer, rdma::Port, rdma::read_system, rdma::System;
using rdma::testing::Tree;

const Device& device(const System& system, std::string_view name) {
  const auto found = std::ranges::find(system.devices, name, &Device::name);
  if (found == system.devices.end()) throw std::runtime_error("no device " + std::string(name));
  return *found;
}

const rdma::NetDevice& net_device(const System& system, std::string_view name) {
  const auto found = std::ranges::find(system.net_devices, name, &rdma::NetDevice::name);
  if (found == system.net_devices.end()) throw std::runtime_error("no interface " + std::string(name));
  return *found;
}

std::string joined(const std::vector<std::string>& lines) { return multinode::join(lines, "\n"); }

// What a shell script printed of the GIDs when each tree was dumped: "rxe0 1 0 fe80:...:0003 RoCE v2 eth0".
TEST(System, ReadsOfRealTreesWhatWasPrintedThen) {
  for (const char* name : {"s1-plain", "s2-readd", "s3-nov4", "s4-vlan", "s5-multi", "s6-down", "s7-bond"}) {
    const Tree tree = Tree::load(name);
    const System system = read_system(tree.sys());
    std::string got;
    for (const Device& d : system.devices)
      for (const Port& port : d.ports) {
        EXPECT_EQ(port.link_layer, LinkLayer::ethernet);
        EXPECT_EQ(port.slots, 1024);
        for (const Gid& gid : port.gids)
          got += d.name + " " + std::to_string(port.number) + " " + std::to_string(gid.index) + " " +
                 rdma::sysfs_gid(gid.address) + (gid.type == GidType::roce_v2 ? " RoCE v2 " : " ? ") + gid.net_device +
                 "\n";
      }
    std::ifstream summary(std::string(RDMA_FIXTURES) + "/" + name + ".summary");
    std::string expected;
    for (std::string line; std::getline(summary, line) && line.starts_with("rxe");) expected += line + "\n";
    EXPECT_FALSE(expected.empty());
    EXPECT_EQ(got, expected) << name;
    EXPECT_EQ(joined(system.problems), "") << name;
  }
}

TEST(System, PortsAndInterfacesOfARealTree) {
  const Tree tree = Tree::load("s6-down");
  const System system = read_system(tree.sys());
  std::string got;
  for (const Device& d : system.devices)
    for (const Port& port : d.ports)
      got += d.name + " " + d.node_type + d.pci + ": " + port.state + " " + port.phys_state + "\n";
  EXPECT_EQ(got, "rxe0 CA: ACTIVE LinkUp\nrxe1 CA: DOWN Disabled\nrxe2 CA: DOWN Polling\n");
  EXPECT_EQ(device(system, "rxe0").ports.at(0).rate, "2.5 Gb/sec (1X SDR)");
  EXPECT_EQ(device(system, "rxe0").ports.at(0).gbit_per_second, 2.5);
  EXPECT_EQ(device(system, "rxe0").net_devices, std::vector<std::string>{"eth0"});
  const auto &eth0 = net_device(system, "eth0"), &bond0 = net_device(system, "bond0");
  EXPECT_TRUE(eth0.is_up && !eth0.is_virtual && eth0.mtu == 1500);
  EXPECT_FALSE(net_device(system, "v0").is_up || net_device(system, "v1").is_up);
  EXPECT_TRUE(bond0.is_bond && bond0.is_virtual && net_device(system, "lo").is_loopback);
}

TEST(System, HardwareAndItsPlace) {
  const Tree tree = Tree::load("mlx5-pairs");
  const System system = read_system(tree.sys());
  const Device& hca = device(system, "mlx5_0");
  EXPECT_EQ(hca.pci, "0000:3d:00.0");
  EXPECT_EQ(hca.numa_node, 0);
  EXPECT_TRUE(system.has_gpu);
  // Behind a domain of five digits, as Intel's VMD makes them.
  EXPECT_TRUE(read_system(Tree("gpu pci10000:00/10000:00:02.0/10000:3b:00.0 1").sys()).has_gpu);
  EXPECT_TRUE(net_device(system, "eth0").has_default_route);
  EXPECT_EQ(joined(system.problems), "");
}

TEST(System, InNaturalOrder) {
  Tree tree;
  for (const char* name : {"mlx5_10", "mlx5_9", "mlx5_bond_0", "mlx5_1", "ibp3s0", "mlx4_0"})
    tree.add(std::string("D /sys/class/infiniband/") + name);
  std::string names;
  for (const Device& d : read_system(tree.sys()).devices) names += d.name + " ";
  EXPECT_EQ(names, "ibp3s0 mlx4_0 mlx5_1 mlx5_9 mlx5_10 mlx5_bond_0 ");
}

// What a file of sysfs should not hold is unknown, reaches no terminal, and does not touch the other device.
TEST(System, GarbageIsUnknown) {
  const std::string hca = "/sys/class/infiniband/mlx5_0", port = hca + "/ports/1";
  const std::vector<std::string> names{
      "state = yes",       "state = x: ACTIVE", "phys_state = \\x01\\x02", "rate = -1 Gb/sec",
      "rate = nan Gb/sec", "rate = fast",       "link_layer = Token Ring"};
  for (const std::string& garbage : names) {
    const Tree tree("include two-indices\nF 444 " + port + "/" + garbage);
    const System system = read_system(tree.sys());
    const Port& bad = device(system, "mlx5_0").ports.at(0);
    EXPECT_TRUE(bad.state.empty() || bad.phys_state.empty() || bad.gbit_per_second == 0 ||
                bad.link_layer == LinkLayer::unknown)
        << garbage;
    EXPECT_EQ(device(system, "mlx5_1").ports.at(0).gids.size(), 6U) << garbage;
  }
  for (const char* gid : {"fe80::1", "", "0000:0000:0000:0000:0000:ffff:0a01:000g",
                          "0000:0000:0000:0000:0000-ffff:0a01:0001", "0000:0000:0000:0000:0000:ffff:0a01:0001:0000"}) {
    const Tree tree("include two-indices\nF 444 " + port + "/gids/3 = " + gid);
    EXPECT_EQ(device(read_system(tree.sys()), "mlx5_0").ports.at(0).gids.size(), 3U) << gid;
  }
  const Tree tree("include two-indices\nF 444 " + hca + "/fw_ver = \\x1b[31mred\nF 444 " + hca + "/board_id = " +
                  std::string(5000, 'x') + "\nD /sys/class/infiniband/mlx5,0\nD " + hca + "/ports/0\nD " + hca +
                  "/ports/300\nF 444 " + port + "/gids/-1 = 1\nF 444 " + port + "/gids/99999999999 = 1\nF 444 " + port +
                  "/gid_attrs/types/3 = RoCE v3\nF 444 " + port + "/gid_attrs/ndevs/3 = a b\n");
  const System system = read_system(tree.sys());
  ASSERT_EQ(system.devices.size(), 2U);
  const Device& bad = device(system, "mlx5_0");
  EXPECT_EQ(bad.firmware + bad.board, "");
  ASSERT_EQ(bad.ports.size(), 1U);
  ASSERT_EQ(bad.ports[0].gids.size(), 4U);
  EXPECT_EQ(bad.ports[0].gids[3].type, GidType::unknown);
  EXPECT_EQ(bad.ports[0].gids[3].net_device, "");
}

}  // namespace system_test
