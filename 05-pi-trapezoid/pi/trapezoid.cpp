#include "trapezoid.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <thread>

namespace trapezoid {
namespace {

double f(double x) { return 4.0 / (1.0 + x * x); }

// Like sum_runs, for the last run, which may be shorter.
double sum_short_run(double first, double h, std::int64_t terms) {
  std::array<double, lanes> sum{};
  for (std::int64_t j = 0; j < terms; ++j) sum[static_cast<std::size_t>(j % lanes)] += f((first + double(j)) * h);
  return tree_sum(sum);
}

double sum_block(std::int64_t n, std::int64_t block, Isa isa) {
  const double h = 1.0 / double(n), first = double(1 + block * block_length);
  const std::int64_t terms = std::min(block_length, n - 1 - block * block_length);
  std::array<double, runs_per_block> sums{};
  const auto full = static_cast<std::size_t>(terms / run_length);
  sum_runs(isa, first, h, std::span(sums).first(full));
  if (full < sums.size()) sums[full] = sum_short_run(first + double(full * run_length), h, terms % run_length);
  return tree_sum(sums);
}

bool on_this_cpu(Isa isa) {
#ifdef __x86_64__
  if (isa == Isa::avx2) return __builtin_cpu_supports("avx2");
  if (isa == Isa::avx512) return __builtin_cpu_supports("avx512f");
#endif
  return isa == Isa::baseline;
}

// Levels of a tree with `count` leaves.
int levels(std::int64_t count) {
  return count < 2 ? 0 : static_cast<int>(std::bit_width(static_cast<std::uint64_t>(count - 1)));
}

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

std::string_view name_of(Isa isa) {
  if (isa == Isa::avx2) return "avx2";
  if (isa == Isa::avx512) return "avx512";
#ifdef __x86_64__
  return "sse2";
#else
  return "generic";
#endif
}

std::vector<Isa> available_isas() {
  std::vector<Isa> isas{Isa::baseline, Isa::avx2, Isa::avx512};
  std::erase_if(isas, [](Isa isa) { return !on_this_cpu(isa); });
  return isas;
}

void sum_runs([[maybe_unused]] Isa isa, double first, double h, std::span<double> sums) {
  const int runs = static_cast<int>(sums.size());
#ifdef __x86_64__
  if (isa == Isa::avx512) return sum_runs<8>(first, h, sums.data(), runs);
  if (isa == Isa::avx2) return sum_runs<4>(first, h, sums.data(), runs);
#endif
  return sum_runs<2>(first, h, sums.data(), runs);
}

Range share(std::int64_t count, int part, int parts) {
  const std::int64_t size = count / parts, larger = count % parts;  // the first `larger` parts have one more
  const std::int64_t first = part * size + std::min<std::int64_t>(part, larger);
  return {first, first + size + (part < larger ? 1 : 0)};
}

std::int64_t block_count(std::int64_t n) { return divide_up(n - 1, block_length); }

void sum_blocks(std::int64_t n, Range blocks, std::span<double> sums, Isa isa, int threads) {
  const auto work = [=](int thread) {
    const Range part = share(blocks.size(), thread, threads);
    for (auto b = part.first; b < part.last; ++b)
      sums[static_cast<std::size_t>(b)] = sum_block(n, blocks.first + b, isa);
  };
  std::vector<std::jthread> others;
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(work, thread);
  work(0);
}

double tree_sum(std::span<const double> values) {
  if (values.empty()) return 0;
  if (values.size() == 1) return values[0];
  const std::size_t half = std::bit_ceil(values.size()) / 2;
  return tree_sum(values.first(half)) + tree_sum(values.subspan(half));
}

std::uint64_t hash_of_bits(std::span<const double> values) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const double value : values) hash = (hash ^ std::bit_cast<std::uint64_t>(value)) * 0x100000001b3;
  return hash;
}

double integral(std::int64_t n, std::span<const double> block_sums) {
  constexpr double ends = 3;  // (f(0) + f(1)) / 2 = (4 + 2) / 2
  return (ends + tree_sum(block_sums)) / double(n);
}

// The error of the rule. The Euler-Maclaurin formula (NIST Digital Library of Mathematical Functions, 2.10.1 with m =
// 7), scaled to steps of h = 1/n:
//   T = pi + sum over s = 1 ... 6 of B_2s / (2s)! h^2s (f^(2s-1)(1) - f^(2s-1)(0)) + remainder.
// 4 / (1 + x^2) = 4 Im 1 / (x - i), so f^(k)(x) = (-1)^k 4 k! Im (x - i)^-(k+1). For odd k that is 0 at x = 0, and at
// x = 1, where 1 - i = sqrt(2) e^(-i pi/4), it is -4 k! 2^-(k+1)/2 sin((k + 1) pi/4): f' = -2, f^(5) = 60, f^(9) =
// -4 9!/32, and f^(3) = f^(7) = f^(11) = 0. With B_2 = 1/6, B_6 = 1/42, B_10 = 5/66:
//   T = pi - h^2/6 + h^6/504 - h^10/1056 + remainder,
// |remainder| <= 2 |B_14| / 14! h^14 integral of |f^(14)| (DLMF 24.9.2), which, as |f^(14)(x)| <= 4 14! (1 +
// x^2)^-15/2, B_14 = 7/6 and the integral of (1 + x^2)^-15/2 over all x > 0 is 0.3410, is less than 3.2 h^14.
//
// The error of rounding. Each operation has a relative error of at most u = 2^-53 (Higham, Accuracy and Stability of
// Numerical Algorithms, 2nd ed., section 2.2). A term: h and i h err by u each, so x^2 by 5u with its own rounding;
// 1 + x^2 by 5u/2 (x^2 is at most half of it) and u, the quotient by u more: 4.5u, say 5u. All terms are positive, so
// a sum errs by (u times the number of additions that a term goes through) relative to itself (ibid., section 4.2).
// Then come the ends, the division by n, and in judge() the sum pi - T - ... itself: less than 3u together. With K the
// sum of these numbers the error is at most K u / (1 - K u) T (ibid., lemma 3.1), and T < pi.
Accuracy judge(std::int64_t n, double computed) {
  constexpr double pi = 3.141592653589793116, pi_low = 1.2246467991473532e-16;  // their sum has 106 bits of pi
  constexpr double u = std::numeric_limits<double>::epsilon() / 2;
  const double h = 1.0 / double(n);
  // pi - computed is exact (Sterbenz) for any plausible answer.
  const double error = ((pi - computed) - h * h / 6 + pi_low) + std::pow(h, 6) / 504;

  const std::int64_t inner = n - 1;
  const auto chain = std::min<std::int64_t>(chain_length, divide_up(inner, lanes));  // its first addition is to 0
  const auto runs = std::min<std::int64_t>(runs_per_block, divide_up(inner, run_length));
  const double additions = double(std::max<std::int64_t>(chain - 1, 0) + levels(std::min<std::int64_t>(lanes, inner)) +
                                  levels(runs) + levels(block_count(n)));
  const double k = 5 + additions + 3;
  const double bound = std::pow(h, 10) / 1056 + 3.2 * std::pow(h, 14) + k * u / (1 - k * u) * pi;
  return {error, bound, std::abs(error) <= bound};
}

}  // namespace trapezoid
