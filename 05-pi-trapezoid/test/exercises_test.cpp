// Answers to the README's exercises.
#include "trapezoid.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <random>
#include <vector>

namespace exercises_test {

using namespace trapezoid;

double compute(std::int64_t n) {
  std::vector<double> sums(static_cast<std::size_t>(block_count(n)));
  sum_blocks(n, {0, block_count(n)}, sums, available_isas().back());
  return integral(n, sums);
}

// Two trapezoid sums make one of Simpson's: its error begins with h^6 here, not with h^4 as usual.
TEST(Exercise, SimpsonFromTwoTrapezoidSums) {
  for (const std::int64_t n : {10, 20, 40}) {
    const double simpson = (4 * compute(2 * n) - compute(n)) / 3, h = 1.0 / double(n);
    EXPECT_NEAR((std::numbers::pi - simpson) / std::pow(h, 6), 5.0 / 8064, 2e-5) << "n = " << n;
  }
}

// From which n on more intervals do not help: h^2/6 has fallen below the bound for rounding.
TEST(Exercise, WhereRoundingTakesOver) {
  const auto rule = [](std::int64_t n) { return 1 / (6.0 * double(n) * double(n)); };
  std::int64_t low = 1'000, high = 1'000'000'000;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (rule(middle) > judge(middle, 3).bound ? low : high) = middle;
  }
  EXPECT_GT(low, 2'000'000);
  EXPECT_LT(low, 2'500'000);
}

// Terms from 2 to 4 are whole multiples of 2^-51: as integers their sum is exact, so that no order can matter.
TEST(Exercise, AnExactSumNeedsNoTree) {
  const std::int64_t n = 1'000'000;
  std::vector<double> terms;
  for (std::int64_t i = 1; i < n; ++i) {
    const double x = double(i) * (1.0 / double(n));
    terms.push_back(4.0 / (1.0 + x * x));
  }
  const auto exact = [&] {
    __extension__ unsigned __int128 sum = 0;
    for (const double term : terms) sum += static_cast<std::uint64_t>(term * 0x1p51);
    return (3 + double(sum) * 0x1p-51) / double(n);
  };
  const auto naive = [&] {
    double sum = 3;
    for (const double term : terms) sum += term;
    return sum / double(n);
  };
  const double exact_before = exact(), naive_before = naive();
  std::mt19937 random(1);
  std::shuffle(terms.begin(), terms.end(), random);
  EXPECT_EQ(std::bit_cast<std::uint64_t>(exact()), std::bit_cast<std::uint64_t>(exact_before));
  EXPECT_NE(std::bit_cast<std::uint64_t>(naive()), std::bit_cast<std::uint64_t>(naive_before));
  constexpr double u = 0x1p-53;
  EXPECT_LT(std::abs(judge(n, exact_before).error), 8 * u * std::numbers::pi);  // no additions left in the bound
}

}  // namespace exercises_test
