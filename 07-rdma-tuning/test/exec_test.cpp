// rdma_tune exec as a launcher starts it: on nodes that differ, each process gets its node's settings.
#include "tree.hpp"

#include <test/support/faults.hpp>
#include <test/support/program_test.hpp>

#include <gtest/gtest.h>

#include <fstream>
#include <memory>

namespace exec_test {

using multinode::testing::Process, multinode::testing::Result, multinode::testing::run;
using rdma::testing::Tree;

using Environment = std::map<std::string, std::string>;

const std::string print_variables = "env | grep -E '^(NCCL|UCX)_' | LC_ALL=C sort";

Result exec(const Tree& tree, std::vector<std::string> words, const Environment& environment = {}) {
  words.insert(words.begin(), {PATH_rdma_tune, "exec", "--sysfs", tree.sys().string()});
  return run(words, environment);
}

TEST(Exec, SetsVariablesAndReplacesItself) {
  const Tree tree = Tree::load("ipv4-link-local");
  Process process({PATH_rdma_tune, "exec", "--sysfs", tree.sys().string(), "--", "sh", "-c",
                   "echo $$ $NCCL_IB_ADDR_RANGE; exit 7"});
  const pid_t pid = process.pid();
  const Result result = process.wait();
  EXPECT_EQ(result.status, 7);
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(result.out, std::to_string(pid) + " 10.1.0.0/24\n");
  EXPECT_SAYS(exec(tree, {"--index", "--", "env"}).out, "\nNCCL_IB_GID_INDEX=5\n");
  EXPECT_SAYS(exec(tree, {"--nccl", "2.20", "--", "env"}).out, "\nNCCL_IB_GID_INDEX=5\n");
}

TEST(Exec, KeepsWhatIsSet) {
  const Tree tree = Tree::load("ipv4-link-local");
  const Result result = exec(tree, {"-v", "--", "sh", "-c", print_variables},
                             {{"NCCL_IB_ADDR_RANGE", "10.0.0.0/8"}, {"UCX_NET_DEVICES", "eth0"}});
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.out,
            "NCCL_IB_ADDR_FAMILY=AF_INET\n"
            "NCCL_IB_ADDR_RANGE=10.0.0.0/8\n"
            "NCCL_IB_ROCE_VERSION_NUM=2\n"
            "UCX_IB_GID_INDEX=5\n"
            "UCX_NET_DEVICES=eth0\n");
  EXPECT_SAYS(result.err,
              ": set NCCL_IB_ADDR_FAMILY=AF_INET NCCL_IB_ROCE_VERSION_NUM=2 UCX_IB_GID_INDEX=5; "
              "was set before: NCCL_IB_ADDR_RANGE=10.0.0.0/8 UCX_NET_DEVICES=eth0\n");
}

// A variable that sends NCCL elsewhere is kept, and the user learns of it without -v.
TEST(Exec, WarnsOfAVariableThatLeadsNcclAstray) {
  const Result result = exec(Tree::load("ipv4-link-local"), {"--", "true"}, {{"NCCL_IB_GID_INDEX", "3"}});
  EXPECT_EQ(result.status, 0);
  EXPECT_SAYS(result.err,
              ": warning: NCCL_IB_GID_INDEX=3 makes NCCL 2.28 use other ports or GIDs than "
              "rdma_tune: unset it\n");
  EXPECT_EQ(multinode::testing::occurrences(result.err, "\n"), 1U) << result.err;
  EXPECT_EQ(exec(Tree::load("mlx5-pairs"), {"--", "true"}, {{"NCCL_IB_GID_INDEX", "3"}}).err, "");
}

// A value in one of NCCL's configuration files counts as set.
TEST(Exec, KeepsWhatNcclsFilesSet) {
  const Tree tree = Tree::load("ipv4-link-local");
  const std::string file = (tree / "nccl.conf").string();
  std::ofstream(file) << "# of this cluster\nNCCL_IB_ADDR_RANGE=10.1.0.0/16\n";
  const Result result = exec(tree, {"--", "sh", "-c", print_variables}, {{"NCCL_CONF_FILE", file}});
  EXPECT_EQ(result.out, "NCCL_CONF_FILE=" + file +
                            "\nNCCL_IB_ADDR_FAMILY=AF_INET\nNCCL_IB_ROCE_VERSION_NUM=2\n"
                            "UCX_IB_GID_INDEX=5\nUCX_NET_DEVICES=mlx5_0:1\n");
}

TEST(Exec, ACommandThatCannotBeRun) {
  const Tree tree = Tree::load("mlx5-pairs");
  const Result missing = exec(tree, {"--", "no-such-command"}), folder = exec(tree, {"--", "/"});
  EXPECT_EQ(missing.status, 127);
  EXPECT_EQ(missing.err, "rdma_tune exec: cannot run no-such-command: No such file or directory\n");
  EXPECT_EQ(folder.status, 126);
  EXPECT_EQ(folder.err, "rdma_tune exec: cannot run /: Permission denied\n");
}

TEST(Exec, ElasticFabricAdapter) {
  const Result result = exec(Tree::load("efa"), {"-v", "--", "sh", "-c", print_variables});
  EXPECT_EQ(result.out, "");
  EXPECT_SAYS(
      result.err,
      "rdmap59s0 is an Elastic Fabric Adapter (EFA): nothing to set. NCCL uses it only with the plug-in aws-ofi-nccl");
}

TEST(Exec, SocketsOnRequest) {
  EXPECT_EQ(exec(Tree::load("ipv4-link-local"), {"--sockets", "--", "sh", "-c", print_variables}).out,
            "NCCL_IB_DISABLE=1\n"
            "NCCL_NSOCKS_PERTHREAD=8\n"
            "NCCL_SOCKET_IFNAME==rail0\n"
            "NCCL_SOCKET_NTHREADS=4\n"
            "UCX_NET_DEVICES=rail0\n");
}

#ifdef PATH_mnrun
// Three nodes: one where NCCL finds the GID without settings, one with a link-local address first, and one without
// RDMA.
TEST(Exec, UnderALauncherEachNodeHasItsOwn) {
  const Tree by_itself = Tree::load("mlx5-pairs"), by_rule = Tree::load("ipv4-link-local"),
             none = Tree::load("no-device");
  const std::pair<const Tree*, std::string> nodes[] = {
      {&by_itself, "none none"}, {&by_rule, "10.1.0.0/24 none"}, {&none, "none 1"}};
  const multinode::testing::FreePort free_port;
  const std::string port = std::to_string(free_port.number());
  std::vector<std::unique_ptr<Process>> agents;
  for (const auto& [tree, expected] : nodes) {
    std::vector<std::string> words{PATH_mnrun, "--nnodes", "3", "--node-rank", std::to_string(agents.size())};
    words.insert(words.end(), {"--master-addr", "127.0.0.1", "--master-port", port});
    words.insert(words.end(), {PATH_rdma_tune, "exec", "--sysfs", tree->sys().string(), "--", "sh", "-c"});
    words.push_back("echo rank $RANK: ${NCCL_IB_ADDR_RANGE-none} ${NCCL_IB_DISABLE-none}");
    agents.push_back(std::make_unique<Process>(words));
  }
  for (std::size_t node = 0; node < 3; ++node) {
    const Result result = agents[node]->wait();
    EXPECT_EQ(result.status, 0) << result.all();
    EXPECT_SAYS(result.out, "rank " + std::to_string(node) + ": " + nodes[node].second + "\n");
  }
}
#endif

}  // namespace exec_test
