// statistics.hpp: mean, percentiles and outliers of measured times.
#pragma once

#include <multinode/base/median.hpp>

#include <span>
#include <vector>

namespace perf {

using multinode::median;

// Of at least one value; the values may be in any order.
double mean(std::span<const double> values);
double percentile(std::span<const double> values, double percent);  // nearest rank: one of the values

// Indices of the values that are outliers upwards: more than 1.5 times the median and more than 5 times the median
// absolute deviation (as a standard deviation) above it. None of fewer than three values.
std::vector<int> outliers(std::span<const double> values);

}  // namespace perf
