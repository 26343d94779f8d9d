// Verdicts on speeds: what is found, and what is only noise.
#include "statistics.hpp"

#include <test/support/says.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace image_check::statistics_test {

const MetricKey key{"bandwidth", 1 << 20, ""};
Measured measured(std::vector<double> values, const std::string& better = "more") {
  return {"check", "GB/s", better, std::move(values)};
}
Sample sample(double band, double value, int launch) {
  return {.metric = "bandwidth", .band_bytes = band, .better = "more", .value = value, .launch = launch};
}

TEST(Measured, IsTheMedianOfEachLaunch) {
  const auto all = metrics_of({sample(8, 1, 0), sample(8, 3, 0), sample(8, 10, 0), sample(8, 5, 1), sample(64, 7, 0)});
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all.at({"bandwidth", 8, ""}).values, (std::vector<double>{3, 5}));
  EXPECT_EQ(all.at({"bandwidth", 64, ""}).values, (std::vector<double>{7}));
}

// Five sessions of three launches, 1 % apart.
const Sessions quiet{{10, 10.05, 9.95}, {10.1, 10.05, 10.1}, {9.9, 9.95, 9.9}, {10, 10, 10.05}, {9.95, 9.9, 10}};

TEST(Noise, IsThatBetweenSessions) {
  const Noise noise = noise_of(quiet, 1, false);
  const auto logs = [](double value) { return std::log(value); };
  const double mean = (logs(10) + logs(10.1) + logs(9.9) + logs(10) + logs(9.95)) / 5;
  double sum = 0;
  for (const double one : {10.0, 10.1, 9.9, 10.0, 9.95}) sum += std::pow(logs(one) - mean, 2);
  constexpr double student = 4.6041;  // of 4 degrees of freedom at 0.5 %
  EXPECT_NEAR(noise.limit, student * std::sqrt(sum / 4 * (1 + 1.0 / 5)), 1e-5);
  EXPECT_GT(noise.visible, noise.limit);
  EXPECT_GT(noise_of(quiet, 20, false).limit, 1.5 * noise.limit);  // of 20 metrics, each must be surer
  EXPECT_LT(noise_of(quiet, 1, true).limit, noise.limit);          // A and B in turn share the session
}

TEST(Noise, IsThreePercentAtLeastAndUnknownForOneSession) {
  const std::vector<double> same{5, 5, 5};
  EXPECT_DOUBLE_EQ(noise_of({same, same, same}, 10, false).limit, std::log(1.03));
  EXPECT_EQ(noise_of({same}, 10, false).visible, unseen);
  EXPECT_EQ(noise_of({same, same}, 10, false).visible, unseen);
  EXPECT_DOUBLE_EQ(noise_of({same}, 10, true).limit, std::log(1.03));
}

TEST(Noise, IsSaidInWords) {
  EXPECT_EQ(words_of_visible(std::log(1.07), "less"), "cannot see less than 7 %");
  EXPECT_EQ(words_of_visible(50, "less"), "too noisy to see any loss");
  EXPECT_SAYS(words_of_visible(unseen, "more"), "make three sessions of the baseline or more");
}

TEST(Compare, WorseBetterAndSame) {
  const auto verdict = [](double b, const std::string& better = "more") {
    return compare_metric(key, measured({b}, better), quiet, 1).verdict;
  };
  EXPECT_EQ(verdict(10), "same");
  EXPECT_EQ(verdict(9.9), "same");
  EXPECT_EQ(verdict(9), "worse");
  EXPECT_EQ(verdict(10.9), "same");  // not yet 10 %
  EXPECT_EQ(verdict(11.5), "better");
  EXPECT_EQ(verdict(11, "less"), "worse");
  EXPECT_EQ(verdict(8, "less"), "better");
}

TEST(Compare, AMetricThatCannotSeeAThirdIsNoEvidence) {
  const Sessions wild{{1, 3, 9}, {3, 1, 9}, {3, 3, 3}, {9, 9, 1}};
  for (const double b : {100.0, 3.0, 0.1}) {
    const auto comparison = compare_metric(key, measured({b}), wild, 1);
    EXPECT_EQ(comparison.verdict, "no evidence");
    EXPECT_GT(as_share(comparison.visible, "more"), required_loss);
  }
  // A loss that even this metric can see is one. If it does not come again, the metric still says nothing for B.
  auto found = compare_metric(key, measured({0.0001}), wild, 1);
  EXPECT_EQ(found.verdict, "worse");
  confirm(found, {3, 3, 3}, {3, 3, 3});
  EXPECT_EQ(found.verdict, "no evidence");
}

TEST(Confirm, OnlyWhatFreshLaunchesSayAgain) {
  const auto suspect = compare_metric(key, measured({5}), quiet, 1);
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
  EXPECT_EQ(verdict({10, 10, 10}, {10, 10}), "worse");      // a fresh launch of B failed
}

// 1,000 comparisons of 20 metrics: ten sessions are A, and of the eleventh the first launch is B, and three are fresh
// ones. Sessions and launches vary by 1 %, and somebody else's work halves one launch in 20.
TEST(FalseAlarms, AreAtMostFiveInAThousandAndLossesOfTenPercentAreFound) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal(0, 0.01);
  std::bernoulli_distribution disturbed(0.05);
  int alarms = 0, suspects = 0, planted = 0, found = 0;
  for (int comparison = 0; comparison < 1000; ++comparison) {
    bool alarm = false, suspect = false;
    for (int metric = 0; metric < 20; ++metric) {
      Sessions a(11);
      for (auto& session : a)
        for (double own = normal(random); session.size() < 4;)
          session.push_back(10 * std::exp(own + normal(random)) * (disturbed(random) ? 0.5 : 1));
      const auto b = a.back();
      a.pop_back();
      const auto with = [&](double factor) {
        auto result = compare_metric(key, measured({factor * b[0]}), a, 20);
        suspect = suspect || (factor == 1 && result.verdict == "worse");
        if (result.verdict == "worse") confirm(result, {}, {factor * b[1], factor * b[2], factor * b[3]});
        return result;
      };
      alarm = alarm || with(1).verdict == "worse";
      if (const auto slow = with(0.9); as_share(slow.visible, "more") <= 0.1)
        ++planted, found += slow.verdict == "worse";
    }
    alarms += alarm, suspects += suspect;
  }
  EXPECT_LE(alarms, 5);
  EXPECT_GT(suspects, 50);  // so that it is the second look that keeps them rare
  EXPECT_GT(planted, 500);
  EXPECT_GE(found, planted * 95 / 100);  // what a metric claims to see
}

}  // namespace image_check::statistics_test
