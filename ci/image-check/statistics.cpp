#include "statistics.hpp"

#include <multinode/options.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

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

}  // namespace

std::string name_of(const MetricKey& key) {
  return key.metric + (key.band_bytes < 0 ? "" : ", " + band_name(key.band_bytes)) +
         (key.node.empty() ? "" : ", " + key.node);
}

std::map<MetricKey, Measured> metrics_of(const std::vector<Sample>& samples) {
  std::map<MetricKey, std::map<int, std::vector<double>>> launches;
  std::map<MetricKey, Measured> series;
  for (const auto& sample : samples) {
    const MetricKey key{sample.metric, sample.band_bytes, sample.node};
    launches[key][sample.launch].push_back(sample.value);
    series[key] = {sample.check, sample.unit, sample.better, {}};
  }
  for (auto& [key, of] : launches)
    for (auto& [launch, values] : of) series[key].values.push_back(median(std::move(values)));
  return series;
}

double noise_limit(std::span<const double> values) {
  // Not Boost's median_absolute_deviation: in Debian 12's 1.74 it gives back an element, not its deviation.
  auto deviations = logarithms(values);
  const double middle = median(deviations);
  for (double& one : deviations) one = std::abs(one - middle);
  return std::max(3 * 1.4826 * median(std::move(deviations)), std::log(1.03));
}

Comparison compare_metric(const MetricKey& key, const Measured& a, const Measured& b) {
  Comparison found{key.metric, key.band_bytes, a.unit, a.better, key.node, a.values, b.values, {}, {}, 0, "same"};
  if (a.values.size() < least_launches)
    throw multinode::UsageError("the baseline has " + std::to_string(a.values.size()) + " launches of " + key.metric +
                                ": its noise is unknown; make one with image-check baseline");
  found.limit = noise_limit(a.values);
  const double worse = step(a.better, a.values, b.values);
  if (worse > found.limit) found.verdict = "worse";
  if (-worse > std::max(found.limit, std::log1p(flagged_gain))) found.verdict = "better";
  return found;
}

void confirm(Comparison& comparison, std::vector<double> again_a, std::vector<double> again_b) {
  comparison.again_a = std::move(again_a);
  comparison.again_b = std::move(again_b);
  auto all_of_a = comparison.a;
  all_of_a.insert(all_of_a.end(), comparison.again_a.begin(), comparison.again_a.end());
  comparison.limit = std::max(comparison.limit, noise_limit(all_of_a));  // the fresh ones tell of noise, too
  const auto& reference = comparison.again_a.empty() ? comparison.a : comparison.again_a;
  if (comparison.again_b.size() < fresh_launches) {
    comparison.verdict = "worse";
    return;
  }
  bool worse = step(comparison.better, reference, comparison.again_b) > comparison.limit;
  for (const double one : comparison.again_b)
    for (const auto& of_a : {comparison.a, reference})
      worse = worse && step(comparison.better, of_a, std::span(&one, 1)) > comparison.limit / 2;
  comparison.verdict = worse ? "worse" : "flaky";
}

double worse_by(const Comparison& comparison) {
  auto a = comparison.a, b = comparison.b;
  if (!comparison.again_b.empty()) {
    b = comparison.again_b;
    if (!comparison.again_a.empty()) a = comparison.again_a;
  }
  const double ratio = median(b) / median(a);
  return comparison.better == "less" ? ratio - 1 : 1 - ratio;
}

FalseAlarms false_alarms(const std::vector<Results>& runs, int pairs, int baseline_launches, std::uint64_t seed) {
  const auto needed = static_cast<std::size_t>(baseline_launches) + 1 + 2 * fresh_launches;
  if (runs.size() < needed)
    throw multinode::UsageError("noise: " + std::to_string(needed) + " runs or more are needed, not " +
                                std::to_string(runs.size()));
  std::vector<std::map<MetricKey, Measured>> series;
  for (const auto& run : runs) series.push_back(metrics_of(run.samples));
  std::mt19937_64 random(seed);
  std::vector<std::size_t> order(runs.size());
  std::iota(order.begin(), order.end(), 0);

  FalseAlarms found;
  for (found.pairs = 0; found.pairs < pairs; ++found.pairs) {
    std::shuffle(order.begin(), order.end(), random);
    bool alarm = false, suspect = false;
    for (const auto& [key, first] : series[order[0]]) {
      auto next = order.begin();
      const auto take = [&, &key = key](std::size_t count) {
        std::vector<double> values;
        for (; count > 0; --count, ++next)
          if (const auto of = series[*next].find(key); of != series[*next].end())
            values.push_back(median(of->second.values));
        return values;
      };
      Measured a = first, b = first;
      a.values = take(static_cast<std::size_t>(baseline_launches));
      b.values = take(1);
      if (b.values.empty()) continue;
      auto comparison = compare_metric(key, a, b);
      if (comparison.verdict == "worse") {
        suspect = true;
        auto again_a = take(fresh_launches), again_b = take(fresh_launches);
        confirm(comparison, std::move(again_a), std::move(again_b));
      }
      if (comparison.verdict == "worse") {
        alarm = true;
        ++found.by_metric[name_of(key)];
      }
    }
    found.alarms += alarm;
    found.suspects += suspect;
  }
  return found;
}

}  // namespace image_check
