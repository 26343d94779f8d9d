// rdma_tune exec: each process gets its node's settings.
#include "tree.hpp"

#include <test/support/program_test.hpp>

#include <gtest/gtest.h>

#include <fstream>

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

TEST(Exec, SocketsWithoutRdmaAndOnRequest) {
  const auto sockets = [](const std::string& interface) {
    return "NCCL_IB_DISABLE=1\nNCCL_NSOCKS_PERTHREAD=8\nNCCL_SOCKET_IFNAME==" + interface +
           "\nNCCL_SOCKET_NTHREADS=4\nUCX_NET_DEVICES=" + interface + "\n";
  };
  const Result none = exec(Tree::load("no-device"), {"-v", "--", "sh", "-c", print_variables});
  EXPECT_EQ(none.out, sockets("eth0"));
  EXPECT_SAYS(none.err, "no usable RDMA port here: these are settings for sockets\n");
  const Result wanted = exec(Tree::load("ipv4-link-local"), {"--sockets", "--", "sh", "-c", print_variables});
  EXPECT_EQ(wanted.out, sockets("rail0"));
}

TEST(Exec, ElasticFabricAdapter) {
  const Result result = exec(Tree::load("efa"), {"-v", "--", "sh", "-c", print_variables});
  EXPECT_EQ(result.out, "");
  EXPECT_SAYS(
      result.err,
      "rdmap59s0 is an Elastic Fabric Adapter (EFA): nothing to set. NCCL uses it only with the plug-in aws-ofi-nccl");
}

}  // namespace exec_test
