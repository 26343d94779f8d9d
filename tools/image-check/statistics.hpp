// statistics.hpp: is a metric what it was? Its noise is measured: between sessions, and between launches of a session.
#pragma once

#include "results.hpp"

#include <multinode/base/median.hpp>

#include <compare>
#include <map>
#include <string>
#include <vector>

namespace image_check {

using multinode::median;

// What was measured.
struct MetricKey {
  std::string metric;
  double band_bytes = -1;
  std::string node;
  auto operator<=>(const MetricKey&) const = default;
};
inline MetricKey key_of(const Comparison& of) { return {of.metric, of.band_bytes, of.node}; }
std::string name_of(const MetricKey& key);  // "all_reduce bus bandwidth, mpi, 1 MiB, node0"
struct Measured {
  std::string check, unit, better;
  std::vector<double> values;  // one a launch: the median of that launch's samples
  double other_work = -1;      // the median of all samples
};
std::map<MetricKey, Measured> metrics_of(const std::vector<Sample>& samples);

// A session is one run of image-check: one boot, allocation and time of day. Its launches share that.
using Sessions = std::vector<std::vector<double>>;  // of each, the values of its launches

inline constexpr std::size_t fresh_launches = 3;   // of each side, for a suspect
inline constexpr double false_alarm_rate = 0.005;  // of a comparison with all its metrics
inline constexpr double flagged_gain = 0.10;       // a gain of more than this is unexplained
inline constexpr double required_loss = 0.30;      // a metric that cannot see such a loss is no evidence

// Values of positive quantities are compared as logarithms, so that half as fast is as far away as twice as fast.
struct Noise {
  double limit;    // log(median of B / median of A) beyond this is worse
  double visible;  // a loss of this size, as a logarithm, is found in 95 of 100 comparisons; unseen: none is
};
inline constexpr double unseen = 100;

// The one-sided prediction limit for the median of fresh_launches of B in a new session: Student's t at
// false_alarm_rate / `metrics` (Bonferroni), times the standard deviation of the difference, and 3 % at least. The
// sessions' medians have the noise between sessions; three or more are needed. If B is compared with fresh launches of
// A that were taken in turn (`in_turn`), the noise between sessions cancels, and that of launches alone counts.
Noise noise_of(const Sessions& sessions, std::size_t metrics, bool in_turn);

// Compares `b` with the baseline, without fresh launches: same, worse (a suspect: beyond half of the limit), better, or
// no evidence: the metric cannot see a loss of `required`, and the loss is not larger than what it can see. `metrics`
// is the number of metrics that are compared.
Comparison compare_metric(const MetricKey& key, const Measured& b, const Sessions& a, std::size_t metrics,
                          bool in_turn = false, double required = required_loss);
bool is_evidence(const Comparison& comparison);

// Judges a suspect by fresh launches of A and B, taken in turn; without those of A the baseline stands. It is worse if
// the median of B is beyond the limit and each value of B is beyond half of it, or if B has fewer than fresh_launches
// values: it failed or did not end. Else it was flaky, or there is no evidence.
void confirm(Comparison& comparison, std::vector<double> again_a, std::vector<double> again_b,
             double required = required_loss);

// True if other processes explain a loss (a logarithm): they took the share `b` of the CPU time, and `a` without the
// loss; -1: unknown. The loss grows with the power of the share that they left (measurements.md).
inline constexpr double power_alone = 2, power_of_waiting = 10;  // of programs whose processes wait for each other
bool explained_by_other_work(double loss, double a, double b, double power);
// The same of a loss beyond the limit, which is that of equally busy nodes.
bool explained_by_other_work(const Comparison& comparison);

// The values of A and B that the verdict is about: those of the fresh launches, if there are any.
std::pair<std::vector<double>, std::vector<double>> values_of(const Comparison& comparison);
// By how much B is worse than A, as a share of A: 0.5 is half the bandwidth, or one and a half times the time.
double worse_by(const Comparison& comparison);
// The same against the worst value of A.
double worse_than_all(const Comparison& comparison);
// The same for a logarithm.
double as_share(double logarithm, const std::string& better);
// "cannot see less than 7 %", "too noisy to see any loss"
std::string words_of_visible(double visible, const std::string& better);
// "0.3 s, and was 0.06: 400 % worse; cannot see less than 7 %; measured again in 3 fresh launches"
std::string explain(const Comparison& comparison);

}  // namespace image_check
