// rdma_tune compare: which node differs from the others.
#include "rdma_tune/compare.hpp"

#include "rdma_tune/choice.hpp"
#include "rdma_tune/table.hpp"
#include "tree.hpp"

#include <test/support/program_test.hpp>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace compare_test {

using namespace rdma;
using multinode::testing::run;
using nlohmann::json;
using rdma::testing::Tree;
using ::testing::IsNotSubstring;

constexpr char port[] = "/sys/class/infiniband/mlx5_0/ports/1";

// What `rdma_tune --json` writes for the tree of a ConnectX with these lines added.
json node(const std::string& name, const std::string& lines = "") {
  const Tree tree("include mlx5-pairs\n" + lines);
  const System system = read_system(tree.sys());
  json object = to_json(system, choose(system, {}));
  object["node"] = name;
  return object;
}

std::vector<NodeFacts> facts(const std::vector<json>& nodes) {
  std::vector<NodeFacts> all;
  for (const json& object : nodes) all.push_back(facts_of(object));
  return all;
}

std::string printed(const std::vector<NodeFacts>& nodes) {
  std::ostringstream out;
  print_differences(out, nodes, differences(nodes));
  return out.str();
}

std::string file(const std::string& contents) { return std::string("F 444 ") + port + contents + "\\n\n"; }
const std::string slow = file("/rate = 25 Gb/sec (1X EDR)");

TEST(RdmaCompare, NamesTheOddNodeAndWhatIsOdd) {
  const struct {
    std::string lines, what, value;
  } cases[] = {
      {slow, "mlx5_0:1 rate", "25 Gb/sec (1X EDR)"},
      {file("/state = 1: DOWN"), "mlx5_0:1 state", "DOWN"},
      {file("/link_layer = InfiniBand"), "mlx5_0:1 link layer", "InfiniBand"},
      {"F 444 /sys/class/infiniband/mlx5_0/fw_ver = 28.38.1002\\n", "mlx5_0 firmware", "28.38.1002"},
      {"F 444 /sys/class/net/enp61s0/mtu = 1500\\n", "mlx5_0:1 network MTU", "1500"},
      {std::string("G ") + port + " 2 10.1.0.5 v2 enp61s0", "mlx5_0:1 GID index", "2"},
  };
  for (const auto& one : cases) {
    const auto nodes = facts({node("n0"), node("n1"), node("n2", one.lines), node("n3")});
    const auto found = differences(nodes);
    ASSERT_FALSE(found.empty()) << one.what;
    const auto difference = std::ranges::find(found, one.what, &Difference::what);
    ASSERT_NE(difference, found.end()) << one.what << '\n' << printed(nodes);
    EXPECT_TRUE(difference->majority);
    ASSERT_EQ(difference->values.size(), 2u);
    EXPECT_FALSE(difference->values[0].odd);
    EXPECT_EQ(difference->values[0].nodes, (std::vector<std::string>{"n0", "n1", "n3"}));
    EXPECT_TRUE(difference->values[1].odd);
    EXPECT_EQ(difference->values[1].value, one.value);
    EXPECT_EQ(difference->values[1].nodes, std::vector<std::string>{"n2"});
    EXPECT_SAYS(printed(nodes), "odd one out: n2: ");
  }
}

TEST(RdmaCompare, NamesTheNodeInAnotherSubnet) {
  std::vector<json> nodes{node("n0"), node("n1"), node("n2")};
  for (json& object : nodes)
    for (json& gid : object["devices"][0]["ports"][0]["gids"]) gid["subnet"] = "10.1.0.0/24";
  EXPECT_TRUE(differences(facts(nodes)).empty());
  nodes[1]["devices"][0]["ports"][0]["gids"][3]["subnet"] = "10.2.0.0/24";  // the chosen one
  nodes[1]["devices"][0]["ports"][0]["active_mtu"] = 1024;
  nodes[0]["devices"][0]["ports"][0]["active_mtu"] = nodes[2]["devices"][0]["ports"][0]["active_mtu"] = 4096;
  EXPECT_SAYS(printed(facts(nodes)), "odd one out: n1: mlx5_0:1 MTU, mlx5_0:1 subnet");
}

TEST(RdmaCompare, NamesTheNodeThatLacksADevice) {
  json none = node("n2");
  none["devices"] = json::array();
  const std::string text = printed(facts({node("n0"), node("n1"), none}));
  EXPECT_SAYS(text, "odd one out: n2: RDMA devices\n");
  EXPECT_SAYS(text, "1 of ") << "the report repeats for each port what the node lacks: " << text;
}

TEST(RdmaCompare, WithoutAMajorityNoNodeIsOdd) {
  const std::string two = printed(facts({node("n0"), node("n1", slow)})),
                    four = printed(facts({node("n0"), node("n1", slow), node("n2"), node("n3", slow)}));
  EXPECT_SAYS(two, "25 Gb/sec (1X EDR)   n1");
  EXPECT_SAYS(two, "100 Gb/sec (4X EDR)  n0");
  EXPECT_SAYS(two, "compare cannot know which is right");
  EXPECT_SAYS(four, "no value has a majority");
  EXPECT_PRED_FORMAT2(IsNotSubstring, "odd", two + four);
}

TEST(RdmaCompare, AnUnknownValueIsNoDifference) {
  json silent = node("n2");
  silent["devices"][0]["ports"][0]["active_mtu"] = nullptr;
  silent["devices"][0]["firmware"] = "";
  json other = node("n0");
  other["devices"][0]["ports"][0]["active_mtu"] = 4096;
  EXPECT_TRUE(differences(facts({other, silent})).empty());
}

TEST(RdmaCompare, AnotherFileOfTheSameNodeIsAnotherNode) {
  const auto nodes = facts({node("n0"), node("n0"), node("n0", file("/state = 1: DOWN"))});
  EXPECT_SAYS(printed(nodes), "odd one out: n0 (3): mlx5_0:1 state");
}

TEST(RdmaCompare, AFileCannotWriteToTheTerminal) {
  json evil = node("n1");
  evil["devices"][0]["firmware"] = "\x1b[2J\n";
  EXPECT_SAYS(printed(facts({node("n0"), evil})), "?[2J ");
}

class RdmaCompareProgram : public ::testing::Test {
 protected:
  std::string written(const std::string& name, const std::string& contents) {
    scratch_.write(name, contents);
    return scratch_ / name;
  }
  multinode::testing::Result compare(std::vector<std::string> words) {
    words.insert(words.begin(), {PATH_rdma_tune, "compare"});
    return run(words);
  }
  multinode::testing::TemporaryFolder scratch_;
};

TEST_F(RdmaCompareProgram, ComparesFilesOfOneAndOfSeveralNodes) {
  const std::string first = written("n0.json", node("n0").dump()),
                    others = written("others.json", node("n1").dump() + "\n\n" + node("n2", slow).dump());
  const auto differ = compare({first, others, "--json", scratch_ / "out.json"});
  EXPECT_EQ(differ.status, 1) << differ.all();
  EXPECT_SAYS(differ.out, "odd one out: n2: mlx5_0:1 rate\n");
  std::ifstream in(scratch_ / "out.json");
  const json out = json::parse(in);
  EXPECT_EQ(out["nodes"], (json{"n0", "n1", "n2"}));
  EXPECT_EQ(out["differences"][0]["values"][1],
            (json{{"value", "25 Gb/sec (1X EDR)"}, {"nodes", {"n2"}}, {"odd", true}}));

  const auto agree = compare({first, written("n1.json", node("n1").dump())});
  EXPECT_EQ(agree.status, 0) << agree.all();
  EXPECT_SAYS(agree.out, "2 nodes agree");
}

TEST_F(RdmaCompareProgram, TellsWhichFileIsGarbageInOneLine) {
  const std::string good = written("good.json", node("n0").dump());
  json no_ports = node("n1"), words = node("n2");
  no_ports["devices"][0].erase("ports");
  words["devices"] = "none";
  const struct {
    std::string path, why;
  } cases[] = {
      {scratch_ / "nothing.json", "No such file or directory"},
      {scratch_.path().string(), "no regular file"},
      {"/dev/zero", "no regular file"},
      {written("empty.json", ""), "it is empty"},
      {written("text.json", "not JSON"), "line 1 is no JSON"},
      {written("cut.json", node("n1").dump().substr(0, 300)), "line 1 is no JSON"},
      {written("deep.json", std::string(1'000'000, '[')), "line 1 is no JSON"},
      {written("number.json", "7"), "line 1: it is no object"},
      {written("other.json", R"({"node": "n1"})"), "line 1: it has no 'net_devices'"},
      {written("words.json", words.dump()), "line 1: 'devices' is no list"},
      {written("ports.json", no_ports.dump()), "line 1: it has no 'ports'"},
      {written("second.json", node("n1").dump() + "\n{}"), "line 2: it has no 'node'"},
  };
  for (const auto& one : cases) {
    const auto result = compare({good, one.path});
    EXPECT_EQ(result.status, 2) << result.all();
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(result.err,
              "rdma_tune: compare: " + one.path + ": " + one.why + "; it must be a file of rdma_tune --json\n");
  }
}

TEST_F(RdmaCompareProgram, NeedsTwoNodes) {
  for (const auto& words : {std::vector<std::string>{}, {written("one.json", node("n0").dump())}}) {
    const auto result = compare(words);
    EXPECT_EQ(result.status, 2);
    EXPECT_SAYS(result.err, "compare needs at least two nodes");
    EXPECT_EQ(multinode::testing::occurrences(result.err, "\n"), 1u) << result.err;
  }
  EXPECT_EQ(compare({"--jso", "x"}).status, 2);
}

#ifdef MULTINODE_HAVE_MPI
TEST_F(RdmaCompareProgram, CollectsTheNodesOverALauncher) {
  const Tree right = Tree::load("mlx5-pairs"), odd("include mlx5-pairs\n" + slow);
  for (const auto& [rank, tree] : {std::pair("0", &right), {"1", &odd}, {"2", &right}})
    std::filesystem::create_symlink(tree->path(), scratch_ / rank);
  const std::string ranks = "exec '" PATH_rdma_tune "' compare --sysfs " + scratch_.path().string();
  using multinode::testing::under_mpirun;
  const auto differ =
      run(under_mpirun(3, {"sh", "-c", ranks + "/$" + multinode::testing::mpi_rank_variable() + "/sys"}));
  EXPECT_EQ(differ.status, 1) << differ.all();
  EXPECT_EQ(multinode::testing::occurrences(differ.out, "odd one out: "), 1u) << differ.all();
  EXPECT_SAYS(differ.out, " (2): mlx5_0:1 rate\n");

  const auto same = run(under_mpirun(3, {"sh", "-c", ranks + "/0/sys"}));
  EXPECT_EQ(same.status, 2) << same.all();
  EXPECT_SAYS(same.err, "compare needs two nodes, and all ranks are on ");
}
#endif

}  // namespace compare_test
