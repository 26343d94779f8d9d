// statistics.hpp: is a metric what it was? Medians, and noise as it was measured; no constants of any machine.
#pragma once

#include "results.hpp"

#include <multinode/median.hpp>

#include <compare>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace image_check {

// What was measured.
struct MetricKey {
  std::string metric;
  double band_bytes = -1;
  std::string node;
  auto operator<=>(const MetricKey&) const = default;
};
std::string name_of(const MetricKey& key);  // "all_reduce bus bandwidth, mpi, 1 MiB, node0"
struct Measured {
  std::string check, unit, better;
  std::vector<double> values;  // one a launch: the median of that launch's samples
};
std::map<MetricKey, Measured> metrics_of(const std::vector<Sample>& samples);

using multinode::median;

// Values of positive quantities are compared as logarithms, so that half as fast is as far as twice as fast, and no
// noise is so wide that nothing can fall below it.
//
// log(median) - limit is where worse begins: limit = max(3 x 1.4826 x median absolute deviation, log 1.03). 1.4826
// makes the deviation that of a normal distribution (Rousseeuw and Croux 1993). Needs three launches or more.
double noise_limit(std::span<const double> values);

inline constexpr std::size_t least_launches = 3;  // of a baseline
inline constexpr std::size_t fresh_launches = 3;  // of each side, for a suspect
inline constexpr double flagged_gain = 0.10;      // a gain of more than this is unexplained

// Compares `b` with the baseline `a`, without fresh launches: same, worse (suspect) or better.
Comparison compare_metric(const MetricKey& key, const Measured& a, const Measured& b);

// Judges a suspect by fresh launches of A and B, taken in turn. It is worse if the median of B is beyond the limit and
// each value of B is beyond half of it, or if B has fewer than fresh_launches values: it failed or did not end. Else it
// was flaky. `again_a` may be empty: then the baseline stands.
void confirm(Comparison& comparison, std::vector<double> again_a, std::vector<double> again_b);

// By how much B is worse than A, as a share of A: 0.5 is half the bandwidth, or twice the time.
double worse_by(const Comparison& comparison);

// How many of `pairs` comparisons of runs with themselves would be called worse: baselines of
// `baseline_launches` runs, one run, and fresh ones of both, all drawn without replacement from `runs` of one image.
struct FalseAlarms {
  int pairs = 0, alarms = 0, suspects = 0;  // pairs with one or more
  std::map<std::string, int> by_metric;     // alarms
};
FalseAlarms false_alarms(const std::vector<Results>& runs, int pairs, int baseline_launches, std::uint64_t seed);

}  // namespace image_check
