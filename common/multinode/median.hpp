// median.hpp: the middle of some values.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace multinode {

// The mean of the two in the middle, where their number is even. Throws std::logic_error if there is none.
inline double median(std::vector<double> values) {
  if (values.empty()) throw std::logic_error("median of nothing");
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

}  // namespace multinode
