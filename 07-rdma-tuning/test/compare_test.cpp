// rdma_tune compare: which node differs from the others in what matters between nodes.
#include "rdma_tune/choice.hpp"
#include "rdma_tune/table.hpp"
#include "tree.hpp"

#include <test/support/json_lines.hpp>
#include <test/support/program_test.hpp>

#include <gtest/gtest.h>

namespace compare_test {

using namespace rdma;
using multinode::testing::Result, multinode::testing::run;
using nlohmann::json;
using rdma::testing::Tree;
using ::testing::IsNotSubstring;

// What `rdma_tune --json` writes for the tree of a ConnectX with these lines added.
json node(const std::string& name, const std::string& lines = "") {
  const Tree tree("include mlx5-pairs\n" + lines);
  const System system = read_system(tree.sys());
  json object = to_json(system, choose(system, {}));
  object["node"] = name;
  return object;
}

const std::string port = "/sys/class/infiniband/mlx5_0/ports/1", slow = "F 444 " + port + "/rate = 25 Gb/sec (1X EDR)";

class Compare : public ::testing::Test {
 protected:
  std::string written(const std::string& name, const std::string& contents) {
    scratch_.write(name, contents);
    return scratch_ / name;
  }
  Result run_with(std::vector<std::string> words) {
    words.insert(words.begin(), {PATH_rdma_tune, "compare"});
    return run(words);
  }
  Result compare(const std::vector<json>& nodes) {
    std::string lines;
    for (const json& one : nodes) lines += multinode::json_text(one) + "\n\n";
    return run_with({written("nodes.json", lines), "--json", scratch_ / "out.json"});
  }
  multinode::testing::TemporaryFolder scratch_;
};

TEST_F(Compare, NamesTheOddNodeAndWhatIsOdd) {
  json other_network = node("n2");
  other_network["ports"][0]["network"] = "10.2.0.0/24";
  const struct {
    json odd;
    std::string what, value;
  } cases[] = {
      {node("n2", slow), "speed", "25 Gb/sec (1X EDR)"},
      {node("n2", "F 444 " + port + "/state = 1: DOWN"), "ports in use", "0"},
      {node("n2", "F 444 " + port + "/link_layer = InfiniBand"), "link layer", "InfiniBand"},
      {node("n2", "F 444 /sys/class/net/enp61s0/mtu = 1500"), "MTU", "1024"},
      {other_network, "network", "10.2.0.0/24"},
      {node("n2", "X /sys/class/infiniband/mlx5_0"), "ports in use", "0"},
  };
  for (const auto& [odd, what, value] : cases) {
    json right[] = {node("n0"), node("n1"), node("n3")};
    for (json& one : right) one["ports"][0]["network"] = "10.1.0.0/24";
    const Result result = compare({right[0], right[1], odd, right[2]});
    EXPECT_EQ(result.status, 1) << result.all();
    EXPECT_SAYS(result.out, "odd one out: n2: " + what);
    EXPECT_SAYS(result.out, "1 of ") << what;
    const json differences = multinode::testing::json_lines(scratch_ / "out.json").at(0)["differences"];
    EXPECT_EQ(differences[0]["what"], what);
    EXPECT_EQ(differences[0]["values"][0]["nodes"], (json{"n0", "n1", "n3"}));
    EXPECT_EQ(differences[0]["values"][1], (json{{"value", value}, {"nodes", {"n2"}}, {"odd", true}}));
  }
}

TEST_F(Compare, AnotherIndexOrNameOfADeviceIsNormal) {
  json other_name = node("n1", "G " + port + " 2 10.1.0.5 v2 enp61s0");
  other_name["ports"][0]["device"] = "mlx5_7";
  const Result result = compare({node("n0"), other_name});
  EXPECT_EQ(result.status, 0) << result.all();
  EXPECT_SAYS(result.out, "2 nodes agree in everything that was compared");
  EXPECT_SAYS(result.out, "GID indices differ, which is normal: start the processes with rdma_tune exec");
}

TEST_F(Compare, NetworksThatCannotMeet) {
  const auto on = [](const std::string& name, const std::string& address, const std::string& route = "") {
    json one = node(name);
    one["ports"][0].update({{"gid", address}, {"network", address + "/24"}, {"routes", json::array()}});
    if (!route.empty()) one["ports"][0]["routes"].push_back(route);
    return one;
  };
  EXPECT_EQ(compare({on("n0", "192.168.100.1"), on("n1", "192.168.100.2")}).status, 0);
  const Result apart = compare({on("n0", "192.168.100.1"), on("n1", "192.168.200.2")});
  EXPECT_EQ(apart.status, 1);
  EXPECT_SAYS(apart.out, "nodes in different networks reach each other only through a router");
  json two = on("n1", "192.168.100.2");  // of two ports one reaches the other node
  two["ports"].push_back(on("", "192.168.200.2")["ports"][0]);
  EXPECT_SAYS(compare({on("n0", "192.168.100.1"), two}).out, "nodes in different networks");
  // Cards with a /31 or /127 of their own are of a routed fabric.
  const auto link = [&](const std::string& name, const std::string& address, const std::string& bits) {
    json one = on(name, address);
    one["ports"][0]["network"] = address + bits;
    return one;
  };
  EXPECT_EQ(compare({link("n0", "172.16.0.0", "/31"), link("n1", "172.16.0.2", "/31")}).status, 0);
  EXPECT_EQ(compare({link("n0", "fd00:1::", "/127"), link("n1", "fd00:2::", "/127")}).status, 0);
  EXPECT_EQ(compare({link("n0", "fd00:1::", "/127"), link("n1", "172.16.0.2", "/31")}).status, 1);
  EXPECT_EQ(compare({link("n0", "172.16.0.0", "/30"), link("n1", "172.16.0.4", "/30")}).status, 1);
  // Where a route of the RDMA interface leads to the other network, as in a routed fabric.
  EXPECT_EQ(compare({on("n0", "10.1.0.1", "10.0.0.0/8"), on("n1", "10.2.0.1", "10.0.0.0/8")}).status, 0);
  const json six =
      node("n1", "F 444 /proc/net/ipv6_route = fd00" + std::string(28, '0') + " 10 0 00 0 0 0 0 0 enp61s0");
  EXPECT_EQ(six["ports"][0]["routes"], json{"fd00:0000:0000:0000:0000:0000:0000:0000/16"});
}

TEST_F(Compare, PKeysOfEachPort) {
  json one = node("n0"), other = node("n1");
  one["ports"][0]["pkeys"] = "0x8012";
  one["ports"].push_back(one["ports"][0]);
  one["ports"][1].update({{"port", 2}, {"pkeys", "0x8013"}});
  other["ports"] = one["ports"];
  EXPECT_EQ(compare({one, other}).status, 0);
  std::swap(other["ports"][0]["pkeys"], other["ports"][1]["pkeys"]);
  EXPECT_SAYS(compare({one, other}).out, "P_Keys        0x8012, port 2: 0x8013  n0");
}

TEST_F(Compare, NodesWithoutRdma) {
  const std::string none = "X /sys/class/infiniband/mlx5_0";
  const Result result = compare({node("n0", none), node("n1", none)});
  EXPECT_EQ(result.status, 3);
  EXPECT_EQ(result.out, "nothing to compare: none of 2 nodes has an RDMA port to use\n");
}

TEST_F(Compare, WithoutAMajorityNoNodeIsOdd) {
  for (const auto& nodes :
       {std::vector{node("n0"), node("n1", slow)}, {node("n0"), node("n1", slow), node("n2"), node("n3", slow)}}) {
    const Result result = compare(nodes);
    EXPECT_EQ(result.status, 1);
    EXPECT_SAYS(result.out, "no value has a majority: compare cannot know which is right");
    EXPECT_PRED_FORMAT2(IsNotSubstring, "odd", result.out);
  }
}

TEST_F(Compare, AFileCannotWriteToTheTerminal) {
  json evil = node("n1");
  evil["ports"][0]["rate"] = "\x1b[2J\n";
  EXPECT_SAYS(compare({node("n0"), evil}).out, "?[2J ");
}

TEST_F(Compare, NamesTheFileThatIsGarbageInOneLine) {
  const std::string good = written("good.json", multinode::json_text(node("n0")));
  json no_ports = node("n1");
  no_ports.erase("ports");
  const struct {
    std::string path, why;
  } cases[] = {
      {written("empty.json", ""), "it has no node"},
      {written("cut.json", multinode::json_text(node("n1")).substr(0, 300)), "line 1 is of another kind"},
      {written("deep.json", std::string(1'000'000, '[')), "line 1 is of another kind"},
      {written("number.json", "7"), "line 1 is of another kind"},
      {written("ports.json", multinode::json_text(no_ports)), "line 1 is of another kind"},
      {written("second.json", multinode::json_text(node("n1")) + "\n{}"), "line 2 is of another kind"},
  };
  for (const auto& [path, why] : cases) {
    const Result result = run_with({good, path});
    EXPECT_EQ(result.status, 2) << result.all();
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(result.err, "rdma_tune: compare: " + path + ": " + why + "; it must be a file of rdma_tune --json\n");
  }
  const std::string none = scratch_ / "nothing.json";
  EXPECT_EQ(run_with({good, none}).err, "rdma_tune: cannot read " + none + ": No such file or directory\n");
  EXPECT_EQ(run_with({good, "/dev/zero"}).err, "rdma_tune: cannot read /dev/zero: it is not a regular file\n");
  EXPECT_SAYS(run_with({good}).err, "compare needs at least two nodes");
  EXPECT_EQ(run_with({"--jso", "x"}).status, 2);
}

#ifdef MULTINODE_HAVE_MPI
TEST_F(Compare, CollectsTheNodesOverALauncher) {
  const Tree right = Tree::load("mlx5-pairs"), odd("include mlx5-pairs\n" + slow);
  for (const auto& [rank, tree] : {std::pair("0", &right), {"1", &odd}, {"2", &right}})
    std::filesystem::create_symlink(tree->path(), scratch_ / rank);
  const std::string ranks = "exec '" PATH_rdma_tune "' compare --sysfs " + scratch_.path().string();
  using multinode::testing::under_mpirun;
  const Result differ =
      run(under_mpirun(3, {"sh", "-c", ranks + "/$" + multinode::testing::mpi_rank_variable() + "/sys"}));
  EXPECT_EQ(differ.status, 1) << differ.all();
  EXPECT_SAYS(differ.out, "25 Gb/sec (1X EDR)");
  EXPECT_SAYS(differ.out, ", rank 1");
  EXPECT_SAYS(differ.out, "1 of 5 things differ, 2 nodes\n");  // ranks 0 and 2 are the same node

  const Result same = run(under_mpirun(3, {"sh", "-c", ranks + "/0/sys"}));
  EXPECT_EQ(same.status, 2) << same.all();
  EXPECT_SAYS(same.err, "compare needs two nodes, and all ranks are on ");
}
#endif

}  // namespace compare_test
