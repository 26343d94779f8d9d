#include "bench.hpp"

#include <multinode/seconds.hpp>

#include <algorithm>
#include <array>
#include <chrono>

namespace trapezoid {

std::vector<Throughput> measure(const std::vector<Isa>& isas, int rounds) {
  constexpr Range blocks{0, 8};  // under a millisecond: most rounds are not interrupted
  constexpr double count = double(blocks.last) * double(block_length);
  std::array<double, blocks.last> sums{};
  const auto rate = [&](const auto& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return count / multinode::seconds_since(start);
  };
  std::vector<Throughput> best;
  for (const Isa isa : isas) best.push_back({isa});
  for (int round = 0; round < rounds; ++round)
    for (auto& [isa, evaluations, divisions] : best) {
      evaluations = std::max(evaluations, rate([&, isa = isa] { sum_blocks(1'000'000, blocks, sums, isa); }));
      divisions = std::max(divisions, rate([&, isa = isa] { divide_runs(isa, int(blocks.last) * runs_per_block); }));
    }
  return best;
}

}  // namespace trapezoid
