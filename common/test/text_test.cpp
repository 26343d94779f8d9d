// Numbers from text, and text and lists in messages.
#include <multinode/text.hpp>

#include <gtest/gtest.h>

#include <cstdint>
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

TEST(Text, OnlyDecimalNumbersAreParsed) {
  EXPECT_EQ(parse_decimal<int>("0042"), 42);
  EXPECT_EQ(parse_decimal<std::uint16_t>("65535"), 65'535);
  EXPECT_EQ(parse_decimal<std::uint16_t>("65536"), std::nullopt);
  for (const char* text : {"", " 1", "1 ", "+1", "-1", "-0", "0x1", "1.0", "one"})
    EXPECT_EQ(parse_decimal<int>(text), std::nullopt) << text;
}

TEST(Text, AnyBytesArePrintable) {
  EXPECT_EQ(printable("a\nb\x01\xff"), "a?b??");
  EXPECT_EQ(printable(std::string(60, 'a')), std::string(60, 'a'));
  EXPECT_EQ(printable(std::string(61, 'a')), std::string(60, 'a') + "...");
}

}  // namespace
