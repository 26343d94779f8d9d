// Verdicts on speeds: what is found, and what is only noise.
#include "statistics.hpp"

#include <multinode/options.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace image_check::statistics_test {

const MetricKey key{"bandwidth", 1 << 20, ""};
Measured measured(std::vector<double> values, const std::string& better = "more") {
  return {"check", "GB/s", better, std::move(values)};
}
Sample sample(double band, double value, int launch) {
  Sample sample;
  sample.metric = "bandwidth";
  sample.band_bytes = band;
  sample.better = "more";
  sample.value = value;
  sample.launch = launch;
  return sample;
}

TEST(Measured, IsTheMedianOfEachLaunch) {
  const auto all = metrics_of({sample(8, 1, 0), sample(8, 3, 0), sample(8, 10, 0), sample(8, 5, 1), sample(64, 7, 0)});
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all.at({"bandwidth", 8, ""}).values, (std::vector<double>{3, 5}));
  EXPECT_EQ(all.at({"bandwidth", 64, ""}).values, (std::vector<double>{7}));
}

TEST(NoiseLimit, IsThreeDeviationsOrThreePercent) {
  EXPECT_DOUBLE_EQ(noise_limit(std::vector<double>{5, 5, 5}), std::log(1.03));
  // Deviations of the logarithms from that of 4: log 2, 0, log 2.
  EXPECT_DOUBLE_EQ(noise_limit(std::vector<double>{2, 4, 8}), 3 * 1.4826 * std::log(2));
}

TEST(Compare, WorseBetterAndSame) {
  const auto a = measured({10, 10.1, 9.9, 10, 10});
  EXPECT_EQ(compare_metric(key, a, measured({10})).verdict, "same");
  EXPECT_EQ(compare_metric(key, a, measured({9.8})).verdict, "same");
  EXPECT_EQ(compare_metric(key, a, measured({9.5})).verdict, "worse");
  EXPECT_EQ(compare_metric(key, a, measured({10.9})).verdict, "same");  // not yet 10 %
  EXPECT_EQ(compare_metric(key, a, measured({11.5})).verdict, "better");
  const auto seconds = measured({10, 10.1, 9.9, 10, 10}, "less");
  EXPECT_EQ(compare_metric(key, seconds, measured({10.6}, "less")).verdict, "worse");
  EXPECT_EQ(compare_metric(key, seconds, measured({8}, "less")).verdict, "better");
}

TEST(Compare, NoNoiseIsWideEnoughToHideEverything) {
  const auto wild = measured({1, 3, 9, 3, 1, 9, 3});
  EXPECT_EQ(compare_metric(key, wild, measured({1})).verdict, "same");
  EXPECT_EQ(compare_metric(key, wild, measured({0.01})).verdict, "worse");
}

TEST(Compare, NeedsABaseline) {
  EXPECT_THROW(compare_metric(key, measured({1, 1}), measured({1})), multinode::UsageError);
}

TEST(Confirm, OnlyWhatFreshLaunchesSayAgain) {
  const auto suspect = compare_metric(key, measured({10, 10.1, 9.9}), measured({5}));
  ASSERT_EQ(suspect.verdict, "worse");
  const auto verdict = [&](std::vector<double> a, std::vector<double> b) {
    auto comparison = suspect;
    confirm(comparison, std::move(a), std::move(b));
    return comparison.verdict;
  };
  EXPECT_EQ(verdict({10, 10, 10}, {5, 5.1, 4.9}), "worse");
  EXPECT_EQ(verdict({}, {5, 5.1, 4.9}), "worse");
  EXPECT_EQ(verdict({10, 10, 10}, {10, 9.9, 10}), "flaky");
  EXPECT_EQ(verdict({10, 10, 10}, {5, 5, 10.2}), "flaky");  // one of them was as fast
  EXPECT_EQ(verdict({5, 5, 5}, {5, 5, 4.9}), "flaky");      // A became slow, too: the machine did
}

TEST(Confirm, ASuspectThatCannotBeMeasuredAgainIsAFailure) {
  auto suspect = compare_metric(key, measured({10, 10.1, 9.9}), measured({5}));
  for (const auto& again_b : {std::vector<double>{}, {10}, {10, 10}}) {
    auto comparison = suspect;
    confirm(comparison, {10, 10, 10}, again_b);
    EXPECT_EQ(comparison.verdict, "worse") << again_b.size() << " fresh values";
  }
}

std::vector<Results> runs(int count, double noise, std::mt19937_64& random) {
  std::vector<Results> all(static_cast<std::size_t>(count));
  std::normal_distribution<double> normal(0, noise);
  std::bernoulli_distribution disturbed(0.05);  // by somebody else's work: half as fast
  for (auto& run : all)
    for (int band = 0; band < 40; ++band)
      run.samples.push_back(sample(8 << band, 10 * std::exp(normal(random)) * (disturbed(random) ? 0.5 : 1), 0));
  return all;
}

TEST(FalseAlarms, AreRareAmongRunsOfOneImage) {
  std::mt19937_64 random(7);
  const auto found = false_alarms(runs(40, 0.05, random), 1000, 10, 1);
  EXPECT_EQ(found.pairs, 1000);
  EXPECT_GT(found.suspects, 500);  // so that it is the second look that keeps them rare
  EXPECT_LE(found.alarms, 10);
  EXPECT_THROW(false_alarms(runs(16, 0.05, random), 10, 10, 1), multinode::UsageError);
}

TEST(FalseAlarms, AreCountedWhereRunsAreOfTwoKinds) {
  std::mt19937_64 random(7);
  auto mixed = runs(40, 0.01, random);
  for (std::size_t i = 0; i < 20; ++i)
    for (auto& one : mixed[i].samples) one.value /= 3;
  EXPECT_GT(false_alarms(mixed, 1000, 10, 1).alarms, 10);
}

}  // namespace image_check::statistics_test
