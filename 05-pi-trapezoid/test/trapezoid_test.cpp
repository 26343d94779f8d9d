// The sum: its error, its bits, and the faults that the bound has to catch.
#include "trapezoid.hpp"
#include "recorded.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

namespace trapezoid_test {

using namespace trapezoid;

// The block sums that `parts` processes with `threads` threads each compute together.
std::vector<double> block_sums(std::int64_t n, Isa isa, int parts = 1, int threads = 1) {
  std::vector<double> sums(static_cast<std::size_t>(block_count(n)));
  for (int part = 0; part < parts; ++part) {
    const Range blocks = share(block_count(n), part, parts);
    sum_blocks(n, blocks, std::span(sums).subspan(std::size_t(blocks.first), std::size_t(blocks.size())), isa, threads);
  }
  return sums;
}

double compute(std::int64_t n) { return integral(n, block_sums(n, available_isas().back())); }

long double f(long double x) { return 4 / (1 + x * x); }

// The rule in its plainest form, in 64 bits of mantissa.
long double plain(std::int64_t n) {
  long double sum = 3;
  for (std::int64_t i = 1; i < n; ++i) sum += f(static_cast<long double>(i) / static_cast<long double>(n));
  return sum / static_cast<long double>(n);
}

void expect_right(std::int64_t n) {
  const Accuracy v = judge(n, compute(n));
  EXPECT_TRUE(v.right) << "n = " << n << ": error " << v.error << ", bound " << v.bound;
}

// The check must detect the fault with a margin: an error of more than ten times the bound.
void expect_wrong(std::int64_t n, double answer, const std::string& fault) {
  const Accuracy v = judge(n, answer);
  EXPECT_FALSE(v.right) << fault << ", n = " << n;
  EXPECT_GT(std::abs(v.error), 10 * v.bound) << fault << ", n = " << n;
}

TEST(Answer, IsPiWithinTheBoundWhereverThePointsEnd) {
  for (std::int64_t n = 1; n <= 1100; ++n) expect_right(n);
  for (std::int64_t around : {block_length, 2 * block_length, 3 * block_length, std::int64_t{runs_per_block} * 100})
    for (std::int64_t n = around - 9; n <= around + 9; ++n) expect_right(n);
  for (std::int64_t n : {10'000, 100'000, 1'000'000, 4'999'999, 5'000'011, 7'654'321, 10'000'000}) expect_right(n);
}

// With so few intervals, rounding is small enough to show the next term of the formula: h^10/1056.
TEST(Bound, TheFormulaIsRight) {
  if (std::numeric_limits<long double>::digits < 64) GTEST_SKIP() << "long double is too short here";
  for (std::int64_t n = 8; n <= 16; ++n) {
    const long double h = 1.0L / static_cast<long double>(n);
    const long double left = std::numbers::pi_v<long double> - plain(n) - h * h / 6 + std::pow(h, 6.0L) / 504;
    EXPECT_NEAR(double(left / std::pow(h, 10.0L)), 1.0 / 1056, 2e-6) << "n = " << n;
  }
}

TEST(Bound, HoldsForTheSumBesideThePlainOne) {
  for (std::int64_t n : {1, 2, 10, 1000, 65'537, 1'000'000}) {
    const double bound = judge(n, 3.14).bound - std::pow(1.0 / double(n), 10) / 1056;
    EXPECT_LE(std::abs(double(static_cast<long double>(compute(n)) - plain(n))), bound) << "n = " << n;
  }
}

// From about two million intervals on, more intervals do not help: h^2/6 is below the bound for rounding. The README
// gives this number as the answer to an exercise.
TEST(Bound, SeesTheErrorOfTheRuleUpToTwoMillionIntervals) {
  const auto rule = [](std::int64_t n) { return 1 / (6.0 * double(n) * double(n)); };
  for (const std::int64_t n : {10, 1000, 100'000, 2'000'000}) EXPECT_GT(rule(n), judge(n, 3).bound);
  EXPECT_LT(rule(2'500'000), judge(2'500'000, 3).bound);
  EXPECT_LT(judge(1'000'000'000, 3).bound, 5e-14);
}

TEST(Bound, RefusesNaNAndInfinity) {
  EXPECT_FALSE(judge(1000, std::nan("")).right);
  EXPECT_FALSE(judge(1000, INFINITY).right);
  EXPECT_FALSE(judge(1000, 0).right);
}

TEST(Bits, AreTheRecordedOnes) {
  for (const Isa isa : available_isas())
    for (const auto& [n, answer, hash] : recorded) {
      const auto sums = block_sums(n, isa);
      EXPECT_EQ(integral(n, sums), answer) << name_of(isa) << ", n = " << n;
      EXPECT_EQ(hash_of_bits(sums), hash) << name_of(isa) << ", n = " << n;
    }
}

TEST(Bits, DoNotDependOnInstructionsProcessesOrThreads) {
  for (const std::int64_t n : {1LL, 9LL, 777LL, 65'536LL, 65'537LL, 1'234'567LL}) {
    const auto expected = block_sums(n, Isa::baseline);
    for (const Isa isa : available_isas())
      for (const int parts : {1, 2, 3, 4, 5, 7, 8, 40})
        for (const int threads : {1, 2, 3, 4})
          EXPECT_EQ(block_sums(n, isa, parts, threads), expected)
              << name_of(isa) << ", n = " << n << ", parts " << parts << ", threads " << threads;
  }
}

#ifdef __x86_64__
// Proves that the tests above can fail: sum_runs.cpp, compiled to fuse its multiplies and adds, has other blocks. The
// answer alone would not show the difference, so the tests compare the hash of the blocks as well.
TEST(Bits, DependOnContraction) {
  if (!__builtin_cpu_supports("fma")) GTEST_SKIP() << "this CPU has no fused multiply-add";
  constexpr std::int64_t n = 100'000'000;
  const auto sums = block_sums(n, available_isas().back());
  auto fused = sums;
  std::vector<double> runs(runs_per_block);
  for (std::size_t b = 0; b + 1 < sums.size(); ++b) {  // all but the last, which is short
    sum_runs<1>(1 + double(b) * double(block_length), 1.0 / double(n), runs.data(), runs_per_block);
    fused[b] = tree_sum(runs);
  }
  int different = 0;
  for (std::size_t b = 0; b < sums.size(); ++b) different += fused[b] != sums[b];
  EXPECT_EQ(different, 98);  // of 1526
  EXPECT_NE(hash_of_bits(fused), hash_of_bits(sums));
  EXPECT_EQ(integral(n, fused), integral(n, sums));
}
#endif

// The original adds f(a) + (a^2 + b^2) / 2 at the ends of each process's share, in place of (f(a) + f(b)) / 2.
double with_the_originals_end_terms(std::int64_t n, int processes) {
  double wrong = n > 10'000'000 ? std::numbers::pi : compute(n);
  for (int p = 0; p < processes; ++p) {
    const double a = double(p) / processes, b = double(p + 1) / processes;
    wrong += (double(f(a)) + (a * a + b * b) / 2 - (double(f(a)) + double(f(b))) / 2) / double(n);
  }
  return wrong;
}

TEST(Faults, EndTermsOfTheOriginal) {
  for (const std::int64_t n : {1000, 100'000, 10'000'000, 1'000'000'000})
    for (const int processes : {1, 4, 40}) expect_wrong(n, with_the_originals_end_terms(n, processes), "end terms");
  // the README's figures
  EXPECT_NEAR(with_the_originals_end_terms(100'000, 4) - std::numbers::pi, 2.4e-5, 0.05e-5);
  EXPECT_NEAR(with_the_originals_end_terms(1'000'000'000, 40) - std::numbers::pi, 1.4e-8, 0.05e-8);
}

TEST(Faults, IntervalsDroppedWhereTheProcessesDoNotDivideThem) {
  for (const std::int64_t n : {1000, 100'000, 10'000'000, 1'000'000'000})
    for (const int processes : {3, 7, 11}) {
      const double h = 1.0 / double(n);
      double wrong = n > 10'000'000 ? std::numbers::pi : compute(n);
      for (std::int64_t i = n - n % processes; i < n; ++i)
        wrong -= h * double(f(double(i) * h) + f(double(i + 1) * h)) / 2;
      expect_wrong(n, wrong, "dropped intervals");
    }
}

TEST(Faults, OneBlockOrOneTermLostOrTwice) {
  const std::int64_t n = 1'000'000;
  const auto sums = block_sums(n, Isa::baseline);
  for (std::size_t b = 0; b < sums.size(); ++b) {
    auto damaged = sums;
    damaged[b] = 0;
    expect_wrong(n, integral(n, damaged), "lost block");
    damaged[b] = 2 * sums[b];
    expect_wrong(n, integral(n, damaged), "block twice");
    damaged[b] = sums[b] - 2;  // the smallest term
    expect_wrong(n, integral(n, damaged), "lost term");
  }
  expect_wrong(1'000'000'000, std::numbers::pi - 2e-9, "lost term");
}

TEST(Faults, FloatInsteadOfDouble) { expect_wrong(1'000'000, double(float(std::numbers::pi)), "float"); }

TEST(Share, GivesEveryBlockToOnePart) {
  for (const std::int64_t count : {0, 1, 2, 7, 40, 15'259})
    for (int parts = 1; parts <= 64; ++parts) {
      std::int64_t next = 0;
      for (int part = 0; part < parts; ++part) {
        const Range range = share(count, part, parts);
        EXPECT_EQ(range.first, next);
        EXPECT_GE(range.size(), count / parts);
        EXPECT_LE(range.size(), count / parts + 1);
        next = range.last;
      }
      EXPECT_EQ(next, count);
    }
}

}  // namespace trapezoid_test
