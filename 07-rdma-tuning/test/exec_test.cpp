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
  Process process(
      {PATH_rdma_tune, "exec", "--sysfs", tree.sys().string(), "--", "sh", "-c", "echo $$ $NCCL_IB_GID_INDEX; exit 7"});
  const pid_t pid = process.pid();
  const Result result = process.wait();
  EXPECT_EQ(result.status, 7);
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(result.out, std::to_string(pid) + " 5\n");
}

TEST(Exec, KeepsWhatIsSet) {
  const Tree tree = Tree::load("ipv4-link-local");
  const Result result = exec(tree, {"-v", "--", "sh", "-c", print_variables},
                             {{"NCCL_IB_ADDR_RANGE", "10.0.0.0/8"}, {"UCX_NET_DEVICES", "eth0"}});
  EXPECT_EQ(result.status, 0);
  // No index, which would overrule the range.
  EXPECT_EQ(result.out, "NCCL_IB_ADDR_RANGE=10.0.0.0/8\nUCX_IB_GID_INDEX=5\nUCX_NET_DEVICES=eth0\n");
  EXPECT_SAYS(result.err, ": set UCX_IB_GID_INDEX=5; was set before: UCX_NET_DEVICES=eth0\n");
}

// A value in one of NCCL's configuration files counts as set.
TEST(Exec, KeepsWhatNcclsFilesSet) {
  const Tree tree = Tree::load("ipv4-link-local");
  const std::string file = (tree / "nccl.conf").string();
  std::ofstream(file) << "# of this cluster\nNCCL_IB_GID_INDEX=3\n";
  const Result result = exec(tree, {"--", "sh", "-c", print_variables}, {{"NCCL_CONF_FILE", file}});
  EXPECT_EQ(result.out, "NCCL_CONF_FILE=" + file + "\nUCX_IB_GID_INDEX=5\nUCX_NET_DEVICES=mlx5_0:1\n");
}

// A variable that sends NCCL elsewhere is kept, and the user learns of it, once per node and without -v.
TEST(Exec, WarnsOfVariablesThatLeadNcclAstray) {
  const struct {
    const char* tree;
    Environment set;
    std::string warning;
  } cases[] = {
      {"mlx5-pairs", {{"NCCL_IB_GID_INDEX", "3"}, {"NCCL_IB_HCA", "mlx5"}}, ""},
      {"ipv4-link-local", {{"NCCL_IB_GID_INDEX", "3"}}, "NCCL_IB_GID_INDEX=3 (rdma_tune: 5) makes"},
      {"ipv4-link-local", {{"NCCL_IB_ADDR_RANGE", "10.9.0.0/16"}}, "NCCL_IB_ADDR_RANGE=10.9.0.0/16 makes"},
      {"ports-down", {{"NCCL_IB_HCA", "mlx5_0"}}, "NCCL_IB_HCA=mlx5_0 makes"},
      {"infiniband-and-roce", {{"NCCL_IB_HCA", "mlx5"}}, "NCCL_IB_HCA=mlx5 (rdma_tune: =mlx5_0:1,mlx5_1:1,mlx5_2:1,"},
      {"infiniband-and-roce",
       {{"NCCL_IB_HCA", "mlx5_4"}, {"NCCL_NET", "Socket"}},
       "NCCL_NET=Socket, NCCL_IB_HCA=mlx5_4 (rdma_tune: ="},
  };
  for (const auto& [tree, set, warning] : cases) {
    const Result result = exec(Tree::load(tree), {"--", "sh", "-c", print_variables}, set);
    EXPECT_EQ(result.status, 0);
    for (const auto& [name, value] : set) EXPECT_SAYS(result.out, name + "=" + value + "\n");
    EXPECT_EQ(multinode::testing::occurrences(result.err, " use other ports or GIDs than rdma_tune: unset "),
              warning.empty() ? 0U : 1U);
    EXPECT_SAYS(result.err, warning);
  }
  const Tree two = Tree::load("two-indices");
  EXPECT_SAYS(exec(two, {"--", "true"}).err, ": warning: 2 networks fit, and all are taken: 10.1.0.0/24 (mlx5_0), ");
  EXPECT_EQ(exec(two, {"--", "true"},
                 {{"RANK", "1"},
                  {"WORLD_SIZE", "2"},
                  {"LOCAL_RANK", "1"},
                  {"LOCAL_WORLD_SIZE", "2"},
                  {"MASTER_ADDR", "a"},
                  {"MASTER_PORT", "1"}})
                .err,
            "");
  EXPECT_EQ(exec(two, {"--subnet", "10.1.0.0/16", "--", "true"}).err, "");
}

// Where the ports' indices differ, the settings depend on the NCCL that the command loads: here pip's, beside its
// python.
TEST(Exec, AsksForTheVersionOfNcclOnlyWhereTheIndicesDiffer) {
  const Tree two = Tree::load("two-indices"), one = Tree::load("ipv4-link-local");
  const auto library = two / "lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2";
  std::filesystem::create_directories(library.parent_path());
  std::ofstream(library) << std::string(3'000'000, 'x') << "NCCL version 2.20.5+cuda12.4" << std::string(99, '\0');
  std::filesystem::create_directories(two / "bin");
  std::filesystem::copy_file("/bin/sh", two / "bin/python");
  const std::string python = two / "bin/python";
  EXPECT_EQ(exec(two, {"--", python, "-c", "echo $NCCL_IB_HCA"}).out, "=mlx5_0:1\n");
  EXPECT_EQ(exec(two, {"--nccl", "2.28.3+cuda13.0", "--", python, "-c", "echo $NCCL_IB_HCA"}).out, "\n");
  EXPECT_EQ(exec(one, {"--", python, "-c", "echo $NCCL_IB_HCA"}).out, "\n");
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
    return "NCCL_NSOCKS_PERTHREAD=8\nNCCL_SOCKET_IFNAME==" + interface +
           "\nNCCL_SOCKET_NTHREADS=4\nUCX_NET_DEVICES=" + interface + "\n";
  };
  const Result none = exec(Tree::load("no-device"), {"--", "sh", "-c", print_variables});
  EXPECT_EQ(none.out, sockets("eth0"));
  EXPECT_SAYS(none.err, ": no RDMA device here. Variables for sockets are set, and no others\n");
  const Result wanted = exec(Tree::load("ipv4-link-local"), {"--sockets", "--", "sh", "-c", print_variables});
  EXPECT_EQ(wanted.out, "NCCL_IB_DISABLE=1\n" + sockets("rail0"));
}

// Without a usable port: what is said, what is set, and what --require rdma, --subnet and --device make of it.
TEST(Exec, NeverSwitchesRdmaOffInSilence) {
  const std::string port = "/sys/class/infiniband/mlx5_0/ports/1",
                    unreadable = "X " + port + "/gids\nL " + port + "/gids -> gids";
  const struct {
    std::string lines;
    std::vector<std::string> options;
    int status;
    std::string says;
    Environment set = {};
  } cases[] = {
      {"include mlx5-pairs", {"--require", "rdma"}, 0, ""},
      {"include no-device", {"--require", "rdma"}, 1, "--require rdma: NCCL 2.28 would use sockets"},
      {"include mlx5-pairs", {"--require", "rdma"}, 1, "would use sockets", {{"NCCL_IB_DISABLE", "1"}}},
      {"include mlx5-pairs\nZ " + port + " 16", {}, 0, "mlx5_0 port 1: no GID in its table. Nothing is set"},
      {"include mlx5-pairs\nZ " + port + " 16", {"--require", "rdma"}, 1, "the command is not started"},
      {"include mlx5-pairs\n" + unreadable, {}, 0, "gids: Too many levels of symbolic links. Nothing is set"},
      {"include mlx5-pairs", {"--subnet", "10.1.0.0"}, 2, "(is the mask of 10.1.0.0/32 missing?)"},
      {"include ports-down", {"--device", "mlx5_0"}, 2, "mlx5_0 port 1: port is DOWN"},
      {"include no-device", {"--device", "mlx5_0"}, 2, "--device: there is no mlx5_0, but no device"},
  };
  for (const auto& [lines, options, status, says, set] : cases) {
    std::vector<std::string> words = options;
    words.insert(words.end(), {"--", "sh", "-c", "env | grep -c ^NCCL_IB_DISABLE=; echo started"});
    const Result result = exec(Tree(lines), words, set);
    EXPECT_EQ(result.status, status) << says << result.all();
    EXPECT_EQ(result.out, status ? "" : "0\nstarted\n") << says;
    EXPECT_SAYS(result.err, says);
  }
}

TEST(Exec, ElasticFabricAdapter) {
  const Result result = exec(Tree::load("efa"), {"-v", "--", "sh", "-c", print_variables});
  EXPECT_EQ(result.out, "");
  EXPECT_SAYS(
      result.err,
      "rdmap59s0 is an Elastic Fabric Adapter (EFA): nothing to set. NCCL uses it only with the plug-in aws-ofi-nccl");
}

}  // namespace exec_test
