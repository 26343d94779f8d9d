#include "control-plane/placement.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace placement_test {

using cluster::place;
using Counts = std::vector<int>;

// Against what the words say, by trying every set of nodes.
TEST(Placement, IsAllOrNothingAndTakesFewNodes) {
  EXPECT_EQ(place(8, {4, 8, 2}), (Counts{0, 8, 0}));
  EXPECT_EQ(place(2, {4, 8, 2}), (Counts{0, 0, 2})) << "the smallest node that takes all of it";
  std::mt19937 random(1);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution(low, high)(random); };
  int placed = 0;
  for (int round = 0; round < 2000; ++round) {
    Counts free(static_cast<std::size_t>(pick(0, 6)));
    for (int& node : free) node = pick(0, 6);
    const int workers = pick(1, 12);
    std::ptrdiff_t fewest = 99;
    for (unsigned set = 0; set < 1u << free.size(); ++set) {
      int room = 0, nodes = 0;
      for (std::size_t node = 0; node < free.size(); ++node)
        if (set & 1u << node) room += free[node], ++nodes;
      if (room >= workers) fewest = std::min<std::ptrdiff_t>(fewest, nodes);
    }
    const Counts counts = place(workers, free);
    ASSERT_EQ(counts.empty(), fewest == 99);
    if (counts.empty()) continue;
    ++placed;
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0), workers);
    for (std::size_t node = 0; node < free.size(); ++node) EXPECT_LE(counts[node], free[node]);
    EXPECT_EQ(std::ssize(counts) - std::count(counts.begin(), counts.end(), 0), fewest);
  }
  EXPECT_GT(placed, 1000);
}

}  // namespace placement_test
