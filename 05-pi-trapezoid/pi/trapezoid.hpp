// trapezoid.hpp: pi as the integral of 4 / (1 + x^2) over [0, 1] by the trapezoid rule with n intervals, summed in
// fixed blocks by a fixed tree, so that the answer has the same bits for every number of processes and threads.
#pragma once

#include "sum_runs.hpp"

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace trapezoid {

constexpr std::int64_t largest_n = 1'000'000'000'000;  // its block sums are 122 MB

// The instruction sets that sum_runs.cpp is compiled for.
enum class Isa { baseline, avx2, avx512 };
std::string_view name_of(Isa isa);  // "sse2" on x86-64, "generic" elsewhere; "avx2", "avx512"
std::vector<Isa> available_isas();  // on this CPU, best last
void sum_runs(Isa isa, double first, double h, std::span<double> sums);

// [first, last)
struct Range {
  std::int64_t first, last;
  std::int64_t size() const { return last - first; }
};

// Part number `part` of `parts` of 0 ... count - 1. Parts are contiguous and their sizes differ by at most one; some
// are empty if parts > count.
Range share(std::int64_t count, int part, int parts);

// The n - 1 inner points, 1 ... n - 1, in blocks of block_length; the last may be shorter. n = 1 has none.
std::int64_t block_count(std::int64_t n);

// sums[b] = the sum of f(x_i) over block number blocks.first + b, computed by `threads` threads.
void sum_blocks(std::int64_t n, Range blocks, std::span<double> sums, Isa isa, int threads = 1);

// Adds neighbours, then the sums of neighbours, and so on: the order depends on the number of values only.
double tree_sum(std::span<const double> values);

// A hash (FNV-1a, by words) of the bits of the values. The answer alone is a weak check: rounding can hide a difference
// in a few blocks.
std::uint64_t hash_of_bits(std::span<const double> values);

// The trapezoid rule, from the sums of all blocks.
double integral(std::int64_t n, std::span<const double> block_sums);

// error: the error of `computed` without that of the rule, pi - computed - h^2/6 + h^6/504. bound: the largest value
// that rounding can cause. The derivation is in trapezoid.cpp.
struct Accuracy {
  double error, bound;
  bool right;  // false if computed is NaN
};
Accuracy judge(std::int64_t n, double computed);

}  // namespace trapezoid
