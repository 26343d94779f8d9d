// Tables are standardised by the rows that are trained on.
#include "data/table.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

namespace table_test {

using Numbers = std::vector<double>;

// mean 2 and unbiased variance ((1 + 0 + 1) / 2) of the first three rows
TEST(Standardise, ByTheRowsThatAreTrainedOn) {
  data::Table table{2, {1, 10, 2, 30, 3, 20, 6, 40}, {0, 1, 0, 1}};
  EXPECT_THROW(data::standardise(table, 1), std::logic_error);
  EXPECT_THROW(data::standardise(table, 5), std::logic_error);
  data::standardise(table, 3);
  EXPECT_EQ(table.inputs, (Numbers{-1, -1, 0, 1, 1, 0, 4, 2}));
  EXPECT_EQ(table.targets, (Numbers{0, 1, 0, 1}));
}

}  // namespace table_test
