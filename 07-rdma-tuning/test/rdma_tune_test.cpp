// rdma_tune as a user runs it.
#include "tree.hpp"

#include <gtest/gtest.h>
#include <test/support/program_test.hpp>

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
            "device    firmware  board          PCI           NUMA node  net devices  kind\n"
            "mlx5_0  28.39.1002  MT_0000000838  0000:3d:00.0          0  enp61s0      hardware\n"
            "\n"
            "device  port  link layer  state   physical  rate                  MTU  NCCL 2.28  use\n"
            "mlx5_0     1  Ethernet    ACTIVE  LinkUp    100 Gb/sec (4X EDR)  4096          3  yes, GID 3\n"
            "\n"
            "device  port  index  address                    type     net device  chosen, or why not\n"
            "mlx5_0     1      0  fe80::ba3f:d2ff:fe12:3456  RoCE v1  enp61s0     link-local (fe80)\n"
            "mlx5_0     1      1  fe80::ba3f:d2ff:fe12:3456  RoCE v2  enp61s0     link-local (fe80)\n"
            "mlx5_0     1      2  10.1.0.5                   RoCE v1  enp61s0     RoCE v1\n"
            "mlx5_0     1      3  10.1.0.5                   RoCE v2  enp61s0     chosen\n"
            "mlx5_0     1      4  fd00:10:1::5               RoCE v1  enp61s0     RoCE v1\n"
            "mlx5_0     1      5  fd00:10:1::5               RoCE v2  enp61s0     IPv6\n");
  EXPECT_EQ(tune(Tree::load("mlx5-pairs"), {"table"}).out, result.out);
  EXPECT_SAYS(tune(Tree::load("pod-vf")).out, "virtual function");
  const Tree none = Tree::load("no-device");
  EXPECT_EQ(tune(none).out, "no RDMA device in " + none.sys().string() + "/class/infiniband\n");
}

// Each command reads the site file and names it; a bad one, or one that another user can write, ends it.
TEST(RdmaTune, TheSiteFile) {
  const Tree tree("include infiniband\nF 444 /etc/multinode/rdma.conf = leave mlx5_1\\n\n");
  const std::string file = tree / "etc/multinode/rdma.conf", names = "site file " + file + ": leave mlx5_1\n";
  EXPECT_SAYS(tune(tree, {"--json", tree / "node.json"}).out, names);
  const Result check = tune(tree, {"check"});
  EXPECT_SAYS(check.out, names);
  EXPECT_EQ(check.out.find("mlx5_1:"), std::string::npos) << check.out;
  EXPECT_SAYS(run({PATH_rdma_tune, "exec", "--sysfs", tree.sys().string(), "--", "true"}).err, names);
  const Tree without("include infiniband\nX /sys/class/infiniband/mlx5_1");
  ASSERT_EQ(tune(without, {"--json", without / "node.json"}).status, 0);
  const std::string both[] = {tree / "node.json", without / "node.json"};
  EXPECT_SAYS(run({PATH_rdma_tune, "compare", both[0], both[0]}).out, "site file of all nodes: leave mlx5_1\n");
  const Result differ = run({PATH_rdma_tune, "compare", both[0], both[1]});
  EXPECT_SAYS(differ.out, "site file     leave mlx5_1");
  EXPECT_SAYS(differ.out, "1 of ");

  const auto refused = [&](const std::string& text, const std::string& why) {
    const std::string other = tree / "other.conf";
    tree.write("other.conf", text);
    const Result result = tune(tree, {}, {{"RDMA_TUNE_SITE", other}});
    EXPECT_EQ(result.status, 2);
    EXPECT_SAYS(result.err, other + why);
    EXPECT_EQ(multinode::testing::occurrences(result.err, "\n"), 1U) << result.err;
  };
  refused("use mlx5_0\nlaeve mlx5_1\n", ":2: 'laeve' is neither use nor leave; a line is ");
  refused("pkey 8012\n", ":1: '8012' is not a P_Key such as 0x8012; ");
  refused("use\n", ":1: use names nothing; ");
  refused("use 10.1.0.0\n", ":1: '10.1.0.0' is not a network with its mask; ");
  refused("leave fe80::/129\n", ":1: 'fe80::/129' is not");
  std::filesystem::permissions(tree / "other.conf", std::filesystem::perms(0664));
  EXPECT_SAYS(tune(tree, {}, {{"RDMA_TUNE_SITE", tree / "other.conf"}}).err, "another user can write to it");
  EXPECT_SAYS(tune(tree, {}, {{"RDMA_TUNE_SITE", tree / "none"}}).err, "none: No such file or directory\n");
}

// A user namespace hides the owner of the host's files, as in podman's containers without root: the default place is
// trusted, and no file that a variable names.
TEST(RdmaTune, TheSiteFileInAUserNamespace) {
  const Tree tree("include infiniband\nF 444 /etc/multinode/rdma.conf = leave mlx5_1\\n\n");
  const std::string file = tree / "etc/multinode/rdma.conf", mine = "RDMA_TUNE_SITE=" + file;
  if (chown(file.c_str(), 12345, 0) != 0) GTEST_SKIP() << "only root can change the owner";
  if (run({"unshare", "--map-root-user", "true"}).status != 0) GTEST_SKIP() << "no user namespaces here";
  const auto inside = [&](std::vector<std::string> words) {
    words.insert(words.end(), {PATH_rdma_tune, "--sysfs", tree.sys()});
    return run(words);
  };
  EXPECT_SAYS(inside({"unshare", "--map-root-user"}).out, "site file " + file + ": leave mlx5_1\n");
  for (const auto& words : {std::vector<std::string>{"unshare", "--map-root-user", "env", mine}, {"env"}})
    EXPECT_SAYS(inside(words).err, "another user can write to it");
}

// Some fabrics have a routing table for each card.
TEST(RdmaTune, PolicyRoutesLeadToOtherNetworks) {
  const Tree tree = Tree::load("two-indices");
  const auto with = [&](const std::string& routes) {
    return run({"unshare", "--map-root-user", "--net", "--mount", "sh", "-ec",
                "ip link add rail0 type veth peer name rail1; for r in 0 1; do ip addr add 10.1.$r.5/24 dev rail$r; "
                "ip link set rail$r up; " +
                    routes + "; done; mount --bind $0 /sys; exec $1",
                tree.sys(), PATH_rdma_tune});
  };
  const std::string by_default = "ip route add default via 10.1.$r.1 dev rail$r table 10$r",
                    rule = "; ip rule add from 10.1.$r.0/24 lookup 10$r", apart = "warning: 2 networks fit";
  if (with(by_default).status != 0) GTEST_SKIP() << "no network namespaces, veth or iproute2 here";
  EXPECT_SAYS(with(by_default).out, apart);
  EXPECT_SAYS(with("ip route add 10.9.0.0/16 dev rail$r table 10$r" + rule).out, apart);
  EXPECT_PRED_FORMAT2(testing::IsNotSubstring, apart, with(by_default + rule).out);
}

// NVLink between nodes is a path that no card counts.
TEST(RdmaTune, NamesNvlinkBetweenNodes) {
  const Tree tray("include infiniband\nF 444 /dev/nvidia-caps-imex-channels/channel0 = x");
  EXPECT_SAYS(tune(tray).out, "note: NVLink reaches other nodes too");
  const Result verify =
      run({PATH_rdma_tune, "verify", "--baseline", "0", "--sysfs", tray.sys().string(), "--", "true"});
  EXPECT_SAYS(verify.err, "note: NVLink reaches other nodes too");
  for (const char* none : {"", "D /dev/nvidia-caps-imex-channels", "F 444 /dev/nvidia-caps/nvidia-cap1 = x"})
    EXPECT_EQ(tune(Tree(std::string("include infiniband\n") + none)).out.find("NVLink"), std::string::npos) << none;
}

TEST(RdmaTune, UnreadableFilesAreNamedAndTheRestIsThere) {
  const Result result = tune(Tree::load("unreadable"));
  EXPECT_EQ(result.status, 0);
  EXPECT_SAYS(result.err, "/sys/class/infiniband/mlx5_1/ports/1/state: Is a directory\n");
  EXPECT_EQ(multinode::testing::occurrences(result.err, "\n"), 7U) << result.err;
  EXPECT_SAYS(result.out, "yes, GID 3");
  // A folder of devices that cannot be read is no machine without RDMA.
  const Tree loop("L /sys/class/infiniband/mlx5_0 -> mlx5_0");
  EXPECT_EQ(tune(loop).status, 3);
  EXPECT_EQ(tune(loop, {"check"}).status, 3);
}

TEST(RdmaTune, SaysWhatNcclTakes) {
  const Tree pod = Tree::load("pod-vf"), silent = Tree::load("ipv4-link-local");
  EXPECT_SAYS(tune(pod, {"--nccl", "2.20"}).out, "  0  yes, GID 7\n");
  EXPECT_SAYS(tune(pod, {"--nccl", "2.21"}).out, "  fails      yes, GID 7\n");
  EXPECT_SAYS(tune(pod, {"--nccl", "2.26.2"}).out, "  may fail: set the index  yes, GID 7\n");
  EXPECT_SAYS(tune(silent).out, "  3  yes, GID 5\n");
  EXPECT_SAYS(tune(silent, {}, {{"NCCL_IB_ADDR_RANGE", "10.1.0.0/16"}}).out, "  5  yes, GID 5\n");
  EXPECT_SAYS(tune(silent, {}, {{"NCCL_IB_HCA", "mlx5_7"}}).out, "  not used   yes, GID 5\n");
}

TEST(RdmaTune, RefusesABadCommandLine) {
  const Tree tree = Tree::load("infiniband");
  const std::string sys = tree.sys().string();
  const std::pair<std::vector<std::string>, const char*> bad[] = {
      {{"--nonsense"}, "--nonsense"},
      {{"tabel"}, "no command 'tabel'"},
      {{"table", "more"}, "only options are expected"},
      {{"--subnet", "10.0.0.0/99"}, "--subnet must be a network such as"},
      {{"--sysfs", sys, "--device", "mlx5_7"}, "--device: there is no mlx5_7, but mlx5_0, mlx5_1"},
      {{"--nccl", "new"}, "--nccl must be a version such as"},
      {{"--sysfs", sys, "--json", "/nowhere/x"}, "/nowhere/x"},
      {{"--sysfs", "/nowhere"}, "--sysfs: /nowhere is not a folder: give one laid out like /sys"},
      {{"check", "--sysfs", "/no/such"}, "/no/such"},
      {{"exec"}, "exec needs a command, after --"},
      {{"exec", "--"}, "exec needs a command, after --"},
      {{"exec", "true"}, "only options are expected"},
      {{"exec", "--nccl", "new", "--", "true"}, "--nccl must be a version"},
      {{"exec", "--sysfs", sys, "--device", "mlx5_9", "--", "true"}, "--device: there is no mlx5_9, but mlx5_0"},
      {{"verify"}, "verify needs a command, after --"},
      {{"verify", "--"}, "verify needs a command, after --"},
      {{"verify", "true"}, "only options are expected"},
      {{"exec", "--require", "tcp", "--", "true"}, "--require must be rdma, not 'tcp'"},
      {{"verify", "--require", "ib", "--", "true"}, "--require must be rdma or tcp, not 'ib'"},
      {{"verify", "--baseline", "-1", "--", "true"}, "--baseline must be from"},
      {{"verify", "--baseline", "nan", "--", "true"}, "--baseline must be from"},
      {{"verify", "--sysfs", "/no/such", "--", "true"}, "/no/such is not a folder"},
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

TEST(GidTable, AFolderThatCannotBeReadIsOneLineAndAnEmptyVariableIsNone) {
  const Tree pairs = Tree::load("mlx5-pairs"), loop("L /sys/class/infiniband/mlx5_0 -> mlx5_0");
  EXPECT_EQ(run({PATH_gid_table, pairs.sys()}, {{"NCCL_IB_GID_INDEX", ""}}).status, 0);
  EXPECT_EQ(run({PATH_gid_table, pairs.sys()}, {{"NCCL_IB_GID_INDEX", "1"}}).status, 1);
  const Result result = run({PATH_gid_table, loop.sys()});
  EXPECT_EQ(result.status, 1);
  EXPECT_SAYS(result.err, "gid_table: filesystem error: ");
  EXPECT_EQ(multinode::testing::occurrences(result.err, "\n"), 1U) << result.err;
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
