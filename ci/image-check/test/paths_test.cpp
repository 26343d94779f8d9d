// What is wrong between nodes: every kind of fault. path_simulation has large networks with noise.
#include "paths.hpp"

#include <multinode/base/options.hpp>
#include <multinode/base/text.hpp>
#include <test/support/says.hpp>
#include <test/support/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <set>

namespace image_check::paths_test {

std::vector<std::string> names(std::size_t nodes) {
  std::vector<std::string> all;
  for (std::size_t node = 0; node < nodes; ++node) all.push_back("n" + std::to_string(node));
  return all;
}
Topology flat(std::size_t nodes) { return one_switch(names(nodes)); }

// Measures with 10 GB/s times what `part` leaves of a pair.
template <typename Part>
PathFaults find(const Topology& topology, const Part& part, double at_least = 0.5) {
  const auto measure = [&](const std::vector<Pair>& pairs) {
    std::set<std::size_t> used;
    std::vector<std::optional<double>> values;
    for (const auto& [a, b] : pairs) {
      EXPECT_TRUE(used.insert(a).second && used.insert(b).second) << "a node is in two pairs at once";
      const double value = (10.0 + static_cast<double>((a + b) % 8) / 64) * part(std::min(a, b), std::max(a, b));
      values.push_back(value > 0 ? std::optional(value) : std::nullopt);
    }
    return values;
  };
  return find_path_faults(topology, measure, at_least);
}
std::string texts(const PathFaults& found) {
  std::vector<std::string> all;
  for (const auto& verdict : found.verdicts) all.push_back(verdict.text.substr(0, verdict.text.find(": ")));
  std::ranges::sort(all);
  return multinode::join(all, "; ");
}

TEST(Paths, OneBadNodeIsNamedWhereverItIsAndAGoodOneIsNot) {
  for (std::size_t nodes = 3; nodes <= 9; ++nodes)
    for (std::size_t bad = 0; bad < nodes; ++bad)
      for (const double left : {0.0, 0.3, 1.0}) {
        const auto found = find(flat(nodes), [&](auto a, auto b) { return a == bad || b == bad ? left : 1; });
        EXPECT_EQ(texts(found), left == 1 ? "" : "node n" + std::to_string(bad)) << nodes << " nodes";
        EXPECT_EQ(found.paths, nodes * (nodes - 1) / 2) << nodes << " nodes";
      }
}

TEST(Paths, SixNodes) {
  const auto crossing = [](auto a, auto b) { return a < 3 && b >= 3; };
  EXPECT_EQ(texts(find(flat(6), [&](auto a, auto b) { return crossing(a, b) ? 0.2 : 1; })),
            "slow link or uplink between {n3, n4, n5} and {n0, n1, n2}");
  const auto split = find(flat(6), [&](auto a, auto b) { return crossing(a, b) ? 0 : 1; });
  ASSERT_EQ(split.verdicts.size(), 1U);
  EXPECT_EQ(split.verdicts[0].text,
            "cluster is split: {n3, n4, n5} and {n0, n1, n2}: 9 of 9 measurements failed; confidence 99 %");
  EXPECT_EQ(texts(find(flat(6), [](auto a, auto b) { return a == 1 && b == 4 ? 0.1 : 1; })), "one path n1 - n4");
  EXPECT_EQ(texts(find(flat(6), [&](auto a, auto b) { return b == 5 || (a == 1 && b == 4) ? 0.1 : 1; })),
            "node n5; one path n1 - n4");
}

TEST(Paths, SeveralBadNodes) {
  const auto found =
      find(flat(64), [](auto a, auto b) { return (a >= 4 && a % 2 == 0) || (b >= 4 && b % 2 == 0) ? 0.3 : 1; });
  EXPECT_EQ(found.verdicts.size(), 30U);
  EXPECT_LT(found.paths, 64U * 63 / 2);
  for (const auto& verdict : found.verdicts) {
    ASSERT_EQ(verdict.fault, Fault::node) << verdict.text;
    EXPECT_TRUE(verdict.one[0] >= 4 && verdict.one[0] % 2 == 0) << verdict.text;
  }
}

TEST(Paths, ADeadDeviceOfEightIsNamedAndNoiseIsNot) {
  const auto part = [](auto a, auto b) { return a == 5 || b == 5 ? 0.875 : 1; };
  EXPECT_EQ(texts(find(flat(8), part, least_share(8))), "node n5");
  EXPECT_EQ(texts(find(flat(8), part)), "");
  EXPECT_EQ(least_share(8), 0.9375);
  EXPECT_EQ(least_share(1), 0.5);
}

TEST(Paths, WhatCannotBeToldIsNotNamed) {
  EXPECT_EQ(texts(find(flat(4), [](auto, auto) { return 0; })), "cannot tell");
  // One of three links behind switches that are unknown, taken at random.
  int turn = 0;
  const auto one_of_three = [&](auto a, auto b) { return a < 4 && b >= 4 && turn++ % 3 == 0 ? 0.2 : 1; };
  EXPECT_EQ(texts(find(flat(12), one_of_three)), "cannot tell");
}

class TopologyFile : public ::testing::Test {
 protected:
  Topology read(const std::string& text, std::size_t nodes) {
    folder_.write("topology.conf", text);
    return read_topology(folder_ / "topology.conf", names(nodes));
  }
  multinode::testing::TemporaryFolder folder_;
};

TEST_F(TopologyFile, NamesSwitches) {
  const auto topology = read(
      "# three racks\nSwitchName=rack1 Nodes=n[0-3]\nswitchname=rack2 nodes=n[4-7],other LinkSpeed=1\n"
      "SwitchName=rack3 Nodes=n[8-11]\nSwitchName=rack4 Nodes=n12\n\nSwitchName=core Switches=rack[1-4]\n",
      13);
  EXPECT_EQ(multinode::join(std::vector(topology.names.begin() + 13, topology.names.end()), " "),
            "rack1 rack2 rack3 core");
  EXPECT_EQ(topology.parents[12], topology.names.size() - 1);  // a rack of one node is that node
  const auto rack = [](std::size_t node) { return node / 4; };
  EXPECT_EQ(texts(find(topology,
                       [&](auto a, auto b) { return rack(a) != rack(b) && (rack(a) == 1 || rack(b) == 1) ? 0.1 : 1; })),
            "uplink of rack2");
  EXPECT_EQ(texts(find(topology, [&](auto a, auto b) { return rack(a) == 0 && rack(b) == 1 ? 0.1 : 1; })),
            "link or uplink between rack1 and rack2");
  int turn = 0;
  const auto found =
      find(topology, [&](auto a, auto b) { return rack(a) == 0 && rack(b) != 0 && turn++ % 3 == 0 ? 0.1 : 1; });
  EXPECT_EQ(texts(found), "uplink of rack1");
  EXPECT_SAYS(found.verdicts.at(0).text, "ECMP");
}

TEST_F(TopologyFile, ThatIsWrongIsRefused) {
  const auto wrong = [&](const std::string& text, const std::string& why) {
    EXPECT_SAYS(multinode::testing::error_text<multinode::UsageError>([&] { read(text, 2); }), why);
  };
  wrong("SwitchName=a Nodes=n0\n", "has no node n1");
  wrong("SwitchName=a Nodes=n[0-1]\nNodes=n0\n", "topology.conf:2: not a new SwitchName");
  wrong("SwitchName=a Nodes=n[0-1]\nSwitchName=a Switches=b\n", "topology.conf:2: not a new SwitchName");
  wrong("SwitchName=a Nodes=n[0-1]\nSwitchName=b Nodes=n1\n", "topology.conf:2: n1 is below two switches");
  wrong("SwitchName=a Nodes=n[0-1] Switches=b\nSwitchName=b Switches=a\n", "no switch is above all others");
  EXPECT_THROW(read_topology("/nowhere", names(2)), multinode::UsageError);
}

TEST(Rails, AreTheActiveRdmaDevices) {
  const multinode::testing::TemporaryFolder sysfs;
  const auto port = [&](const std::string& device, const char* state) {
    sysfs.write("class/infiniband/" + device + "/ports/1/state", state);
  };
  EXPECT_TRUE(rdma_rails(sysfs.path()).empty());
  port("mlx5_0", "4: ACTIVE");
  EXPECT_TRUE(rdma_rails(sysfs.path()).empty());  // one device is what the libraries choose anyway
  port("mlx5_1", "4: ACTIVE");
  port("mlx5_2", "1: DOWN");
  EXPECT_EQ(rdma_rails(sysfs.path()), (std::vector<std::string>{"mlx5_0", "mlx5_1"}));
}

}  // namespace image_check::paths_test
