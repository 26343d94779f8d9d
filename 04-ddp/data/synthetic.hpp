// synthetic.hpp: tables of random numbers with a known answer.
#pragma once

#include "table.hpp"

#include <cstdint>

namespace data {

// Features are normal, each with its own mean and scale, as in tables of measurements. A row's target is 1 or 0
// by the side of a hidden plane that it lies on, and every tenth answer, at random, is the wrong one: the plane
// predicts 90 of 100 answers, and nothing can predict more. A function of the seed alone; a row
// does not depend on how many there are. Throws std::logic_error without features.
inline constexpr double synthetic_noise = 0.1;
Table synthetic_table(std::size_t rows, std::size_t features, std::uint64_t seed);

}  // namespace data
