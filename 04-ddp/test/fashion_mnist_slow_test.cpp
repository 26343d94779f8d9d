// Three epochs on the real images, as ci/tour runs them.
#include "fashion_mnist_ways.hpp"

#include <iostream>
#include <regex>

namespace {

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

}  // namespace
