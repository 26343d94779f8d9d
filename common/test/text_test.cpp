// Lists in messages.
#include <multinode/text.hpp>

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

namespace {

using namespace multinode;

TEST(Text, JoinsWordsAndNumbers) {
  EXPECT_EQ(join(std::vector<std::string>{}), "");
  EXPECT_EQ(join(std::vector<std::string>{"", "b", ""}), ", b, ");
  EXPECT_EQ(join(std::set<int>{30, -2}), "-2, 30");
  EXPECT_EQ(join(std::vector<std::size_t>{2, 3}, " x "), "2 x 3");
  const auto key = [](const auto& named) { return named.first; };
  EXPECT_EQ(join(std::map<std::string, int>{{"a", 1}, {"b", 2}}, ",", key), "a,b");
}

TEST(Text, RanksAreNamedInTheRightNumber) {
  EXPECT_EQ(rank_list(std::vector<int>{3}), "rank 3");
  EXPECT_EQ(rank_list(std::vector<std::size_t>{1, 2}), "ranks 1, 2");
}

}  // namespace
