#include "statistics.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

namespace perf {

double mean(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double percentile(std::span<const double> values, double percent) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const double rank = std::ceil(percent * static_cast<double>(sorted.size()) / 100);  // from 1
  return sorted[static_cast<std::size_t>(std::clamp(rank, 1.0, static_cast<double>(sorted.size()))) - 1];
}

std::vector<int> outliers(std::span<const double> values) {
  if (values.size() < 3) return {};
  const double middle = median({values.begin(), values.end()});
  std::vector<double> deviations;
  for (const double value : values) deviations.push_back(std::abs(value - middle));
  // Of normally distributed values the median absolute deviation is 1 / 1.4826 of the standard deviation.
  const double limit = std::max(1.5 * middle, middle + 5 * 1.4826 * median(deviations));
  std::vector<int> found;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (values[i] > limit) found.push_back(static_cast<int>(i));
  return found;
}

}  // namespace perf
