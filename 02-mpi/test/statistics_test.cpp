#include "benchmark/statistics.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

namespace statistics_test {

using namespace perf;
using Values = std::vector<double>;

TEST(Statistics, PercentileIsTheNearestRank) {
  const Values values{15, 50, 20, 40, 35};  // sorted 15 20 35 40 50
  EXPECT_DOUBLE_EQ(percentile(values, 0), 15);
  EXPECT_DOUBLE_EQ(percentile(values, 5), 15);
  EXPECT_DOUBLE_EQ(percentile(values, 20), 15);  // rank 1 exactly
  EXPECT_DOUBLE_EQ(percentile(values, 20.1), 20);
  EXPECT_DOUBLE_EQ(percentile(values, 50), 35);
  EXPECT_DOUBLE_EQ(percentile(values, 99), 50);
  EXPECT_DOUBLE_EQ(percentile(values, 100), 50);
  EXPECT_DOUBLE_EQ(percentile(Values{2}, 99), 2);

  Values numbers(101);
  std::iota(numbers.begin(), numbers.end(), 1);
  EXPECT_DOUBLE_EQ(percentile(numbers, 99), 100);
  numbers.pop_back();
  EXPECT_DOUBLE_EQ(percentile(numbers, 99), 99);
}

TEST(Statistics, OutliersWantBothLimits) {
  // Median 10, absolute deviations 1 1 0 0 1, median 1: the second limit is 10 + 7.413.
  EXPECT_EQ(outliers(Values{9, 11, 10, 10, 17.5}), (std::vector<int>{4}));
  EXPECT_EQ(outliers(Values{9, 11, 10, 10, 17.3}), std::vector<int>{});
  // No deviation: the factor decides.
  EXPECT_EQ(outliers(Values{15.1, 10, 10, 10}), (std::vector<int>{0}));
  EXPECT_EQ(outliers(Values{14.9, 10, 10, 10}), std::vector<int>{});
  // Upwards only.
  EXPECT_EQ(outliers(Values{0.1, 10, 10, 10}), std::vector<int>{});
  EXPECT_EQ(outliers(Values{30, 10, 10, 10, 10, 25}), (std::vector<int>{0, 5}));
  // Two values have no outlier.
  EXPECT_EQ(outliers(Values{}), std::vector<int>{});
  EXPECT_EQ(outliers(Values{1, 100}), std::vector<int>{});
  EXPECT_EQ(outliers(Values{1, 1, 100}), (std::vector<int>{2}));
}

struct Noise {
  int ranks;
  double deviation;  // of the logarithm: 0.05 is about 5 %
};

Values times(const Noise& noise, std::mt19937& random) {
  std::lognormal_distribution<double> around(std::log(50e-6), noise.deviation);
  Values values(static_cast<std::size_t>(noise.ranks));
  for (double& value : values) value = around(random);
  return values;
}

// Deviations as between the ranks of an all-reduce in shared memory: 2 to 10 %.
TEST(Statistics, NoiseGivesNoFalseAlarm) {
  std::mt19937 random(1);
  for (const Noise noise : {Noise{3, 0.02}, {4, 0.05}, {4, 0.1}, {8, 0.1}, {64, 0.1}}) {
    int alarms = 0;
    for (int i = 0; i < 5000; ++i) alarms += !outliers(times(noise, random)).empty();
    EXPECT_LE(alarms, 50) << noise.ranks << " ranks, deviation " << noise.deviation;
  }
}

TEST(Statistics, APlantedOutlierIsFoundInNoise) {
  std::mt19937 random(2);
  for (const Noise noise : {Noise{3, 0.02}, {4, 0.05}, {8, 0.1}, {64, 0.1}}) {
    int found = 0;
    for (int i = 0; i < 1000; ++i) {
      Values values = times(noise, random);
      const int planted = i % noise.ranks;
      values[static_cast<std::size_t>(planted)] *= 3;
      found += outliers(values) == std::vector<int>{planted};
    }
    EXPECT_GE(found, 990) << noise.ranks << " ranks, deviation " << noise.deviation;
  }
}

}  // namespace statistics_test
