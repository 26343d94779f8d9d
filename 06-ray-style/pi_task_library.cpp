// The job library of pi_tasks.
#include "tasks/functions.hpp"

#include <cstdint>

void register_functions(tasks::Functions& functions) {
  // Of the integral of 4 / (1 + x^2) over [0, 1] by the midpoint rule with `intervals` intervals: the terms of `count`
  // of them, from number `first`, without the factor 1 / intervals.
  functions.add("sum_part", [](std::int64_t first, std::int64_t count, std::int64_t intervals) {
    const double width = 1.0 / static_cast<double>(intervals);
    double sum = 0;
    for (std::int64_t i = first; i < first + count; ++i) {
      const double x = (static_cast<double>(i) + 0.5) * width;
      sum += 4.0 / (1.0 + x * x);
    }
    return sum;
  });
}
