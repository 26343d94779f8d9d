// Compares the bits of the sum with the recorded ones. Uses only the sum, so that another compiler can build it.
#include "recorded.hpp"
#include "trapezoid.hpp"

#include <cstdio>
#include <vector>

int main() {
  int wrong = 0;
  for (const auto isa : trapezoid::available_isas())
    for (const auto& [n, answer, hash] : recorded) {
      std::vector<double> sums(static_cast<std::size_t>(trapezoid::block_count(n)));
      trapezoid::sum_blocks(n, {0, trapezoid::block_count(n)}, sums, isa);
      const double computed = trapezoid::integral(n, sums);
      const std::uint64_t computed_hash = trapezoid::hash_of_bits(sums);
      std::printf("%s n = %lld: %a %016llx, recorded %a %016llx\n", name_of(isa).data(), static_cast<long long>(n),
                  computed, static_cast<unsigned long long>(computed_hash), answer,
                  static_cast<unsigned long long>(hash));
      wrong += computed != answer || computed_hash != hash;
    }
  return wrong == 0 ? 0 : 1;
}
