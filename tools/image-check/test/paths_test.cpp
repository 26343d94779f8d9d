// The matrix between nodes: what is slow in it, and what is named.
#include "commands.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <sstream>

namespace image_check::paths_test {

// 10 GB/s times what `part` leaves of each pair, with 12 % of noise.
Matrix matrix_of(std::size_t nodes, const std::function<double(std::size_t, std::size_t)>& part) {
  Matrix matrix;
  for (const auto& round : rounds_of(nodes)) {
    std::set<std::size_t> used;
    for (const auto& [a, b] : round) {
      EXPECT_TRUE(used.insert(a).second && used.insert(b).second) << "a node is in two pairs at once";
      EXPECT_LT(a, b);
      EXPECT_TRUE(matrix.try_emplace({a, b}, (10 + static_cast<double>((a + b) % 8) / 6) * part(a, b)).second);
    }
  }
  return matrix;
}

TEST(Paths, AllPairsAreMeasuredOnceAndOfManyNodesAFewRounds) {
  for (std::size_t nodes = 3; nodes <= 32; ++nodes)
    EXPECT_EQ(matrix_of(nodes, [](auto, auto) { return 1.0; }).size(), nodes * (nodes - 1) / 2);
  EXPECT_EQ(matrix_of(1000, [](auto, auto) { return 1.0; }).size(), 8 * 500U);
}

TEST(Paths, OneBadNodeIsNamedWhereverItIsAndAGoodOneIsNot) {
  for (const std::size_t nodes : {3, 4, 5, 9, 32, 33, 1000})
    for (std::size_t bad = 0; bad < nodes; bad += nodes / 3)
      for (const double left : {0.0, 0.3, 1.0}) {
        const auto slow =
            find_slow(matrix_of(nodes, [&](auto a, auto b) { return a == bad || b == bad ? left : 1; }), 0.5);
        EXPECT_EQ(slow.nodes, left == 1 ? std::set<std::size_t>{} : std::set{bad}) << nodes << " nodes, " << bad;
        EXPECT_TRUE(slow.others.empty());
      }
}

TEST(Paths, PairsAreNamedWhereNoNodeExplainsThem) {
  using Pairs = std::set<Pair>;
  const auto found = [](const std::function<double(std::size_t, std::size_t)>& part) {
    return find_slow(matrix_of(6, part), 0.5);
  };
  EXPECT_EQ(found([](auto a, auto b) { return a == 0 && b == 4 ? 0.2 : 1; }).others, (Pairs{{0, 4}}));
  const auto both = found([](auto a, auto b) { return b == 5 || (a == 0 && b == 4) ? 0.2 : 1; });
  EXPECT_EQ(both.nodes, std::set<std::size_t>{5});
  EXPECT_EQ(both.others, (Pairs{{0, 4}}));
  EXPECT_EQ(found([](auto a, auto b) { return a == 1 || b == 1 || b == 5 ? 0.2 : 1; }).nodes.size(), 2U);
  // A slow link in the middle, or none: 9 of 15 pairs, so their median is slow.
  for (const double left : {0.2, 0.0}) {
    const auto across = found([&](auto a, auto b) { return a < 3 && b >= 3 ? left : 1; });
    EXPECT_TRUE(across.nodes.empty());
    EXPECT_EQ(across.others.size(), 9U);
  }
  // A dead network.
  EXPECT_EQ(found([](auto, auto) { return 0; }).pairs.size(), 15U);
}

TEST(Paths, TheMatrixMarksWhatIsSlow) {
  const Matrix matrix{{{0, 1}, 10}, {{0, 2}, 9.5}, {{1, 2}, 0.000123}};
  std::ostringstream out;
  print(matrix, {"a", "node1", "c"}, find_slow(matrix, 0.5), out);
  EXPECT_EQ(out.str(),
            "GB/s   a    node1      c\n"
            "a      -    10         9.5\n"
            "node1  10   -          *0.000123\n"
            "c      9.5  *0.000123  -\n");
}

}  // namespace image_check::paths_test
