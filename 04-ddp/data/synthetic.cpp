#include "synthetic.hpp"

#include "../ddp/philox.hpp"

#include <cmath>
#include <numbers>
#include <stdexcept>

namespace data {
namespace {

enum Drawn : std::uint32_t { feature, wrong_answer, weight, place, scale };

double uniform(std::uint32_t word) { return std::ldexp(word + 0.5, -32); }  // inside (0, 1)

// Box and Muller, "A note on the generation of random normal deviates", 1958.
double normal(const ddp::PhiloxWords& random) {
  return std::sqrt(-2 * std::log(uniform(random[0]))) * std::cos(2 * std::numbers::pi * uniform(random[1]));
}

}  // namespace

Table synthetic_table(std::size_t rows, std::size_t features, std::uint64_t seed) {
  if (features == 0) throw std::logic_error("synthetic_table: no features");
  const auto draw = [seed](std::uint32_t what, std::size_t row, std::size_t column) {
    return ddp::philox(
        {static_cast<std::uint32_t>(row), ddp::stream_synthetic + what, static_cast<std::uint32_t>(column), 0}, seed);
  };
  Table table{features, {}, {}};
  for (std::size_t i = 0; i < rows; ++i) {
    double height = 0;  // above the plane
    for (std::size_t j = 0; j < features; ++j) {
      const double standard = normal(draw(feature, i, j));
      height += normal(draw(weight, 0, j)) * standard;
      const double magnitude = std::exp2(8 * uniform(draw(scale, 0, j)[0]) - 4);  // 1/16 ... 16
      table.inputs.push_back(magnitude * (standard + 4 * normal(draw(place, 0, j))));
    }
    const bool wrong = uniform(draw(wrong_answer, i, 0)[0]) < synthetic_noise;
    table.targets.push_back((height > 0) != wrong);
  }
  return table;
}

}  // namespace data
