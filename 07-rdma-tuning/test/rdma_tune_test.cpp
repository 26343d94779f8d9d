// rdma_tune as a user runs it.
#include "tree.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <test/support/program_test.hpp>

#include <fstream>
#include <tuple>

namespace rdma_tune_test {

using multinode::testing::Result, multinode::testing::run;
using rdma::testing::Tree;

Result tune(const Tree& tree, std::vector<std::string> words = {}, const std::map<std::string, std::string>& set = {}) {
  words.insert(words.begin(), PATH_rdma_tune);
  words.insert(words.end(), {"--sysfs", tree.sys().string()});
  return run(words, set);
}

TEST(RdmaTune, Table) {
  const Result result = tune(Tree::load("mlx5-pairs"));
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(result.out,
            "device    firmware  board          PCI           NUMA node  nearest GPUs               net devices  kind\n"
            "mlx5_0  28.39.1002  MT_0000000838  0000:3d:00.0          0  0000:3e:00.0 (PCI switch)  enp61s0      "
            "hardware\n"
            "\n"
            "device  port  link layer  state   physical  rate                 MTU  largest  use\n"
            "mlx5_0     1  Ethernet    ACTIVE  LinkUp    100 Gb/sec (4X EDR)  -    -        yes, GID 3\n"
            "\n"
            "device  port  index  address                    type     net device  chosen, or why not\n"
            "mlx5_0     1      0  fe80::ba3f:d2ff:fe12:3456  RoCE v1  enp61s0     link-local (fe80)\n"
            "mlx5_0     1      1  fe80::ba3f:d2ff:fe12:3456  RoCE v2  enp61s0     link-local (fe80)\n"
            "mlx5_0     1      2  10.1.0.5                   RoCE v1  enp61s0     RoCE v1\n"
            "mlx5_0     1      3  10.1.0.5                   RoCE v2  enp61s0     chosen\n"
            "mlx5_0     1      4  fd00:10:1::5               RoCE v1  enp61s0     RoCE v1\n"
            "mlx5_0     1      5  fd00:10:1::5               RoCE v2  enp61s0     IPv6\n");
  EXPECT_EQ(tune(Tree::load("mlx5-pairs"), {"table"}).out, result.out);
  EXPECT_SAYS(tune(Tree::load("vlan")).out, "no: no GID fits");
  EXPECT_SAYS(tune(Tree::load("pod-vf")).out, "virtual function");
}

TEST(RdmaTune, UnreadableFilesAreNamedAndTheRestIsThere) {
  const Result result = tune(Tree::load("unreadable"));
  EXPECT_EQ(result.status, 0);
  EXPECT_SAYS(result.err, "/sys/class/infiniband/mlx5_1/ports/1/state: Is a directory\n");
  EXPECT_EQ(multinode::testing::occurrences(result.err, "\n"), 7U) << result.err;
  EXPECT_SAYS(result.out, "yes, GID 3");
}

// The variables that a shell has after eval "$(rdma_tune --export ...)".
std::string evaluated(const std::string& shell, const Tree& tree, const std::string& words = "") {
  const Result result = run({shell, "-c",
                             "set -eu; eval \"$(\"$0\" --export --sysfs \"$1\" " + words +
                                 ")\"; env | grep -E '^(NCCL|UCX)_' | LC_ALL=C sort",
                             PATH_rdma_tune, tree.sys().string()},
                            {{"NCCL_IB_DISABLE", ""}});
  return result.status == 0 ? result.out : "failed: " + result.all();
}

TEST(RdmaTune, EvalInAJobScript) {
  const Tree eight = Tree::load("two-indices");
  for (const char* shell : {"sh", "bash"}) {
    EXPECT_EQ(evaluated(shell, eight), "UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1\n");
    EXPECT_EQ(evaluated(shell, Tree::load("no-device")),
              "NCCL_IB_DISABLE=1\n"
              "NCCL_NSOCKS_PERTHREAD=8\n"
              "NCCL_SOCKET_IFNAME==eth0\n"
              "NCCL_SOCKET_NTHREADS=4\n"
              "UCX_NET_DEVICES=eth0\n");
  }
  EXPECT_EQ(evaluated("bash", eight, "--nccl 2.20"),
            "NCCL_IB_GID_INDEX=3\n"
            "NCCL_IB_HCA==mlx5_0:1\n"
            "UCX_IB_GID_INDEX=3\n"
            "UCX_NET_DEVICES=mlx5_0:1\n");
}

// Whatever this machine has.
TEST(RdmaTune, EvalHere) {
  const Result result =
      run({"bash", "-c", "set -eu; eval \"$(\"$0\" --export)\"; echo \"$UCX_NET_DEVICES\"", PATH_rdma_tune});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.out, "\n");
}

// A name that ends a quotation, substitutes a command, and splits a line: every shell must get it as it is.
TEST(RdmaTune, QuotesForTheShell) {
  Tree tree = Tree::load("no-device");
  tree.add(
      "F 444 /sys/class/net/$(touch${IFS}x);#`y`!*/operstate = up\\n\nF 444 /sys/class/net/eth0/operstate = down\\n");
  for (const char* shell : {"sh", "bash"})
    EXPECT_SAYS(evaluated(shell, tree), "NCCL_SOCKET_IFNAME==$(touch${IFS}x);#`y`!*\n");
}

TEST(RdmaTune, WithoutRdmaItSaysSo) {
  const Tree tree = Tree::load("no-device");
  const Result table = tune(tree);
  EXPECT_EQ(table.status, 0);
  EXPECT_EQ(table.out, "no RDMA device in " + tree.sys().string() + "/class/infiniband\n");
  const Result exported = tune(tree, {"--export"});
  EXPECT_EQ(exported.status, 0);
  EXPECT_EQ(exported.err, "rdma_tune: no usable RDMA port here: these are settings for sockets\n");
  EXPECT_SAYS(exported.out, "export NCCL_IB_DISABLE='1'  # no RDMA here: sockets\n");
  EXPECT_EQ(multinode::testing::occurrences(exported.out, "perftest"), 0U);
}

TEST(RdmaTune, Export) {
  const Tree tree = Tree::load("infiniband");
  EXPECT_EQ(tune(tree, {"--export"}).out,
            "export UCX_NET_DEVICES='mlx5_0:1,mlx5_1:1'  # no TCP in this list: UCX fails instead of using TCP\n"
            "# NCCL 2.28: nothing to set, it finds these ports and GIDs by itself\n"
            "# perftest: ib_write_bw -d mlx5_0 -i 1\n");
  EXPECT_EQ(tune(tree, {"--export", "--device", "mlx5_0"}).out,
            "export NCCL_IB_HCA='=mlx5_0:1'  # these names exactly, each with its port\n"
            "export UCX_NET_DEVICES='mlx5_0:1'  # no TCP in this list: UCX fails instead of using TCP\n"
            "# perftest: ib_write_bw -d mlx5_0 -i 1\n");
}

TEST(RdmaTune, Json) {
  const Tree tree = Tree::load("s4-vlan");
  const std::string file = (tree / "result.json").string();
  ASSERT_EQ(tune(tree, {"--json", file}).status, 0);
  std::ifstream stream(file);
  const nlohmann::json json = nlohmann::json::parse(stream);
  EXPECT_FALSE(json.at("node").get<std::string>().empty());
  EXPECT_EQ(json.at("rdma"), true);
  const auto& port = json.at("devices").at(0).at("ports").at(0);
  EXPECT_EQ(port.at("chosen"), 1);
  EXPECT_EQ(port.at("link_layer"), "Ethernet");
  EXPECT_EQ(port.at("active_mtu"), nullptr);
  ASSERT_EQ(port.at("gids").size(), 5U);
  EXPECT_EQ(port.at("gids").at(1).at("chosen"), true);
  EXPECT_EQ(port.at("gids").at(1).at("address"), "192.168.77.1");
  EXPECT_EQ(port.at("gids").at(4).at("reason"), "VLAN 100");
  EXPECT_EQ(json.at("exports").at(0).at("value"), "rxe0:1");
  EXPECT_EQ(json.at("perftest"), "-d rxe0 -i 1 -x 1");
  ASSERT_EQ(tune(tree, {"--json", file, "--nccl", "2.20"}).status, 0);
  std::ifstream again(file);
  EXPECT_EQ(nlohmann::json::parse(again).at("exports").at(0).at("name"), "NCCL_IB_GID_INDEX");
}

TEST(RdmaTune, Simulate) {
  const Tree tree = Tree::load("pod-vf");
  EXPECT_EQ(tune(tree, {"simulate", "--nccl", "2.26.2"}).out,
            "device  port  right  NCCL 2.26.2  why                                        verdict\n"
            "mlx5_4     1      7  2 or 7       an uninitialized variable of NCCL decides  WRONG: undefined\n"
            "warning: mlx5_4:1: NCCL 2.26.2 may take any of these; no version up to 2.30.7 fixes this\n"
            "warning: NCCL 2.26.2 would not use the right ports and GIDs without settings: see rdma_tune exec\n");
  const Result vlan = tune(Tree::load("vlan"), {"simulate", "--nccl", "2.28"});  // NCCL takes what rdma_tune refuses
  EXPECT_SAYS(vlan.out, "5  the first of RoCE v2  WRONG: rdma_tune leaves this port out: no GID fits");
  const Tree silent = Tree::load("ipv4-link-local");
  EXPECT_SAYS(tune(silent, {"simulate", "--nccl", "2.28"}).out, "WRONG: link-local (169.254)");
  const Result range = tune(silent, {"simulate", "--nccl", "2.28"}, {{"NCCL_IB_ADDR_RANGE", "10.1.0.0/16"}});
  EXPECT_SAYS(range.out, "mlx5_0     1      5          5  the first of RoCE v2");
  EXPECT_SAYS(range.out, "the same");
  const Result set = tune(silent, {"simulate", "--nccl", "2.28"}, {{"NCCL_IB_GID_INDEX", "9"}});
  EXPECT_SAYS(set.out, "NCCL_IB_GID_INDEX  WRONG: an empty slot");
  const Result blamed = tune(Tree::load("mlx5-pairs"), {"simulate", "--nccl", "2.28"},
                             {{"NCCL_IB_HCA", "mlx5_7"}, {"NCCL_IB_ADDR_FAMILY", "AF_INET"}});
  EXPECT_SAYS(blamed.out, "NCCL 2.28 does not use RDMA: NCCL_IB_HCA\n");
  EXPECT_SAYS(blamed.out,
              "warning: NCCL_IB_HCA=mlx5_7 makes NCCL 2.28 use other ports or GIDs than rdma_tune: unset it\n");
  EXPECT_EQ(tune(Tree::load("no-device"), {"simulate", "--nccl", "2.28"}).out,
            "NCCL 2.28 does not use RDMA: no active RDMA port\n");
}

TEST(RdmaTune, RefusesABadCommandLine) {
  const Tree tree = Tree::load("infiniband");
  const std::string sys = tree.sys().string();
  const std::pair<std::vector<std::string>, const char*> bad[] = {
      {{"--nonsense"}, "--nonsense"},
      {{"tabel"}, "no command 'tabel'"},
      {{"table", "more"}, "only options are expected"},
      {{"--family", "ipv5"}, "--family must be auto, ipv4 or ipv6, not 'ipv5'"},
      {{"--subnet", "10.0.0.0/99"}, "--subnet must be a network such as"},
      {{"--sysfs", sys, "--device", "mlx5_7"}, "--device: there is no mlx5_7, but mlx5_0, mlx5_1"},
      {{"--sysfs", sys, "--subnet", "fd00::/8", "--family", "ipv4"}, "--subnet fd00::/8 is not of the --family"},
      {{"--nccl", "new"}, "--nccl must be a version such as"},
      {{"--sysfs", sys, "--json", "/nowhere/x"}, "/nowhere/x"},
      {{"--sysfs", "/nowhere"}, "--sysfs: /nowhere is not a folder: give one laid out like /sys"},
      {{"simulate"}, "--nccl"},
      {{"check", "--sysfs", "/no/such"}, "/no/such"},
      {{"check", "--dev", "/no/such"}, "--dev: /no/such is not a folder"},
      {{"advise", "--proc", "/no/such"}, "--proc: /no/such is not a folder"},
      {{"exec"}, "exec needs a command, after --"},
      {{"exec", "--"}, "exec needs a command, after --"},
      {{"exec", "true"}, "only options are expected"},
      {{"exec", "--nccl", "new", "--", "true"}, "--nccl must be a version"},
      {{"exec", "--sysfs", sys, "--device", "mlx5_9", "--", "true"}, "--device: there is no mlx5_9, but mlx5_0"},
      {{"verify"}, "verify needs a command, after --"},
      {{"verify", "--"}, "verify needs a command, after --"},
      {{"verify", "true"}, "only options are expected"},
      {{"verify", "--require", "ib", "--", "true"}, "--require must be rdma or tcp, not 'ib'"},
      {{"verify", "--baseline", "-1", "--", "true"}, "--baseline must be from"},
      {{"verify", "--baseline", "nan", "--", "true"}, "--baseline must be from"},
      {{"verify", "--sysfs", "/no/such", "--", "true"}, "/no/such is not a folder"},
      {{"verify", "--json", "/no/such/file", "--", "true"}, "--json: cannot write to /no/such/file"},
  };
  for (const auto& [words, message] : bad) {
    std::vector<std::string> command{PATH_rdma_tune};
    command.insert(command.end(), words.begin(), words.end());
    const Result result = run(command);
    EXPECT_EQ(result.status, 2) << message << result.all();
    EXPECT_SAYS(result.err, message);
    EXPECT_EQ(multinode::testing::occurrences(result.err, "\n"), 1U) << result.err;
    EXPECT_EQ(result.out, "");
  }
  EXPECT_EQ(run({PATH_rdma_tune, "--help"}).status, 0);
}

// What the README says of the tutorial's two greps. If a command waits for standard input, it gets a line.
TEST(RdmaTune, WhereGrepIsWrong) {
  const std::string two_greps =
      "echo 'RoCE v2 from standard input' |"
      " grep 'RoCE v2' $(grep -l 0000:ffff: $0/gids/* | sed 's,gids,gid_attrs/types,') | sed "
      "'s,.*/\\([0-9]*\\):.*,\\1,'";
  for (const auto& [tree, device, out] : {
           std::tuple{"mlx5-pairs", "mlx5_0", "3\n"},                 // right
           {"s1-plain", "rxe0", "RoCE v2\n"},                         // one file: grep does not print its name
           {"s2-readd", "rxe0", "1\n3\n"},                            // a second address
           {"s4-vlan", "rxe0", "1\n4\n"},                             // a VLAN
           {"ipv4-link-local", "mlx5_0", "3\n5\n"},                   // 169.254.x.y
           {"two-indices", "mlx5_1", "5\n"},                          // right, but wrong for mlx5_0
           {"ipv6-only", "mlx5_0", "RoCE v2 from standard input\n"},  // none
       }) {
    const Tree node = Tree::load(tree);
    const std::string port = node.sys() / "class/infiniband" / device / "ports/1";
    EXPECT_EQ(run({"bash", "-c", two_greps, port}).out, out) << tree;
  }
}

}  // namespace rdma_tune_test
