// Trainings on the real images: three epochs, as ci/tour runs them, and ten.
#include "fashion_mnist_ways.hpp"

#include <iostream>
#include <regex>

namespace fashion_mnist_slow_test {

class FashionMnistTraining : public ::testing::TestWithParam<Way> {};

TEST_P(FashionMnistTraining, ThreeEpochsReach86Percent) {
  for (const int ranks : {1, 4}) {
    const Ranks::End end = GetParam().run(PATH_fashion_mnist, ranks, {}, 140s);
    EXPECT_EQ(end.status, 0) << end.output;
    std::smatch match;
    ASSERT_TRUE(std::regex_search(end.output, match, std::regex("RIGHT: test accuracy ([0-9.]+) %"))) << end.output;
    EXPECT_GE(std::stod(match[1]), 86);
    std::cout << ranks << " ranks: " << match[0] << "\n";
  }
}

INSTANTIATE_TEST_SUITE_P(By, FashionMnistTraining, ::testing::ValuesIn(ways()),
                         [](const auto& info) { return info.param.name(); });

TEST(FashionMnistLongTraining, TenEpochsReach88Percent) {
  const Ranks::End end = ways().back().run(PATH_fashion_mnist, 2, {"--epochs", "10", "--min-accuracy", "88"}, 280s);
  EXPECT_EQ(end.status, 0) << end.output;
  EXPECT_SAYS(end.output, "RIGHT: test accuracy ");
}

}  // namespace fashion_mnist_slow_test
