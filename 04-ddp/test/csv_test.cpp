#include "data/csv.hpp"
#include "data/synthetic.hpp"
#include "idx_files.hpp"

#include <multinode/check.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <numeric>

namespace csv_test {

using data::Table;
using Numbers = std::vector<double>;
using Names = std::vector<std::string>;

TEST(Csv, ReadsRowsOfNumbers) {
  const Table table = data::parse_csv("6,148,0.627,1\n1,85,-3.5e-1,0\n", "f");
  EXPECT_EQ(table.names, (Names{"column 1", "column 2", "column 3", "column 4"}));
  EXPECT_EQ(table.features(), 3u);
  EXPECT_EQ(table.inputs, (Numbers{6, 148, 0.627, 1, 85, -0.35}));
  EXPECT_EQ(table.targets, (Numbers{1, 0}));
}

TEST(Csv, TakesWhatSpreadsheetsWrite) {
  const Table expected = data::parse_csv("a,b c,target\n1,2,0\n3,4,1", "f");
  EXPECT_EQ(expected.names, (Names{"a", "b c", "target"}));
  EXPECT_EQ(expected.inputs, (Numbers{1, 2, 3, 4}));
  for (const std::string text : {"a;b c;target\r\n1;2;0\r\n3;4;1\r\n",  // line ends, semicolons
                                 "\xEF\xBB\xBF\"a\",\"b c\",\"target\"\n\"1\",\"2\",0\n3,4,1\n",  // quotation marks
                                 "\n\n a ,\tb c, target \n\n 1 , 2 ,0\n   \n3,4,1\n\n"}) {        // spaces, empty lines
    const Table table = data::parse_csv(text, "f");
    EXPECT_EQ(table.names, expected.names) << text;
    EXPECT_EQ(table.inputs, expected.inputs) << text;
    EXPECT_EQ(table.targets, expected.targets) << text;
  }
  EXPECT_EQ(data::parse_csv("\"mass, kg\",b\n1,2\n", "f").names, (Names{"mass, kg", "b"}));
  EXPECT_EQ(data::parse_csv("a,,c\n1,2,3\n", "f").names, (Names{"a", "column 2", "c"}));
}

TEST(Csv, SaysWhatIsWrongAndWhere) {
  const struct {
    std::string text, says;
  } cases[] = {
      {"", "f: no rows of numbers in it"},
      {"\n \r\n", "f: no rows of numbers in it"},
      {"a,b\n", "f: no rows of numbers in it"},
      {"1\n", "f: line 1: one column only; features and a target, separated by commas or semicolons, are expected"},
      {"1 2 3\n", "f: line 1: one column only; features and a target, separated by commas or semicolons, are expected"},
      {"a,b\n1,x\n", "f: line 2, column 2: 'x' is not a finite number"},
      {"1,2\n3,4a\n", "f: line 2, column 2: '4a' is not a finite number"},
      {"1,2\n0x3,4\n", "f: line 2, column 1: '0x3' is not a finite number"},
      {"a,2\n3,4\n", "f: line 1, column 1: 'a' is not a finite number"},
      {"1,2\n3,nan\n", "f: line 2, column 2: 'nan' is not a finite number"},
      {"1,2\n-inf,4\n", "f: line 2, column 1: '-inf' is not a finite number"},
      {"1,2\n1e999,4\n", "f: line 2, column 1: '1e999' is not a finite number"},
      {"1,2\n\n,4\n", "f: line 3, column 1: empty"},
      {"1,2\n3,\n", "f: line 2, column 2: empty"},
      {"1,2\n3,\"\"\n", "f: line 2, column 2: empty"},
      {"a,b,c\n1,2,3\n1,2\n", "f: line 3: 2 instead of 3 columns, as in line 1"},
      {"\n1,2\n1,2,3\n", "f: line 3: 3 instead of 2 columns, as in line 2"},
      {"1,2\n1;2\n", "f: line 2: 1 instead of 2 columns, as in line 1"},
      {"1;2\n1,5;2\n", "f: line 2, column 1: '1,5' is not a finite number"},
      {"1,2\n\"3,4\n", "f: line 2: a quotation mark is not closed"},
      {"1,2\n3,\x1b[31m\n", "f: line 2, column 2: '?[31m' is not a finite number"},
      {"1,2\n3," + std::string(50, 'x'),
       "f: line 2, column 2: '" + std::string(40, 'x') + "...' is not a finite number"},
  };
  for (const auto& c : cases) {
    try {
      data::parse_csv(c.text, "f");
      ADD_FAILURE() << "taken: " << c.text;
    } catch (const std::runtime_error& e) {
      EXPECT_EQ(std::string(e.what()), c.says) << c.text;
    }
  }
}

TEST(Csv, ReadsFiles) {
  const TemporaryFolder folder;
  const auto path = folder / "table.csv";
  std::ofstream(path) << "a,b\n1.5,2\n";
  EXPECT_EQ(data::read_csv(path).inputs, Numbers{1.5});
  std::ofstream(path) << "1.5,2\n3\n";
  try {
    data::read_csv(path);
    FAIL();
  } catch (const std::runtime_error& e) {
    EXPECT_EQ(e.what(), path.string() + ": line 2: 1 instead of 2 columns, as in line 1");
  }
  for (const auto& unreadable : {folder / "nowhere", folder.path()}) {
    try {
      data::read_csv(unreadable);
      FAIL();
    } catch (const multinode::UsageError& e) {
      EXPECT_EQ(std::string(e.what()).find("cannot read " + unreadable.string() + ": "), 0u) << e.what();
    }
  }
}

// mean 2 and unbiased variance ((1 + 0 + 1) / 2) of the first three rows
TEST(Standardise, ByTheRowsThatAreTrainedOn) {
  Table table = data::parse_csv("1,7,0\n2,7,1\n3,7,0\n6,9,1\n", "f");
  EXPECT_EQ(data::standardise(table, 3), std::vector<std::size_t>{1});
  EXPECT_EQ(table.inputs, (Numbers{-1, 0, 0, 0, 1, 0, 4, 0}));
  EXPECT_EQ(table.targets, (Numbers{0, 1, 0, 1}));
}

TEST(Standardise, GivesMeanZeroAndDeviationOne) {
  Table table = data::synthetic_table(500, 8, 3);
  EXPECT_TRUE(data::standardise(table, 400).empty());
  for (std::size_t j = 0; j < 8; ++j) {
    double sum = 0, squares = 0;
    for (std::size_t i = 0; i < 400; ++i) {
      sum += table.inputs[8 * i + j];
      squares += table.inputs[8 * i + j] * table.inputs[8 * i + j];
    }
    EXPECT_NEAR(sum, 0, 1e-11);  // 400 values of order 1, some of them differences of numbers 10 times as large
    EXPECT_NEAR(squares, 399, 1e-9);
  }
}

TEST(Standardise, RefusesWhatCannotBe) {
  Table table = data::parse_csv("1,0\n2,1\n", "f");
  EXPECT_THROW(data::standardise(table, 1), std::logic_error);
  EXPECT_THROW(data::standardise(table, 3), std::logic_error);
  for (const std::string text :
       {"a,b\n1e300,0\n-1e300,0\n", "a,b\n1e-300,0\n2e-300,0\n", "a,b\n1e308,0\n1.5e308,0\n"}) {
    Table extreme = data::parse_csv(text, "f");
    try {
      data::standardise(extreme, 2);
      ADD_FAILURE() << text;
    } catch (const std::runtime_error& e) {
      EXPECT_EQ(std::string(e.what()), "a: its values are too large or too small to be standardised");
    }
  }
}

TEST(Table, GathersRows) {
  const Table table = data::parse_csv("1,2,0\n3,4,1\n5,6,0\n", "f");
  data::Batch<float> batch;
  batch.labels = {1};  // of an earlier use
  data::gather(table, std::vector<std::uint32_t>{1, 0}, batch);
  EXPECT_EQ(batch.inputs, (std::vector<float>{3, 4, 1, 2}));
  EXPECT_EQ(batch.targets, (std::vector<float>{1, 0}));
  EXPECT_EQ(batch.samples, (std::vector<std::uint32_t>{1, 0}));
  EXPECT_TRUE(batch.labels.empty());
  EXPECT_THROW(data::gather(table, std::vector<std::uint32_t>{3}, batch), std::out_of_range);
}

TEST(Synthetic, IsAFunctionOfTheSeed) {
  const Table table = data::synthetic_table(768, 8, 1);
  EXPECT_EQ(table.size(), 768u);
  EXPECT_EQ(table.features(), 8u);
  EXPECT_EQ(table.names.front(), "feature 1");
  EXPECT_EQ(table.names.back(), "target");
  EXPECT_EQ(table.inputs, data::synthetic_table(768, 8, 1).inputs);
  EXPECT_NE(table.inputs, data::synthetic_table(768, 8, 2).inputs);
  const Table longer = data::synthetic_table(800, 8, 1);
  EXPECT_TRUE(std::equal(table.inputs.begin(), table.inputs.end(), longer.inputs.begin()));
  EXPECT_TRUE(std::equal(table.targets.begin(), table.targets.end(), longer.targets.begin()));
  EXPECT_THROW(data::synthetic_table(1, 0, 1), std::logic_error);
}

// The plane through the features' means that least squares finds among 20,000 rows is close to the hidden one: it is
// right on the 90 % that are not noise, but for the few between the two planes.
TEST(Synthetic, APlaneIsRightAsOftenAsItSays) {
  constexpr std::size_t rows = 20'000, features = 8;
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    Table table = data::synthetic_table(rows, features, seed);
    data::standardise(table, rows);
    // Features are independent: a weight is the feature's covariance with the target.
    Numbers weights(features);
    double yes = 0;
    for (std::size_t i = 0; i < rows; ++i) {
      ASSERT_TRUE(table.targets[i] == 0 || table.targets[i] == 1);
      yes += table.targets[i];
      for (std::size_t j = 0; j < features; ++j)
        weights[j] += table.inputs[i * features + j] * (table.targets[i] - 0.5) / rows;
    }
    std::size_t right = 0;
    for (std::size_t i = 0; i < rows; ++i) {
      const double height = std::inner_product(weights.begin(), weights.end(), &table.inputs[i * features], 0.0);
      right += (height > 0) == (table.targets[i] == 1);
    }
    // Standard deviation of the share of noise: sqrt(0.1 0.9 / 20000) = 0.2 %; the planes' angle costs up to 2 %.
    EXPECT_GT(static_cast<double>(right) / rows, 0.87);
    EXPECT_LT(static_cast<double>(right) / rows, 0.91);
    EXPECT_NEAR(yes / rows, 0.5, 0.02);
  }
}

}  // namespace csv_test
