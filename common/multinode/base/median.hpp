// median.hpp: the median.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace multinode {

// For an even number of values the mean of the middle two. Throws std::logic_error if there are none.
inline double median(std::vector<double> values) {
  if (values.empty()) throw std::logic_error("median of no values");
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

}  // namespace multinode
