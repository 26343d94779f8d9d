#include "data/csv.hpp"

#include <test/support/says.hpp>

#include <gtest/gtest.h>

namespace csv_test {

using data::Table;
using multinode::testing::error_text;
using Numbers = std::vector<double>;
using Names = std::vector<std::string>;

TEST(Csv, ReadsNumbersTakesNamesSpacesAndEmptyLines) {
  EXPECT_EQ(data::parse_csv("6,0.627,1\n1,-3.5e-1,0\n", "f").inputs, (Numbers{6, 0.627, 1, -0.35}));
  const Table table = data::parse_csv("\n\n a ,\tb c, target \r\n\n 1 , 2 ,0\n   \n3,4,1\r\n\n", "f");
  EXPECT_EQ(table.names, (Names{"a", "b c", "target"}));
  EXPECT_EQ(table.inputs, (Numbers{1, 2, 3, 4}));
  EXPECT_EQ(table.targets, (Numbers{0, 1}));
}

TEST(Csv, SaysWhatIsWrongAndWhere) {
  const struct {
    std::string text, says;
  } cases[] = {
      {"", "f: no rows of numbers in it"},
      {"a,b\n", "f: no rows of numbers in it"},
      {"1;2\n", "f: line 1: one column only; features and a target, separated by commas, are expected"},
      {"1,2\n0x3,4\n", "f: line 2, column 1: '0x3' is not a finite number"},
      {"a,2\n3,4\n", "f: line 1, column 1: 'a' is not a finite number"},
      {"1,2\n3,nan\n", "f: line 2, column 2: 'nan' is not a finite number"},
      {"1,2\n3,\n", "f: line 2, column 2: empty"},
      {"a,b,c\n1,2,3\n1,2\n", "f: line 3: 2 instead of 3 columns"},
      {"1,2\n3,\x1b[31m\n", "f: line 2, column 2: '?[31m' is not a finite number"},
  };
  for (const auto& c : cases)
    EXPECT_EQ(error_text<std::runtime_error>([&] { data::parse_csv(c.text, "f"); }), c.says) << c.text;
}

// mean 2 and unbiased variance ((1 + 0 + 1) / 2) of the first three rows
TEST(Standardise, ByTheRowsThatAreTrainedOn) {
  Table table = data::parse_csv("1,7,0\n2,7,1\n3,7,0\n6,9,1\n", "f");
  EXPECT_EQ(data::standardise(table, 3), std::vector<std::size_t>{1});
  EXPECT_EQ(table.inputs, (Numbers{-1, 0, 0, 0, 1, 0, 4, 0}));
  EXPECT_EQ(table.targets, (Numbers{0, 1, 0, 1}));
}

TEST(Standardise, RefusesWhatCannotBe) {
  Table table = data::parse_csv("1,0\n2,1\n", "f");
  EXPECT_THROW(data::standardise(table, 1), std::logic_error);
  EXPECT_THROW(data::standardise(table, 3), std::logic_error);
  for (const std::string text :
       {"a,b\n1e300,0\n-1e300,0\n", "a,b\n1e-300,0\n2e-300,0\n", "a,b\n1e308,0\n1.5e308,0\n"}) {
    Table extreme = data::parse_csv(text, "f");
    EXPECT_EQ(error_text<std::runtime_error>([&] { data::standardise(extreme, 2); }),
              "a: its values are too large or too small to be standardised");
  }
}

}  // namespace csv_test
