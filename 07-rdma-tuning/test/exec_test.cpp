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

TEST(Exec, SetsWhatIsMissing) {
  const auto expect = [](const Tree& tree, const std::string& option, const Environment& set, const std::string& out,
                         const std::string& says) {
    const Result result = exec(tree, {option, "--", "sh", "-c", print_variables}, set);
    EXPECT_EQ(result.status, 0);
    EXPECT_EQ(result.out, out);
    EXPECT_SAYS(result.err, says);
  };
  const Tree roce = Tree::load("ipv4-link-local");
  // No index, which would overrule the range.
  const std::string range = "NCCL_IB_ADDR_RANGE=10.0.0.0/8\nUCX_IB_GID_INDEX=5\nUCX_NET_DEVICES=eth0\n";
  expect(roce, "-v", {{"NCCL_IB_ADDR_RANGE", "10.0.0.0/8"}, {"UCX_NET_DEVICES", "eth0"}}, range,
         ": set UCX_IB_GID_INDEX=5; was set before: UCX_NET_DEVICES=eth0\n");
  // A value in one of NCCL's configuration files counts as set.
  const std::string file = (roce / "nccl.conf").string();
  std::ofstream(file) << "# of this cluster\nNCCL_IB_GID_INDEX=3\n";
  expect(roce, "-v", {{"NCCL_CONF_FILE", file}},
         "NCCL_CONF_FILE=" + file + "\nUCX_IB_GID_INDEX=5\nUCX_NET_DEVICES=mlx5_0:1\n", "");
  const auto sockets = [](const std::string& interface) {
    return "NCCL_NSOCKS_PERTHREAD=8\nNCCL_SOCKET_IFNAME==" + interface +
           "\nNCCL_SOCKET_NTHREADS=4\nUCX_NET_DEVICES=" + interface + "\n";
  };
  expect(roce, "--sockets", {}, "NCCL_IB_DISABLE=1\n" + sockets("rail0"), "");
  expect(Tree::load("no-device"), "-v", {}, sockets("eth0"),
         ": no RDMA device here. Variables for sockets are set, and no others\n");
  expect(Tree::load("efa"), "-v", {}, "",
         "rdmap59s0 is an Elastic Fabric Adapter (EFA): nothing to set. NCCL uses it only with the plug-in "
         "aws-ofi-nccl");
}

// A variable with another value than this node needs is kept, and the user learns of it, once per node and without -v.
TEST(Exec, KeepsAnotherValueWithAWarning) {
  const auto expect = [](const char* tree, const Environment& set, const std::string& warning) {
    const Result result = exec(Tree::load(tree), {"--", "sh", "-c", print_variables}, set);
    EXPECT_EQ(result.status, 0);
    for (const auto& [name, value] : set) EXPECT_SAYS(result.out, name + "=" + value + "\n");
    EXPECT_EQ(multinode::testing::occurrences(result.err, " stays; rdma_tune: "), warning.empty() ? 0U : 1U);
    EXPECT_SAYS(result.err, warning);
  };
  expect("mlx5-pairs", {{"NCCL_IB_GID_INDEX", "3"}, {"NCCL_IB_HCA", "mlx5"}}, "");
  expect("ipv4-link-local", {{"NCCL_IB_GID_INDEX", "3"}}, "warning: NCCL_IB_GID_INDEX=3 stays; rdma_tune: 5\n");
  expect("infiniband-and-roce", {{"NCCL_IB_HCA", "mlx5"}}, "NCCL_IB_HCA=mlx5 stays; rdma_tune: =mlx5_0:1,mlx5_1:1,");
  const Tree two = Tree::load("two-indices");
  EXPECT_SAYS(exec(two, {"--", "true"}).err, ": warning: 2 networks fit, and all are taken: 10.1.0.0/24 (mlx5_0), ");
  const Environment rank_1{{"RANK", "1"},        {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"},
                           {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}};
  EXPECT_EQ(exec(two, {"--", "true"}, rank_1).err, "");
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

TEST(Exec, ACommandThatCannotBeRun) {  // nor can verify
  for (const std::string name : {"exec", "verify"}) {
    const auto cannot = [&](const char* command, int status, const std::string& why) {
      const Result result = run({PATH_rdma_tune, name, "--", command});
      EXPECT_EQ(result.status, status);
      EXPECT_SAYS(result.err, "rdma_tune " + name + ": cannot run " + command + ": " + why + "\n");
    };
    cannot("no-such-command", 127, "No such file or directory");
    cannot("/", 126, "Permission denied");
  }
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

}  // namespace exec_test
