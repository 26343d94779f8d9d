// bits: are they the recorded ones? Needs nothing but the sum, so that another compiler can be asked, too.
#include "recorded.hpp"
#include "trapezoid.hpp"

#include <cstdio>
#include <vector>

int main() {
  int wrong = 0;
  for (const auto isa : trapezoid::available_isas())
    for (const auto& [n, answer] : recorded) {
      std::vector<double> sums(static_cast<std::size_t>(trapezoid::block_count(n)));
      trapezoid::sum_blocks(n, {0, trapezoid::block_count(n)}, sums, isa);
      const double computed = trapezoid::integral(n, sums);
      std::printf("%s n = %lld: %a, recorded %a\n", name_of(isa).data(), static_cast<long long>(n), computed, answer);
      wrong += computed != answer;
    }
  return wrong == 0 ? 0 : 1;
}
