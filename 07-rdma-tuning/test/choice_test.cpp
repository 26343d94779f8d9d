#include "rdma_tune/choice.hpp"
#include "rdma_tune/exports.hpp"
#include "rdma_tune/options.hpp"
#include "rdma_tune/table.hpp"

#include "tree.hpp"

#include <multinode/base/check.hpp>
#include <test/support/program_test.hpp>

#include <nlohmann/json.hpp>

#include <gtest/gtest.h>

#include <algorithm>

namespace choice_test {

using rdma::Choice, rdma::choose, rdma::Export, rdma::PortChoice, rdma::Subnet, rdma::System, rdma::Wanted;
using rdma::testing::Tree;

// A tree, what rdma_tune reads from it, and its choice.
struct Chosen {
  Tree tree;
  System system;
  Choice choice;
  explicit Chosen(const std::string& name, const Wanted& wanted = {}, const std::string& more = "")
      : tree("include " + name + "\n" + more), system(rdma::read_system(tree.sys())), choice(choose(system, wanted)) {}

  // A line for each port, GID and warning: "mlx5_1: port is DOWN", "mlx5_0 3: chosen, RoCE v2, IPv4", "warning: ...".
  std::string text() const {
    std::string all;
    for (const PortChoice& port : choice.ports) {
      all += port.device->name + ": " + (port.usable ? "usable" : port.reason) + "\n";
      for (std::size_t i = 0; i < port.gids.size(); ++i)
        all += port.device->name + " " + std::to_string(port.port->gids[i].index) +
               (port.gids[i].chosen ? ": chosen, " : ": ") + port.gids[i].reason + "\n";
    }
    for (const std::string& warning : choice.warnings) all += "warning: " + warning + "\n";
    return all;
  }
  // "NAME=value ...", without the variables whose values are always the same.
  std::string exports(rdma::NcclVersion nccl = {2, 28}) const {
    std::string all;
    for (const Export& one : rdma::exports(system, choice, nccl))
      if (one.name != "NCCL_SOCKET_NTHREADS" && one.name != "NCCL_NSOCKS_PERTHREAD")
        all += (all.empty() ? "" : " ") + one.name + "=" + one.value;
    return all;
  }
  // With these variables, NCCL uses the chosen ports and GIDs alone.
  void expect_that_nccl_agrees() const {
    for (int minor = 20; minor < 30; ++minor) {
      multinode::Environment variables;
      for (const Export& one : rdma::exports(system, choice, {2, minor})) variables[one.name] = one.value;
      for (const auto& [device, port, takes] : nccl_ports(system, {2, minor}, variables)) {
        const PortChoice& ours = *std::ranges::find(choice.ports, port, &PortChoice::port);
        EXPECT_EQ(takes, ours.chosen < 0 ? "used" : std::to_string(ours.chosen))
            << device->name << ", NCCL 2." << minor;
        EXPECT_TRUE(ours.usable) << device->name << ", NCCL 2." << minor;
      }
    }
  }
};

// The exports for one index and these ports.
std::string one_index(int gid, const std::string& ports) {
  const std::string number = std::to_string(gid);
  return "NCCL_IB_GID_INDEX=" + number + " UCX_NET_DEVICES=" + ports + " UCX_IB_GID_INDEX=" + number;
}

Wanted on(const std::string& subnet) { return {.subnet = Subnet::parse(subnet)}; }

const std::string link_local_on_rail1 = "addresses mlx5_1 rail1 2 169.254.1.9";

TEST(Choice, OfEachTree) {
  const std::string unchecked = " UCX_UD_VERBS_ETH_DGID_CHECK=n", soft = one_index(1, "rxe0:1") + unchecked,
                    sockets = "NCCL_SOCKET_IFNAME==eth0 UCX_NET_DEVICES=eth0",
                    rule = "NCCL_IB_ADDR_FAMILY=AF_INET NCCL_IB_ROCE_VERSION_NUM=2 NCCL_IB_ADDR_RANGE=",
                    of_8 = "mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_5:1,mlx5_6:1,mlx5_7:1,mlx5_8:1";
  // The RDMA device is seen from a namespace that its network interface is not in.
  const std::string shared_mode =
      "L /sys/class/infiniband/rxe_bond_0 -> ../../devices/virtual/infiniband/rxe_bond_0\n"
      "F 444 /sys/class/net/lo/flags = 0x9\\n\nF 444 /sys/class/net/lo/type = 772\\n\n"
      "F 644 /sys/class/net/bonding_masters = bond0\\n";
  const std::string port = "/sys/class/infiniband/mlx5_0/ports/1", mlx5_1 = "/sys/class/infiniband/mlx5_1/ports/1";
  const std::string no_address = "Z " + port + " 16\naddresses mlx5_0 rail0 0 fe80::ba3f:d2ff:fe12:3456 169.254.7.9",
                    rate = " Gb/sec (4X EDR)\n", roce = "card pci0000:5a/0000:5a:00.0/0000:5b:00.",
                    beside_roce = "F 444 " + port + "/rate = 100" + rate + "F 444 " + mlx5_1 + "/state = 4: ACTIVE\n" +
                                  "F 444 " + mlx5_1 + "/rate = 0" + rate + roce + "0 0 roce0 Ethernet eth2 8 25" +
                                  rate + "addresses roce0 eth2 0 10.2.0.5\n" + roce + "1 0 roce1 Ethernet eth3 8 100" +
                                  rate + "addresses roce1 eth3 0 10.3.0.5";
  // Lines of Chosen::text(); exports "": not compared; `more`: lines added to the tree.
  const auto expect = [](const std::string& tree, const std::vector<std::string>& lines, const std::string& exports,
                         const Wanted& wanted = {}, const std::string& more = "") {
    SCOPED_TRACE(tree + " " + more);
    const Chosen chosen(tree, wanted, more);
    for (const std::string& line : lines) EXPECT_SAYS(chosen.text(), line);
    EXPECT_EQ(exports.empty() ? "" : chosen.exports(), exports);
    if (chosen.choice.has_rdma()) chosen.expect_that_nccl_agrees();
  };
  expect("s1-plain", {"rxe0 0: link-local (fe80)\n", "rxe0 1: chosen, RoCE v2, IPv4\n", "rxe0 2: IPv6\n"}, soft);
  expect("s1-plain", {"rxe0 2: chosen, RoCE v2, IPv6\n"}, "", on("fd00::/8"));
  expect("s2-readd",
         {"rxe0 1: chosen", "rxe0 3: fits too, but 1 comes first; see --subnet\n",
          "warning: rxe0 port 1: 2 GIDs fit, and the first is taken"},
         soft);
  expect("s2-readd", {"rxe0 1: not in 10.9.0.0/16\n", "rxe0 3: chosen"}, "", on("10.9.0.0/16"));
  expect("s3-nov4", {"rxe0 2: chosen", "warning: no IPv4 GID is usable: IPv6 GIDs are used\n"}, "");
  expect("s4-vlan", {"rxe0 4: VLAN 100\n"}, soft);
  expect("s4-vlan", {"rxe0 4: chosen"}, "", on("192.168.100.0/24"));
  expect("s5-multi", {"warning: rxe0 port 1 is slower than others (2.5 Gb/sec"},
         one_index(1, "rxe0:1,rxe1:1,rxe2:1") + unchecked);
  expect("s6-down", {"rxe1 0: link-local (fe80)\n", "rxe1 1: port is DOWN\n", "rxe2: port is DOWN\n"}, soft);
  expect("s7-bond", {}, one_index(1, "rxe_bond_0:1") + unchecked);
  // The port is ACTIVE: NCCL may find what sysfs hides.
  expect("s8-netns-shared",
         {"rxe_bond_0 0: link-local (fe80)\n", "rxe_bond_0 1: of another network namespace: no bond0 here\n"}, "", {},
         shared_mode);
  expect("pod-vf",
         {"mlx5_4 2: of another network namespace? cannot read its type: Is a directory\n", "mlx5_4 7: chosen"},
         one_index(7, "mlx5_4:1"));
  expect("mlx5-pairs", {"mlx5_0 2: RoCE v1\n", "mlx5_0 3: chosen", "mlx5_0 5: IPv6\n"}, "");
  expect("mlx5-pairs", {"mlx5_0 5: chosen"}, "", on("fd00::/8"));
  expect("mlx5-pairs", {"mlx5_0: neither InfiniBand nor RoCE: node type RNIC\n"}, "", {},
         "F 444 /sys/class/infiniband/mlx5_0/node_type = 4: RNIC\\n");
  expect("bond-12", {}, one_index(15, "mlx5_bond_0:1"));
  expect("ipv4-link-local", {"mlx5_0 3: link-local (169.254)\n", "mlx5_0 5: chosen"}, one_index(5, "mlx5_0:1"));
  expect("ipv6-only",  // NCCL looks for IPv4 unless a variable asks for IPv6
         {"mlx5_0 2: RoCE v1\n", "mlx5_0 3: chosen", "warning: no IPv4 GID is usable: IPv6 GIDs are used\n"},
         one_index(3, "mlx5_0:1"));
  expect("ipv6-only", {"mlx5_0 3: IPv6\n", "warning: mlx5_0 port 1: no GID fits: link-local (fe80), RoCE v1, IPv6\n"},
         "", on("10.1.0.0/16"));
  expect("ports-down",
         {"mlx5_0 3: port is DOWN\n", "mlx5_2 3: port is INIT\n",
          "warning: mlx5_2 port 1 is left out, INIT: has no subnet manager configured it?\n"},
         one_index(3, "mlx5_1:1"));
  expect("vlan", {"mlx5_0 5: chosen", "warning: the addresses of a VLAN are used, as there is no other IPv4 address\n"},
         one_index(5, "mlx5_0:1"));
  expect("vlan", {"mlx5_0: port is DOWN\n"}, sockets, {}, "F 444 /sys/class/infiniband/mlx5_0/ports/1/state = 1: DOWN");
  // 169.254 is all that netplan's `link-local: [ ipv4 ]` gives: NCCL takes it by itself, and so does rdma_tune.
  expect("ipv4-link-local",
         {"mlx5_0 3: chosen",
          "warning: link-local addresses (169.254) are used, as there are no others: no router forwards them\n"},
         one_index(3, "mlx5_0:1"), {}, no_address);
  expect("ipv4-link-local", {"mlx5_0 3: chosen"},
         "NCCL_IB_GID_INDEX=3 NCCL_SOCKET_IFNAME==rail0 GLOO_SOCKET_IFNAME=rail0 UCX_NET_DEVICES=mlx5_0:1 "
         "UCX_IB_GID_INDEX=3",
         on("169.254.0.0/16"));
  expect("infiniband", {"mlx5_0 0: InfiniBand needs none\n"}, "UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1");
  expect("infiniband-and-roce",
         {"mlx5_4 3: RoCE beside InfiniBand, which is as fast as any network of it; see --device\n",
          "warning: left out: mlx5_4 port 1 (100 Gb/sec (4X EDR)), mlx5_9 port 1 (100 Gb/sec (4X EDR)), RoCE beside"},
         "NCCL_IB_HCA==" + of_8 + " UCX_NET_DEVICES=" + of_8);
  // 100 Gbit/s of InfiniBand beside two networks of RoCE, 25 and 100: no sum over networks.
  expect("infiniband", {"mlx5_0: usable\n"}, "NCCL_IB_HCA==mlx5_0:1,mlx5_1:1 UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1", {},
         beside_roce);
  expect("infiniband-and-roce", {"mlx5_0: not asked for\n"},
         "NCCL_IB_HCA==mlx5_4:1,mlx5_9:1 " + one_index(3, "mlx5_4:1,mlx5_9:1"), {.devices = {"mlx5_4", "mlx5_9"}});
  expect(
      "two-indices",
      {"mlx5_0 3: chosen", "mlx5_1 5: chosen",
       "warning: 2 networks fit, and all are taken: 10.1.0.0/24 (mlx5_0), 10.1.1.0/24 (mlx5_1); if they cannot reach "
       "each other, choose by --subnet or --device: nothing here says which is right\n"},
      rule + "10.1.0.0/23 UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1");
  expect("two-indices",  // without the range, NCCL takes 169.254.1.9, which comes first
         {"mlx5_1 5: chosen"}, rule + "10.1.0.0/23 UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1", {}, link_local_on_rail1);
  expect("two-indices", {},
         rule + "10.1.0.0/16 NCCL_SOCKET_IFNAME==rail0 GLOO_SOCKET_IFNAME=rail0 UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1",
         on("10.1.0.0/16"));
  expect("unreadable",
         {"mlx5_0 0: link-local (fe80)\nmlx5_0 2: RoCE v1\nmlx5_0 3: chosen", "mlx5_1: port state not known\n",
          "mlx5_2: link layer not known\n"},
         "NCCL_IB_HCA==mlx5_0:1 " + one_index(3, "mlx5_0:1"));
  expect("no-device", {}, sockets);
  expect("unreadable", {}, "", {}, "X /sys/class/infiniband\nL /sys/class/infiniband -> infiniband");  // could not look
  expect("efa", {"rdmap59s0: Elastic Fabric Adapter: NCCL uses it by aws-ofi-nccl"}, "");
}

// Where networks differ, the ports that all evidence is for.
TEST(Choice, TheHintIsByEvidence) {
  const auto hint = [](const std::string& tree, const std::string& more) {
    const std::string text = Chosen(tree, {}, more).text(), start = "if they cannot reach each other, choose ";
    const auto at = text.find(start);
    return at == text.npos ? text : text.substr(at + start.size(), text.find('\n', at) - at - start.size());
  };
  const auto rate_of_0 = [](const std::string& rate) {
    return "F 444 /sys/class/infiniband/mlx5_0/ports/1/rate = " + rate + " Gb/sec (1X)\\n\n";
  };
  const std::string rails = "--device rocep10s0 --device rocep26s0 --device rocep154s0 ",
                    default_on_0 =
                        "F 444 /proc/net/route = Iface\\tDestination\\tGateway\\tFlags\\tRefCnt\\tUse\\tMetric"
                        "\\tMask\\nrail0\\t00000000\\t0100000A\\t0003\\t0\\t0\\t100\\t00000000\\n\n";
  EXPECT_EQ(hint("rails-and-storage", ""), rails + "(nearer to GPUs)");
  EXPECT_EQ(hint("rails-and-storage",
                 "X /sys/bus/pci/devices/0000:0b:00.0\nX /sys/bus/pci/devices/0000:1b:00.0\n"
                 "X /sys/bus/pci/devices/0000:9b:00.0"),
            rails + "(more alike ports)");
  // A GPU is missing: its rail is alike the others. A card of another kind, or far from them, is none.
  const std::string no_gpu = "X /sys/bus/pci/devices/0000:9b:00.0\n", rail = "F 444 /sys/class/infiniband/rocep154s0/";
  EXPECT_EQ(hint("rails-and-storage", no_gpu), rails + "(nearer to GPUs)");
  for (const std::string& other :
       {rail + "board_id = X\n", std::string("X /proc/net/route\naddresses rocep154s0 eth2r 0 fe80::1 172.24.2.1\n"),
        std::string("addresses rocep154s0 stor2 0 fe80::1 172.16.2.1\n")})
    EXPECT_EQ(hint("rails-and-storage", no_gpu + other), "--device rocep10s0 --device rocep26s0 (nearer to GPUs)");
  EXPECT_EQ(hint("two-indices", default_on_0), "--subnet 10.1.1.0/24 (without the default route)");
  EXPECT_EQ(hint("two-indices", rate_of_0("25")), "--subnet 10.1.1.0/24 (faster)");
  EXPECT_EQ(hint("two-indices", default_on_0 + rate_of_0("25")),
            "--subnet 10.1.1.0/24 (faster, without the default route)");
  EXPECT_SAYS(hint("two-indices", default_on_0 + rate_of_0("400")), "nothing here says which is right");
}

// No warning where routes lead from each rail to the others, or each has a link of two addresses.
TEST(Choice, NetworksThatMeetAreOne) {
  const auto meet = [](const std::string& routes_of_0, const std::string& routes_of_1) {
    const std::string text = Chosen("two-indices", {}, "F 444 /proc/net/route = " + routes_of_0 + routes_of_1).text();
    return text.find("2 networks fit") == text.npos;
  };
  const auto route = [](const std::string& rail, const std::string& network, const std::string& mask) {
    return "\\n" + rail + "\\t" + network + "\\t00000000\\t0001\\t0\\t0\\t0\\t" + mask;
  };
  const auto wide = [&](const std::string& rail) { return route(rail, "0000010A", "0000FFFF"); };
  EXPECT_TRUE(meet(wide("rail0"), wide("rail1")));
  EXPECT_FALSE(meet(wide("rail0"), "") || meet("", wide("rail1")));
  EXPECT_FALSE(meet(route("rail0", "00000000", "00000000"), route("rail1", "00000000", "00000000")));
  EXPECT_TRUE(meet(route("rail0", "0400010A", "FEFFFFFF"), route("rail1", "0401010A", "FEFFFFFF")));
}

// Which ports jobs use cannot be seen where two fabrics are alike; the site file says it.
TEST(Choice, TheSiteFileSaysWhatToUse) {
  const std::string port = "/sys/class/infiniband/mlx5_1/ports/1",
                    ib0 = "NCCL_IB_HCA==mlx5_0:1 UCX_NET_DEVICES=mlx5_0:1",
                    storage = "G " + port + " 0 fec0:0:0:2:b83f:d203:12:3451 ib !\n",
                    both = "warning: 2 networks fit, and all are taken: fe80::/64 (mlx5_0), fec0:0:0:2::/64 (mlx5_1)";
  const auto site = [](const std::string& text) {
    const Tree tree("F 444 /etc/multinode/rdma.conf = " + text + "\n");
    return Wanted{.site = rdma::read_site(tree.sys())};
  };
  EXPECT_SAYS(Chosen("infiniband", {}, storage).text(), both);
  EXPECT_EQ(Chosen("infiniband").text().find("warning"), std::string::npos);
  const std::pair<std::string, std::string> rules[] = {
      {"# files\\n\\nleave fec0:0:0:2::/64 # storage", "mlx5_1: left out by "},
      {"leave mlx5_[1-9]", "rdma.conf:1\n"},
      {"use fe80::/64", "mlx5_1: not among those to use in "},
      {"use mlx5_0 mlx5_7", "mlx5_1: not among those to use in "},
      {"use mlx5_*\\nleave mlx5_1", "rdma.conf:2\n"}};
  for (const auto& [text, reason] : rules) {
    const Chosen chosen("infiniband", site(text), storage);
    EXPECT_EQ(chosen.exports(), ib0) << text;
    EXPECT_SAYS(chosen.text(), reason);
    EXPECT_EQ(chosen.text().find("warning"), std::string::npos) << text;
  }
  EXPECT_EQ(Chosen("vlan", site("use 10.200.0.0/16")).choice.warnings.size(), 0U);  // it asks for this VLAN
  Wanted device = site("leave mlx5_1");  // what the user asks for comes first
  device.devices = {"mlx5_1"};
  EXPECT_SAYS(Chosen("infiniband", device, storage).text(), "mlx5_1: usable");
  EXPECT_SAYS(Chosen("two-indices", site("leave 10.1.0.0/24")).text(), "mlx5_0: left out by ");
  EXPECT_SAYS(Chosen("two-indices", site("leave 10.1.0.0/24")).text(), "mlx5_1: usable");
}

// Elastic Fabric Adapters beside GPUs carry the data: the InfiniBand ports of such nodes are for management.
TEST(Choice, EfaBesideGpusIsNotLeftForAnotherPort) {
  const std::string efa =
                        "card pci0000:6a/0000:6a:00.0/0000:6b:00.0 0 rdmap107s0 Unspecified ef0 1 400 Gb/sec\n"
                        "F 444 /sys/class/infiniband/rdmap107s0/node_type = 7: unspecified\\n\n",
                    gpu = "gpu pci0000:6a/0000:6a:00.0/0000:6c:00.0 0\n";
  const Chosen beside("infiniband", {}, efa + gpu);
  EXPECT_EQ(beside.exports(), "");
  EXPECT_SAYS(
      beside.text(),
      "left out: mlx5_0 port 1 (400 Gb/sec (4X NDR)), mlx5_1 port 1 (400 Gb/sec (4X NDR)), beside Elastic Fabric");
  EXPECT_SAYS(beside.choice.why_no_rdma(beside.system), "NCCL uses it only with the plug-in aws-ofi-nccl");
  EXPECT_SAYS(Chosen("infiniband", {}, efa).exports(), "NCCL_IB_HCA==mlx5_0:1");  // no GPU
  EXPECT_SAYS(Chosen("infiniband", {.devices = {"mlx5_0"}}, efa + gpu).exports(), "NCCL_IB_HCA==mlx5_0:1");
}

// Each node: what exec sets, and what NCCL takes without it.
TEST(Choice, OfOtherFabrics) {
  const std::string port = "/sys/class/infiniband/mlx5_0/ports/1", verbs = "F 444 /sys/class/infiniband_verbs/uverbs",
                    pod = verbs + "0/ibdev = mlx5_0\\n\n" + verbs + "1/ibdev = mlx5_1\\n\nF 666 /dev/infiniband/uverbs",
                    v1 = "Z " + port + " 16\nG " + port + " 2 10.1.0.5 v1 enp61s0",
                    iwarp = "F 444 /sys/class/infiniband/mlx5_0/node_type = 4: RNIC\\n",
                    vlan = "addresses mlx5_0 rail0 6 10.1.0.5",
                    pkeys = "F 444 " + port + "/pkeys/0 = 0x7fff\\n\nF 444 " + port + "/pkeys/1 = 0x8012\\n",
                    net = "L /sys/class/net/",
                    hsn = net + "hsn0 -> eth0\n" + net + "hsn3 -> eth0\n" + net + "hsn4 -> lo/..";
  const auto expect = [](const std::string& tree, const std::string& more, const std::string& line,
                         const std::string& exports, const std::string& nccl, const Wanted& wanted = {}) {
    const Chosen chosen(tree, wanted, more);
    EXPECT_SAYS(chosen.text(), line);
    EXPECT_EQ(chosen.exports(), exports);
    std::string takes;
    for (const rdma::NcclPort& one : nccl_ports(chosen.system, {2, 28}, {}))
      takes += one.device->name + " " + one.takes + " ";
    EXPECT_EQ(takes, nccl) << line;
  };
  expect("infiniband", pod + "1 = x", "mlx5_0: no /", "NCCL_IB_HCA==mlx5_1:1 UCX_NET_DEVICES=mlx5_1:1", "mlx5_1 used ");
  expect("infiniband", verbs + "0/ibdev = mlx5_0\\n", "mlx5_1: no verbs device",  // as of a multi-plane card's SMI
         "NCCL_IB_HCA==mlx5_0:1 UCX_NET_DEVICES=mlx5_0:1", "mlx5_0 used ");
  expect("mlx5-pairs", v1, "warning: RoCE v1 is used, as no port has v2", one_index(2, "mlx5_0:1"), "mlx5_0 2 ");
  expect("mlx5-pairs", iwarp, "node type RNIC\n", "", "mlx5_0 fails ");
  expect("vlan", vlan, "warning: mlx5_0 port 1: 10.1.0.5 of rail0 is taken, and not 10.200.0.5 of VLAN 200; --subnet",
         one_index(7, "mlx5_0:1"), "mlx5_0 5 ");
  expect("infiniband", pkeys, "P_Keys 0x7fff, 0x8012; NCCL takes the first, a limited member",
         "UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1", "mlx5_0 used mlx5_1 used ");
  expect("infiniband", pkeys, "mlx5_1: P_Key 0x8012 of the site file is not in its table\n",
         "NCCL_IB_HCA==mlx5_0:1 UCX_NET_DEVICES=mlx5_0:1 NCCL_IB_PKEY=1 UCX_IB_PKEY=0x12", "mlx5_0 used mlx5_1 used ",
         {.site = {.pkey = 0x8012}});
  // A card's second port has it at another index, and NCCL takes one index for all ports.
  const std::string second = "F 444 /sys/class/infiniband/mlx5_0/ports/2/",
                    two = pkeys + "\n" + second + "link_layer = InfiniBand\n" + second + "state = 4: ACTIVE\n" +
                          second + "pkeys/2 = 0x8012";
  const Chosen chosen("infiniband", {.site = {.pkey = 0x8012}}, two);
  EXPECT_EQ(chosen.exports(), "NCCL_IB_HCA==mlx5_0:1 UCX_NET_DEVICES=mlx5_0:1 NCCL_IB_PKEY=1 UCX_IB_PKEY=0x12");
  EXPECT_SAYS(exports(chosen.system, chosen.choice, {}).at(0).remark,
              "without mlx5_0 port 2: NCCL takes one index for all");
  EXPECT_EQ(to_json(chosen.system, chosen.choice)["ports"][1]["pkeys"], "2:0x8012");
  expect("no-device", hsn, "", "NCCL_SOCKET_IFNAME==hsn0,hsn3 UCX_NET_DEVICES=hsn0,hsn3", "");
}

TEST(Choice, SoftwareIsLeftOutBesideACard) {
  const std::string rxe =
      "L /sys/class/infiniband/rxe0 -> ../../devices/virtual/infiniband/rxe0\nD /sys/devices/virtual/infiniband/rxe0\n"
      "F 444 /sys/class/infiniband/rxe0/node_type = 1: CA\\n\nF 444 /sys/class/infiniband/rxe0/parent = eth0\\n\n"
      "F 444 /sys/class/infiniband/rxe0/ports/1/link_layer = Ethernet\\n\n"
      "F 444 /sys/class/infiniband/rxe0/ports/1/state = 4: ACTIVE\\n\n"
      "F 444 /sys/class/infiniband/rxe0/ports/1/rate = 2.5 Gb/sec (1X SDR)\\n\n"
      "G /sys/class/infiniband/rxe0/ports/1 1 10.0.0.5 v2 eth0\n";
  const Chosen beside("ipv6-only", {}, rxe);  // whose card has no IPv4 address
  EXPECT_SAYS(beside.text(),
              "warning: left out: rxe0 port 1 (2.5 Gb/sec (1X SDR)), software beside a card; see --device");
  EXPECT_EQ(beside.exports(), "NCCL_IB_HCA==mlx5_0:1 " + one_index(3, "mlx5_0:1"));
  beside.expect_that_nccl_agrees();
  const std::string down = rxe + "F 444 /sys/class/infiniband/mlx5_0/ports/1/state = 1: DOWN\\n\n";
  for (const Chosen& alone : {Chosen("ipv6-only", {}, down), Chosen("ipv6-only", {.devices = {"rxe0"}}, rxe)})
    EXPECT_SAYS(alone.text(), "rxe0 1: chosen");
}

// NCCL before 2.21 has no rule and takes one index for all ports.
TEST(Choice, AnIndexWhereThePortsShareOne) {
  const Chosen two("two-indices");
  EXPECT_EQ(Chosen("ipv4-link-local").exports({2, 20}), one_index(5, "mlx5_0:1"));
  EXPECT_EQ(two.exports({2, 20}), "NCCL_IB_HCA==mlx5_0:1 " + one_index(3, "mlx5_0:1"));
  EXPECT_SAYS(rdma::exports(two.system, two.choice, {2, 20}).at(0).remark, "without mlx5_1");
}

// An interface of the same name in this namespace, with other addresses.
TEST(Choice, AnAddressThatTheInterfaceDoesNotHave) {
  const Tree tree = Tree::load("mlx5-pairs");
  System system = rdma::read_system(tree.sys());
  const auto choice_with = [&](const std::string& address) {
    std::ranges::find(system.net_devices, "enp61s0", &rdma::NetDevice::name)->addresses = {address, "fe80::1/64"};
    return choose(system, on("10.1.0.0/16")).ports.at(0);
  };
  EXPECT_EQ(choice_with("10.1.0.5/24").chosen, 3);
  const PortChoice other = choice_with("10.1.0.50/24");
  EXPECT_EQ(other.chosen, -1);
  EXPECT_EQ(other.gids.at(3).reason, "of another network namespace: not an address of enp61s0 here");
}

std::string exported(const System& system, const std::string& name) {
  for (const Export& one : rdma::exports(system, choose(system, {}), {2, 28}))
    if (one.name == name) return one.value;
  return "none";
}

// Where the interfaces' prefixes are known, the range covers the addresses of the other nodes.
TEST(Choice, TheRangeIsThatOfTheInterfaces) {
  const Tree tree("include two-indices\n" + link_local_on_rail1);
  System system = rdma::read_system(tree.sys());
  for (rdma::NetDevice& net : system.net_devices) {
    if (net.name == "rail0") net.addresses = {"fe80::1/64", "10.1.0.5/20"};
    if (net.name == "rail1") net.addresses = {"10.1.1.5/24"};
  }
  EXPECT_EQ(exported(system, "NCCL_IB_ADDR_RANGE"), "10.1.0.0/20");
}

// The interface for sockets on a machine without RDMA, of those given.
std::string socket_interface(const std::vector<rdma::NetDevice>& net_devices) {
  System system;
  system.net_devices = net_devices;
  return exported(system, "NCCL_SOCKET_IFNAME");
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
  for (const auto& none : {std::vector<rdma::NetDevice>{}, {lo, down}}) EXPECT_EQ(socket_interface(none), "none");
  EXPECT_EQ(socket_interface({lo, down, docker, eth0}), "=eth0");
  EXPECT_EQ(socket_interface({docker, slave, bond, lo}), "=bond0");
  EXPECT_EQ(socket_interface({ipoib, vlan, eth1}), "=eth1");
  EXPECT_EQ(socket_interface({lo, ipoib}), "=ib0");
  EXPECT_EQ(socket_interface({container, lo}), "=eth0");
  EXPECT_EQ(socket_interface({eth0, route}), "=veth0");
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
