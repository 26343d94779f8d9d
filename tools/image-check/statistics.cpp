#include "statistics.hpp"

#include <fmt/core.h>
#include <boost/math/distributions/students_t.hpp>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <span>

namespace image_check {
namespace {

std::vector<double> logarithms(std::span<const double> values) {
  std::vector<double> logs;
  for (const double value : values) logs.push_back(std::log(std::max(value, 1e-300)));
  return logs;
}

// Of log(median of b / median of a), so that more than 0 is worse.
double step(const std::string& better, std::span<const double> a, std::span<const double> b) {
  const double change = median(logarithms(b)) - median(logarithms(a));
  return better == "less" ? change : -change;
}

bool sees_too_little(const Comparison& comparison, double required) {
  return as_share(comparison.visible, comparison.better) > required;
}

double squares(const std::vector<double>& values, double about) {
  double sum = 0;
  for (const double value : values) sum += (value - about) * (value - about);
  return sum;
}

}  // namespace

std::string name_of(const MetricKey& key) {
  return key.metric + (key.band_bytes < 0 ? "" : ", " + band_name(key.band_bytes)) +
         (key.node.empty() ? "" : ", " + key.node);
}

std::map<MetricKey, Measured> metrics_of(const std::vector<Sample>& samples) {
  std::map<MetricKey, std::map<int, std::vector<double>>> launches;
  std::map<MetricKey, std::vector<double>> other_work;
  std::map<MetricKey, Measured> series;
  for (const auto& sample : samples) {
    const MetricKey key{sample.metric, sample.band_bytes, sample.node};
    launches[key][sample.launch].push_back(sample.value);
    other_work[key].push_back(sample.other_work);
    series[key] = {sample.check, sample.unit, sample.better, {}};
  }
  for (auto& [key, of] : launches)
    for (auto& [launch, values] : of) series[key].values.push_back(median(std::move(values)));
  for (auto& [key, shares] : other_work) series[key].other_work = median(std::move(shares));
  return series;
}

Noise noise_of(const Sessions& sessions, std::size_t metrics, bool in_turn) {
  // The median of n values of a normal distribution has pi/2 of their mean's variance.
  constexpr double of_a_median = std::numbers::pi / 2, fresh = static_cast<double>(fresh_launches);
  std::vector<double> middles;
  double within = 0, freedom_within = 0, launches = 0;
  for (const auto& session : sessions) {
    const auto logs = logarithms(session);
    middles.push_back(median(logs));
    within += squares(logs, std::accumulate(logs.begin(), logs.end(), 0.0) / static_cast<double>(logs.size()));
    freedom_within += static_cast<double>(logs.size() - 1);
    launches += static_cast<double>(logs.size());
  }
  within = freedom_within > 0 ? within / freedom_within : 0;
  const double count = static_cast<double>(sessions.size());
  double variance = of_a_median * within * (2 / fresh), freedom = freedom_within, of_one = within;
  if (!in_turn) {
    const double mean = std::accumulate(middles.begin(), middles.end(), 0.0) / count;
    const double between = squares(middles, mean) / std::max(count - 1, 1.0);
    variance = between * (1 + 1 / count) + of_a_median * within * std::max(0.0, 1 / fresh - count / launches);
    freedom = count - 1;
    of_one += between;
  }
  if (freedom < 2) return {unseen, unseen};
  namespace math = boost::math;
  const math::students_t student(freedom);
  const auto times = [&](double rate) { return math::quantile(math::complement(student, rate)); };
  const double deviation = std::sqrt(variance);
  const double limit = std::max(times(false_alarm_rate / static_cast<double>(metrics)) * deviation, std::log(1.03));
  // The median is beyond the limit, and the first launch and each fresh one beyond half of it.
  const double missed = 0.025;
  return {limit,
          std::max(limit + times(missed) * deviation, limit / 2 + times(missed / (1 + fresh)) * std::sqrt(of_one))};
}

bool is_evidence(const Comparison& comparison) { return comparison.verdict != "no evidence"; }

Comparison compare_metric(const MetricKey& key, const Measured& b, const Sessions& a, std::size_t metrics, bool in_turn,
                          double required) {
  const Noise noise = noise_of(a, metrics, in_turn);
  std::vector<double> values;
  if (a.size() == 1) values = a.front();
  if (a.size() > 1)
    for (const auto& session : a) values.push_back(median(session));
  Comparison found{key.metric, key.band_bytes, b.unit, b.better,      key.node, std::move(values), b.values, {},
                   {},         noise.limit,    "same", noise.visible, b.check};
  const double worse = step(b.better, found.a, b.values);
  if (sees_too_little(found, required) && worse <= noise.visible)
    found.verdict = "no evidence";
  else if (worse > noise.limit / 2)
    found.verdict = "worse";
  else if (-worse > std::max(noise.limit, std::log1p(flagged_gain)))
    found.verdict = "better";
  return found;
}

void confirm(Comparison& comparison, std::vector<double> again_a, std::vector<double> again_b, double required) {
  comparison.again_a = std::move(again_a);
  comparison.again_b = std::move(again_b);
  const auto& reference = comparison.again_a.empty() ? comparison.a : comparison.again_a;
  if (comparison.again_b.size() < fresh_launches) {
    comparison.verdict = "worse";
    return;
  }
  bool worse = step(comparison.better, reference, comparison.again_b) > comparison.limit;
  for (const double one : comparison.again_b)
    worse = worse && step(comparison.better, reference, std::span(&one, 1)) > comparison.limit / 2;
  comparison.verdict = worse ? "worse" : sees_too_little(comparison, required) ? "no evidence" : "flaky";
}

bool explained_by_other_work(double loss, double a, double b, double power) {
  constexpr double nearly_all = 0.99;
  return a >= 0 && b >= 0 && loss <= power * std::log((1 - std::min(a, nearly_all)) / (1 - std::min(b, nearly_all)));
}

bool explained_by_other_work(const Comparison& comparison) {
  const auto [a, b] = values_of(comparison);
  const bool all_ran = b.size() >= fresh_launches || comparison.again_b.empty();
  return all_ran && comparison.other_b > comparison.other_a &&
         explained_by_other_work(step(comparison.better, a, b) - comparison.limit, comparison.other_a,
                                 comparison.other_b, power_alone);
}

double as_share(double logarithm, const std::string& better) {
  return better == "less" ? std::expm1(logarithm) : -std::expm1(-logarithm);
}

std::pair<std::vector<double>, std::vector<double>> values_of(const Comparison& comparison) {
  if (comparison.again_b.empty()) return {comparison.a, comparison.b};
  return {comparison.again_a.empty() ? comparison.a : comparison.again_a, comparison.again_b};
}

double worse_by(const Comparison& comparison) {
  const auto [a, b] = values_of(comparison);
  return as_share(step(comparison.better, a, b), comparison.better);
}

double worse_than_all(const Comparison& comparison) {
  const auto [a, b] = values_of(comparison);
  const double worst = comparison.better == "less" ? *std::ranges::max_element(a) : *std::ranges::min_element(a);
  return as_share(step(comparison.better, std::span(&worst, 1), b), comparison.better);
}

std::string words_of_visible(double visible, const std::string& better) {
  if (visible >= unseen) return "cannot see any loss: make three sessions of the baseline or more, or give --again-a";
  if (visible > std::log(10)) return "too noisy to see any loss";  // not even a tenth of the speed
  return fmt::format("cannot see less than {:.0f} %", 100 * as_share(visible, better));
}

std::string explain(const Comparison& comparison) {
  const auto [a, b] = values_of(comparison);
  const double worse = worse_by(comparison);
  std::string text = fmt::format("{:.4g} {}, and was {:.4g}: {:.0f} % {}; ", median(b), comparison.unit, median(a),
                                 100 * std::abs(worse), worse > 0 ? "worse" : "better") +
                     words_of_visible(comparison.visible, comparison.better);
  const auto again = comparison.again_b.size();
  if (again >= fresh_launches)
    text += "; measured again in " + std::to_string(again) + " fresh launches";
  else if (comparison.verdict == "worse")
    text += "; and only " + std::to_string(again) + " of " + std::to_string(fresh_launches) +
            " fresh launches of B could measure it again: the others failed or did not end";
  return text;
}

}  // namespace image_check
