// sum_runs.hpp: the shape of the sum, and its inner loop. The shape is part of the answer: it does not depend on the
// number of processes, threads or nodes, nor on the width of a vector register.
#pragma once

#include <cstdint>

namespace trapezoid {

constexpr int lanes = 8;          // partial sums side by side: term j of a run goes to lane j % 8
constexpr int chain_length = 64;  // terms that a lane adds one after the other
constexpr int run_length = lanes * chain_length;
constexpr int runs_per_block = 128;
constexpr std::int64_t block_length = std::int64_t{run_length} * runs_per_block;  // 65,536 terms

// sums[r] = the sum of 4 / (1 + (i h)^2) over i = first + r * run_length ... + run_length - 1, for r = 0 ... runs - 1.
// sum_runs.cpp is compiled once for each width, the number of doubles in a vector: 2 SSE2 (or NEON), 4 AVX2, 8 AVX-512.
template <int width>
void sum_runs(double first, double h, double* sums, int runs);

}  // namespace trapezoid
