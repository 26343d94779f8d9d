// table.hpp: tables of numbers: rows of features, and a target to predict from them.
#pragma once

#include "batch.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace data {

struct Table {
  std::size_t features = 0;     // at least 1
  std::vector<double> inputs;   // size() x features, row by row
  std::vector<double> targets;  // size()
  std::size_t size() const { return targets.size(); }
};

// Shifts and scales each feature so that its first `rows` values, those that are trained on, have mean 0 and an
// unbiased standard deviation, with rows - 1, of 1. They must not be all the same. Throws std::logic_error for fewer
// than 2 rows, or more than there are.
void standardise(Table& table, std::size_t rows);

// inputs and targets. Throws std::out_of_range for a sample that is not there.
void gather(const Table& table, std::span<const std::uint32_t> samples, Batch<float>& batch);

}  // namespace data
