// csv.hpp: tables of numbers: rows of features, and a target to predict from them.
#pragma once

#include "batch.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace data {

struct Table {
  std::vector<std::string> names;  // of the columns, the target's last; "column 1" ... if the file names none
  std::vector<double> inputs;      // size() x features(), row by row; finite
  std::vector<double> targets;     // size()
  std::size_t features() const { return names.size() - 1; }
  std::size_t size() const { return targets.size(); }
};

// A line for each row, with the same number of fields, two at least: numbers, the last of them the target. Commas
// separate them, and spaces around them are taken off. The first line may name the columns instead: none of its fields
// is a number then. Empty lines are skipped. Throws std::runtime_error, one line that says `name`, line and column, for
// everything else, and for a table without rows.
Table parse_csv(std::string_view text, const std::string& name);

// Throws multinode::UsageError if the file cannot be read.
Table read_csv(const std::filesystem::path& path);

// Shifts and scales each feature so that its first `rows` values, those that are trained on, have mean 0 and an
// unbiased standard deviation, with rows - 1, of 1. Columns whose first values are all the same, which tell nothing,
// become 0 in all rows; returns their numbers. Throws std::logic_error for fewer than 2 rows, or more than there are,
// and std::runtime_error, naming the column, for values whose squares are too large or too small for a double.
std::vector<std::size_t> standardise(Table& table, std::size_t rows);

// inputs and targets. Throws std::out_of_range for a sample that is not there.
void gather(const Table& table, std::span<const std::uint32_t> samples, Batch<float>& batch);

}  // namespace data
