// trapezoid_cuda.hpp: sum_blocks on a GPU, with the same bits.
#pragma once

#include "trapezoid.hpp"

namespace trapezoid {

// Like sum_blocks, on the current GPU. `sums` is host memory.
void sum_blocks_on_gpu(std::int64_t n, Range blocks, std::span<double> sums);

// Evaluations of 4 / (1 + x^2) and independent divisions per second, the best of `rounds`.
struct GpuThroughput {
  double evaluations = 0, divisions = 0;
  double ratio() const { return evaluations / divisions; }
};
GpuThroughput measure_gpu(int rounds);
constexpr double least_gpu_ratio = 0.8;

}  // namespace trapezoid
