// bench.hpp: how fast the inner loop is, beside what the CPU's division unit allows.
#pragma once

#include "trapezoid.hpp"

#include <vector>

namespace trapezoid {

struct Throughput {
  Isa isa;
  double evaluations = 0;  // of 4 / (1 + x^2), a second, as sum_blocks makes them
  double divisions = 0;    // independent divisions in vectors of the same width, a second
  double ratio() const { return evaluations / divisions; }
};
constexpr double least_ratio = 0.85;

// The best of `rounds` for each instruction set, all of them in turns: what else runs here disturbs each alike.
std::vector<Throughput> measure(const std::vector<Isa>& isas, int rounds);

}  // namespace trapezoid
