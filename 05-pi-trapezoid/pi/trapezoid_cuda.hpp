// trapezoid_cuda.hpp: sum_blocks on a GPU, with the same bits.
#pragma once

#include "trapezoid.hpp"

namespace trapezoid {

// Like sum_blocks, on the current GPU. `sums` is host memory.
void sum_blocks_on_gpu(std::int64_t n, Range blocks, std::span<double> sums);

Throughput measure_gpu(int rounds);  // the best of `rounds`

}  // namespace trapezoid
