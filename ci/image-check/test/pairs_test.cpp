// Which node is bad: every place that it may have, among few and many.
#include "pairs.hpp"

#include <testing/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

namespace image_check::pairs_test {

// Nodes that are slow, or with whom nothing works.
struct Fabric {
  std::set<std::size_t> slow, dead;
  int last_round = 0;
  std::vector<std::optional<double>> operator()(int round, const std::vector<Pair>& pairs) {
    last_round = std::max(last_round, round);
    std::set<std::size_t> used;
    std::vector<std::optional<double>> bandwidths;
    for (const auto& [a, b] : pairs) {
      EXPECT_TRUE(used.insert(a).second && used.insert(b).second) << "a node is in two pairs at once";
      if (dead.contains(a) || dead.contains(b))
        bandwidths.push_back(std::nullopt);
      else
        bandwidths.push_back(slow.contains(a) || slow.contains(b) ? 3.0 : 10.0 + static_cast<double>(a + b) / 64);
    }
    return bandwidths;
  }
};

TEST(Pairs, OneBadNodeIsNamedWhereverItIs) {
  for (std::size_t nodes = 3; nodes <= 9; ++nodes)
    for (std::size_t bad = 0; bad < nodes; ++bad)
      for (const bool dead : {false, true}) {
        Fabric fabric;
        (dead ? fabric.dead : fabric.slow) = {bad};
        const auto found = find_bad_nodes(nodes, std::ref(fabric));
        EXPECT_EQ(found.bad, std::vector<std::size_t>{bad}) << nodes << " nodes";
        EXPECT_TRUE(found.unknown.empty());
        EXPECT_LE(fabric.last_round, 2);
      }
}

TEST(Pairs, GoodNodesAreNotAccused) {
  for (std::size_t nodes = 2; nodes <= 9; ++nodes) {
    Fabric fabric;
    const auto found = find_bad_nodes(nodes, std::ref(fabric));
    EXPECT_TRUE(found.bad.empty() && found.unknown.empty());
    EXPECT_EQ(fabric.last_round, 1);
  }
}

TEST(Pairs, SeveralBadNodes) {
  Fabric fabric;
  fabric.slow = {1, 4};
  fabric.dead = {5};
  EXPECT_EQ(find_bad_nodes(8, std::ref(fabric)).bad, (std::vector<std::size_t>{1, 4, 5}));
  Fabric many;
  for (std::size_t node = 4; node < 64; node += 2) many.slow.insert(node);
  const auto found = find_bad_nodes(64, std::ref(many));
  EXPECT_EQ(found.bad, std::vector<std::size_t>(many.slow.begin(), many.slow.end()));
  EXPECT_EQ(many.last_round, 2);
}

TEST(Pairs, ADeadDeviceOfEightIsNamedAndNoiseIsNot) {
  const auto measure = [](int, const std::vector<Pair>& pairs) {
    std::vector<std::optional<double>> bandwidths;
    for (const auto& [a, b] : pairs)
      bandwidths.push_back(a == 5 || b == 5 ? 350.0 : 388.0 + static_cast<double>(a + b));
    return bandwidths;
  };
  EXPECT_EQ(find_bad_nodes(8, measure, least_share(8)).bad, std::vector<std::size_t>{5});
  EXPECT_TRUE(find_bad_nodes(8, measure).bad.empty());
  EXPECT_EQ(least_share(8), 0.9375);
  EXPECT_EQ(least_share(1), 0.5);
}

TEST(Pairs, WithoutAGoodPairNothingIsTold) {
  Fabric fabric;
  fabric.dead = {0, 2};
  const auto found = find_bad_nodes(4, std::ref(fabric));
  EXPECT_TRUE(found.bad.empty());
  EXPECT_EQ(found.unknown, (std::vector<std::size_t>{0, 1, 2, 3}));
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

}  // namespace image_check::pairs_test
