#include "rdma_tune/choice.hpp"

#include "tree.hpp"

#include <multinode/check.hpp>
#include <multinode/text.hpp>
#include <testing/program_test.hpp>

#include <gtest/gtest.h>

#include <algorithm>

namespace choice_test {

using rdma::Choice, rdma::choose, rdma::Export, rdma::Family, rdma::PortChoice, rdma::Subnet, rdma::System,
    rdma::Wanted;
using rdma::testing::Tree;

// A tree, read, and what is chosen of it.
struct Chosen {
  Tree tree;
  System system;
  Choice choice;
  explicit Chosen(const std::string& name, const Wanted& wanted = {}, const std::string& more = "")
      : tree(Tree::load(name)) {
    tree.add(more);
    system = rdma::read_system(tree.sys());
    choice = choose(system, wanted);
  }

  const PortChoice& port(const std::string& device) const {
    for (const PortChoice& port : choice.ports)
      if (port.device->name == device) return port;
    throw std::runtime_error("no device " + device);
  }
  int index(const std::string& device) const { return port(device).chosen; }
  std::string reason(const std::string& device, int index) const {
    const PortChoice& p = port(device);
    for (std::size_t i = 0; i < p.gids.size(); ++i)
      if (p.port->gids[i].index == index) return p.gids[i].chosen ? "chosen" : p.gids[i].reason;
    return "left out";
  }
  std::string warnings() const { return multinode::join(choice.warnings, "\n"); }
  // "NAME=value ..." but for what is the same everywhere.
  std::string exports(rdma::NcclVersion nccl = {2, 28}, bool by_index = false) const {
    std::string all;
    for (const Export& one : rdma::exports(system, choice, nccl, by_index))
      if (one.name != "NCCL_SOCKET_NTHREADS" && one.name != "NCCL_NSOCKS_PERTHREAD")
        all += (all.empty() ? "" : " ") + one.name + "=" + one.value;
    return all;
  }
};

Wanted on(const std::string& subnet) { return {.subnet = Subnet::parse(subnet)}; }

TEST(Choice, OfRealSoftRoceDevices) {
  const std::string soft = "UCX_NET_DEVICES=rxe0:1 UCX_IB_GID_INDEX=1 UCX_UD_VERBS_ETH_DGID_CHECK=n";
  const Chosen plain("s1-plain");
  EXPECT_EQ(plain.reason("rxe0", 0), "link-local (fe80)");
  EXPECT_EQ(plain.reason("rxe0", 1), "chosen");
  EXPECT_EQ(plain.reason("rxe0", 2), "IPv6");
  EXPECT_EQ(plain.reason("rxe0", 3), "left out");
  EXPECT_EQ(plain.port("rxe0").gids[1].reason, "RoCE v2, IPv4");
  EXPECT_EQ(plain.exports(), soft);
  EXPECT_EQ(plain.warnings(), "");
  EXPECT_EQ(perftest_arguments(plain.choice), "-d rxe0 -i 1 -x 1");

  const Chosen twice("s2-readd");
  EXPECT_EQ(twice.index("rxe0"), 1);
  EXPECT_EQ(twice.reason("rxe0", 3), "fits too, but 1 comes first; see --subnet");
  EXPECT_SAYS(twice.warnings(), "rxe0 port 1: 2 GIDs fit, and the first is taken");
  const Chosen other("s2-readd", on("10.9.0.0/16"));
  EXPECT_EQ(other.index("rxe0"), 3);
  EXPECT_EQ(other.reason("rxe0", 1), "not in 10.9.0.0/16");

  const Chosen vlan("s4-vlan");
  EXPECT_EQ(vlan.exports(), soft);
  EXPECT_EQ(vlan.reason("rxe0", 4), "VLAN 100");
  EXPECT_EQ(Chosen("s4-vlan", {.subnet = Subnet::parse("192.168.100.0/24"), .vlan = true}).index("rxe0"), 4);

  const Chosen three("s5-multi");
  EXPECT_EQ(three.exports(), "UCX_NET_DEVICES=rxe0:1,rxe1:1,rxe2:1 UCX_IB_GID_INDEX=1 UCX_UD_VERBS_ETH_DGID_CHECK=n");
  EXPECT_SAYS(three.warnings(), "rxe0 port 1 is slower than others (2.5 Gb/sec");

  const Chosen down("s6-down");
  EXPECT_EQ(down.exports(), soft);
  EXPECT_EQ(down.reason("rxe1", 1), "port is DOWN");
  EXPECT_EQ(down.reason("rxe1", 0), "link-local (fe80)");
  EXPECT_FALSE(down.port("rxe2").usable);

  EXPECT_EQ(Chosen("s7-bond").exports(),
            "UCX_NET_DEVICES=rxe_bond_0:1 UCX_IB_GID_INDEX=1 UCX_UD_VERBS_ETH_DGID_CHECK=n");
}

TEST(Choice, Ipv6WhereThereIsNoIpv4) {
  const Chosen soft("s3-nov4");
  EXPECT_EQ(soft.index("rxe0"), 2);
  EXPECT_EQ(soft.warnings(), "no IPv4 GID is usable: IPv6 GIDs are used");
  const Chosen mlx5("ipv6-only");
  EXPECT_EQ(mlx5.index("mlx5_0"), 3);
  EXPECT_EQ(mlx5.reason("mlx5_0", 2), "RoCE v1");
  const Chosen none("ipv6-only", {.family = Family::ipv4});
  EXPECT_FALSE(none.choice.has_rdma());
  EXPECT_EQ(none.reason("mlx5_0", 3), "IPv6");
  EXPECT_EQ(none.warnings(), "mlx5_0 port 1: no GID fits: link-local (fe80), RoCE v1, IPv6");
  EXPECT_EQ(Chosen("s1-plain", {.family = Family::ipv6}).index("rxe0"), 2);
  EXPECT_EQ(Chosen("mlx5-pairs", {.family = Family::ipv6}).index("mlx5_0"), 5);
  EXPECT_EQ(Chosen("s1-plain", on("fd00::/8")).index("rxe0"), 2);
}

// Shared mode: the RDMA device is seen from a namespace that its network interface is not in.
TEST(Choice, OfAnotherNetworkNamespace) {
  const std::string classes =
      "L /sys/class/infiniband/rxe_bond_0 -> ../../devices/virtual/infiniband/rxe_bond_0\n"
      "F 444 /sys/class/net/lo/flags = 0x9\\n\nF 444 /sys/class/net/lo/type = 772\\n\n"
      "F 644 /sys/class/net/bonding_masters = bond0\\n";
  const Chosen shared("s8-netns-shared", {}, classes);
  EXPECT_EQ(shared.reason("rxe_bond_0", 0), "link-local (fe80)");
  EXPECT_EQ(shared.reason("rxe_bond_0", 1), "of another network namespace: no bond0 here");
  EXPECT_EQ(shared.exports(), "NCCL_IB_DISABLE=1");

  const Chosen pod("pod-vf");
  EXPECT_EQ(pod.index("mlx5_4"), 7);
  EXPECT_EQ(pod.reason("mlx5_4", 2), "of another network namespace? cannot read its type: Is a directory");
  EXPECT_EQ(pod.exports(),
            "NCCL_IB_ADDR_FAMILY=AF_INET NCCL_IB_ROCE_VERSION_NUM=2 NCCL_IB_ADDR_RANGE=10.244.3.0/24 "
            "UCX_NET_DEVICES=mlx5_4:1 UCX_IB_GID_INDEX=7");
}

// An interface of the same name in this namespace, with other addresses.
TEST(Choice, AnAddressThatTheInterfaceDoesNotHave) {
  const Tree tree = Tree::load("mlx5-pairs");
  System system = rdma::read_system(tree.sys());
  for (rdma::NetDevice& net : system.net_devices)
    if (net.name == "enp61s0") net.addresses = {"10.1.0.50/24", "fe80::1/64"};
  Choice choice = choose(system, Wanted{Family::ipv4, {}, {}, false});
  EXPECT_EQ(choice.ports.at(0).chosen, -1);
  EXPECT_EQ(choice.ports.at(0).gids.at(3).reason, "of another network namespace: not an address of enp61s0 here");
  for (rdma::NetDevice& net : system.net_devices)
    if (net.name == "enp61s0") net.addresses = {"10.1.0.5/24", "fe80::1/64"};
  EXPECT_EQ(choose(system, {}).ports.at(0).chosen, 3);
}

TEST(Choice, OfHardware) {
  const Chosen pairs("mlx5-pairs");
  EXPECT_EQ(pairs.index("mlx5_0"), 3);
  EXPECT_EQ(pairs.reason("mlx5_0", 2), "RoCE v1");
  EXPECT_EQ(pairs.reason("mlx5_0", 5), "IPv6");

  const Chosen bond("bond-12");
  EXPECT_EQ(bond.exports(), "UCX_NET_DEVICES=mlx5_bond_0:1 UCX_IB_GID_INDEX=15");

  const Chosen silent("ipv4-link-local");
  EXPECT_EQ(silent.index("mlx5_0"), 5);
  EXPECT_EQ(silent.reason("mlx5_0", 3), "link-local (169.254)");

  const Chosen down("ports-down");
  EXPECT_EQ(down.exports(), "UCX_NET_DEVICES=mlx5_1:1 UCX_IB_GID_INDEX=3");
  EXPECT_EQ(down.reason("mlx5_0", 3), "port is DOWN");
  EXPECT_EQ(down.reason("mlx5_2", 3), "port is INIT");
}

TEST(Choice, OfAVlan) {
  const Chosen without("vlan");
  EXPECT_FALSE(without.choice.has_rdma());
  EXPECT_EQ(without.reason("mlx5_0", 5), "VLAN 200");
  EXPECT_EQ(without.warnings(), "mlx5_0 port 1: no GID fits: link-local (fe80), RoCE v1, VLAN 200 (--vlan takes it)");
  EXPECT_EQ(Chosen("vlan", {.vlan = true}).exports(), "UCX_NET_DEVICES=mlx5_0:1 UCX_IB_GID_INDEX=5");
}

TEST(Choice, InfiniBandNeedsNoGid) {
  const Chosen chosen("infiniband");
  EXPECT_EQ(chosen.exports(), "UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1");
  EXPECT_EQ(chosen.reason("mlx5_0", 0), "InfiniBand needs none");
  EXPECT_EQ(perftest_arguments(chosen.choice), "-d mlx5_0 -i 1");
}

TEST(Choice, InfiniBandOrRoceNotBoth) {
  const Chosen both("infiniband-and-roce");
  EXPECT_EQ(both.exports(),
            "NCCL_IB_HCA==mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_5:1,mlx5_6:1,mlx5_7:1,mlx5_8:1 "
            "UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_5:1,mlx5_6:1,mlx5_7:1,mlx5_8:1");
  EXPECT_EQ(both.reason("mlx5_4", 3), "RoCE beside InfiniBand, which has more bandwidth; see --device");
  EXPECT_EQ(both.index("mlx5_4"), -1);
  const Chosen roce("infiniband-and-roce", {.devices = {"mlx5_4", "mlx5_9"}});
  EXPECT_EQ(roce.exports(), "NCCL_IB_HCA==mlx5_4:1,mlx5_9:1 UCX_NET_DEVICES=mlx5_4:1,mlx5_9:1 UCX_IB_GID_INDEX=3");
  EXPECT_EQ(roce.port("mlx5_0").reason, "not asked for");
}

TEST(Choice, DifferentIndices) {
  const Chosen chosen("two-indices");
  EXPECT_EQ(chosen.index("mlx5_0"), 3);
  EXPECT_EQ(chosen.index("mlx5_1"), 5);
  EXPECT_EQ(chosen.exports(), "UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1");
  // One index for all is all that it knows.
  EXPECT_EQ(chosen.exports({2, 20}),
            "NCCL_IB_HCA==mlx5_0:1 NCCL_IB_GID_INDEX=3 UCX_NET_DEVICES=mlx5_0:1 UCX_IB_GID_INDEX=3");
  EXPECT_SAYS(rdma::exports(chosen.system, chosen.choice, {2, 20}).at(0).remark, "without mlx5_1");
}

// 169.254 before the address on one of them: only a range keeps NCCL from it.
TEST(Choice, DifferentIndicesAndARange) {
  const Chosen chosen("two-indices", {}, "addresses mlx5_1 rail1 2 169.254.1.9");
  EXPECT_EQ(chosen.index("mlx5_1"), 5);
  EXPECT_EQ(chosen.exports(),
            "NCCL_IB_ADDR_FAMILY=AF_INET NCCL_IB_ROCE_VERSION_NUM=2 NCCL_IB_ADDR_RANGE=10.1.0.0/23 "
            "UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1");
  EXPECT_SAYS(Chosen("two-indices", on("10.1.0.0/16")).exports(), "NCCL_IB_ADDR_RANGE=10.1.0.0/16 ");
}

// The networks' own prefixes, where they are known: other nodes' addresses are in there too.
TEST(Choice, TheRangeIsThatOfTheInterfaces) {
  const Tree tree("include two-indices\naddresses mlx5_1 rail1 2 169.254.1.9");
  System system = rdma::read_system(tree.sys());
  for (rdma::NetDevice& net : system.net_devices) {
    if (net.name == "rail0") net.addresses = {"fe80::1/64", "10.1.0.5/20"};
    if (net.name == "rail1") net.addresses = {"10.1.1.5/24"};
  }
  std::string range;
  for (const Export& one : rdma::exports(system, choose(system, {}), {2, 28}))
    if (one.name == "NCCL_IB_ADDR_RANGE") range = one.value;
  EXPECT_EQ(range, "10.1.0.0/20");
}

// The interface for sockets on a machine without RDMA, of those given.
std::string socket_interface(const std::vector<rdma::NetDevice>& net_devices) {
  System system;
  system.net_devices = net_devices;
  for (const Export& one : rdma::exports(system, choose(system, {}), {2, 28}))
    if (one.name == "NCCL_SOCKET_IFNAME") return one.value;
  return "none";
}

TEST(Choice, TheInterfaceForSockets) {
  const rdma::NetDevice eth0{.name = "eth0", .is_up = true}, eth1{.name = "eth1", .is_up = true}, down{.name = "eno1"},
      lo{.name = "lo", .is_up = true, .is_loopback = true, .is_virtual = true},
      ipoib{.name = "ib0", .is_up = true, .is_infiniband = true},
      slave{.name = "ens1", .is_up = true, .has_master = true},
      bond{.name = "bond0", .is_up = true, .is_bond = true, .is_virtual = true},
      route{.name = "veth0", .is_up = true, .has_default_route = true, .is_virtual = true},
      vlan{.name = "eth1.5", .is_up = true, .vlan = 5}, docker{.name = "docker0", .is_up = true, .is_virtual = true},
      container{.name = "eth0", .is_up = true, .is_virtual = true};
  EXPECT_EQ(socket_interface({}), "none");
  EXPECT_EQ(socket_interface({lo, down}), "none");
  EXPECT_EQ(socket_interface({lo, down, docker, eth0}), "=eth0");
  EXPECT_EQ(socket_interface({docker, slave, bond, lo}), "=bond0");
  EXPECT_EQ(socket_interface({ipoib, vlan, eth1}), "=eth1");
  EXPECT_EQ(socket_interface({lo, ipoib}), "=ib0");
  EXPECT_EQ(socket_interface({container, lo}), "=eth0");
  EXPECT_EQ(socket_interface({eth0, route}), "=veth0");
}

TEST(Choice, OnlyInfiniBandAndRoce) {
  const std::string device = "/sys/class/infiniband/mlx5_0/node_type";
  const Chosen iwarp("mlx5-pairs", {}, "F 444 " + device + " = 4: RNIC\\n");
  EXPECT_EQ(iwarp.port("mlx5_0").reason, "neither InfiniBand nor RoCE: node type RNIC");
  EXPECT_FALSE(iwarp.choice.has_rdma());
}

TEST(Choice, AllOfEight) {
  const Chosen chosen("eight-hcas");
  EXPECT_EQ(
      chosen.exports(),
      "UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_7:1 UCX_IB_GID_INDEX=3");
}

// The rule is what stays right when an index moves. An index comes on request, and where no rule leads NCCL there.
TEST(Choice, AnIndexOnlyOnRequestOrWithoutARule) {
  const Chosen silent("ipv4-link-local");
  EXPECT_EQ(silent.exports(),
            "NCCL_IB_ADDR_FAMILY=AF_INET NCCL_IB_ROCE_VERSION_NUM=2 NCCL_IB_ADDR_RANGE=10.1.0.0/24 "
            "UCX_NET_DEVICES=mlx5_0:1 UCX_IB_GID_INDEX=5");
  EXPECT_EQ(silent.exports({2, 20}), "NCCL_IB_GID_INDEX=5 UCX_NET_DEVICES=mlx5_0:1 UCX_IB_GID_INDEX=5");
  EXPECT_EQ(silent.exports({2, 28}, true), "NCCL_IB_GID_INDEX=5 UCX_NET_DEVICES=mlx5_0:1 UCX_IB_GID_INDEX=5");
  // NCCL 2.25 fails at a slot of the same network that it cannot read: no range leads it past.
  const std::string slots = "G /sys/class/infiniband/mlx5_0/ports/1 3 10.1.0.6 ! !";
  EXPECT_EQ(Chosen("ipv4-link-local", {}, slots).exports({2, 25}),
            "NCCL_IB_GID_INDEX=5 UCX_NET_DEVICES=mlx5_0:1 UCX_IB_GID_INDEX=5");
  // IPv6 alone: NCCL wants IPv4 unless told.
  EXPECT_EQ(Chosen("ipv6-only").exports(),
            "NCCL_IB_ADDR_FAMILY=AF_INET6 NCCL_IB_ROCE_VERSION_NUM=2 UCX_NET_DEVICES=mlx5_0:1 UCX_IB_GID_INDEX=3");
}

TEST(Choice, WithoutRdma) {
  const Chosen chosen("no-device");
  EXPECT_FALSE(chosen.choice.has_rdma());
  EXPECT_EQ(chosen.exports(), "NCCL_IB_DISABLE=1 NCCL_SOCKET_IFNAME==eth0 UCX_NET_DEVICES=eth0");
  EXPECT_EQ(perftest_arguments(chosen.choice), "");
}

TEST(Choice, WhatCannotBeReadIsNotTaken) {
  const Chosen chosen("unreadable");
  EXPECT_EQ(chosen.index("mlx5_0"), 3);
  EXPECT_EQ(chosen.reason("mlx5_0", 1), "left out");
  EXPECT_EQ(chosen.port("mlx5_1").reason, "port state not known");
  EXPECT_EQ(chosen.port("mlx5_2").reason, "link layer not known");
  EXPECT_EQ(chosen.exports(),
            "NCCL_IB_HCA==mlx5_0:1 "
            "UCX_NET_DEVICES=mlx5_0:1 UCX_IB_GID_INDEX=3");
}

TEST(Subnet, ParsedAndPrinted) {
  for (const char* text : {"10.0.0.0/16", "0.0.0.0/0", "192.168.77.1/32", "fd00::/8", "::/0", "fe80::1/128"})
    EXPECT_EQ(Subnet::parse(text).text(), text);
  EXPECT_EQ(Subnet::parse("10.0.0.1").text(), "10.0.0.1/32");
  for (const char* text : {"", "/", "10.0.0/8", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/", "10.0.0.0/8x", "fd00::/129",
                           "eth0", "10.0.0.0 /8", "10.0.0.0/99999999999"})
    EXPECT_THROW(Subnet::parse(text), multinode::UsageError) << text;
  const auto contains = [](const char* subnet, const char* address) {
    return Subnet::parse(subnet).contains(Subnet::parse(address).address);
  };
  EXPECT_TRUE(contains("10.0.0.0/15", "10.1.255.255"));
  EXPECT_FALSE(contains("10.0.0.0/15", "10.2.0.0"));
  EXPECT_TRUE(contains("0.0.0.0/0", "1.2.3.4"));
  EXPECT_FALSE(contains("0.0.0.0/0", "fd00::1"));
  EXPECT_TRUE(contains("fd00::/8", "fdff::1"));
}

}  // namespace choice_test
