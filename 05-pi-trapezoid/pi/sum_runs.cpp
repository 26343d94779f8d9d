// sum_runs.cpp: the inner loop, compiled once for each instruction set (see CMakeLists.txt), always with
// -ffp-contract=off: a fused multiply-add rounds once where a multiply and an add round twice, so the bits would depend
// on whether the CPU has one. Includes no header with inline functions: the linker could choose the AVX-512 copy of
// such a function for the whole program.
#include "sum_runs.hpp"

#ifdef __FAST_MATH__
#error "-ffast-math lets the compiler change the order of the additions, and with it the answer"
#endif

namespace trapezoid {
namespace {
using Vector [[gnu::vector_size(8 * VECTOR_WIDTH)]] = double;
constexpr int parts = lanes / VECTOR_WIDTH;  // vectors that hold the lanes
}  // namespace

template <>
void sum_runs<VECTOR_WIDTH>(double first, double h, double* sums, int runs) {
  for (int r = 0; r < runs; ++r) {
    Vector index[parts] = {}, sum[parts] = {};
    for (int lane = 0; lane < lanes; ++lane)
      index[lane / VECTOR_WIDTH][lane % VECTOR_WIDTH] = first + r * run_length + lane;
    for (int step = 0; step < chain_length; ++step) {
      for (int p = 0; p < parts; ++p) {
        const Vector x = index[p] * h;
        sum[p] += 4.0 / (1.0 + x * x);
        index[p] += lanes;  // exact: the index is a whole number, x is never accumulated
      }
    }
    const auto lane = [&](int l) { return sum[l / VECTOR_WIDTH][l % VECTOR_WIDTH]; };
    sums[r] = ((lane(0) + lane(1)) + (lane(2) + lane(3))) + ((lane(4) + lane(5)) + (lane(6) + lane(7)));
  }
}

}  // namespace trapezoid
