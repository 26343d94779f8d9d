// bench.hpp: compares the speed of the inner loop with the limit that the CPU's division unit sets.
#pragma once

#include "trapezoid.hpp"

#include <vector>

namespace trapezoid {

struct Throughput {
  Isa isa;
  double evaluations = 0;  // of 4 / (1 + x^2) per second, by sum_blocks
  double divisions = 0;    // independent divisions per second, in vectors of the same width
  double ratio() const { return evaluations / divisions; }
};
constexpr double least_ratio = 0.85;

// The best of `rounds` for each instruction set. They take turns, so that other load on the machine affects all alike.
std::vector<Throughput> measure(const std::vector<Isa>& isas, int rounds);

}  // namespace trapezoid
