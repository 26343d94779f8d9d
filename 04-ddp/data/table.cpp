#include "table.hpp"

#include <cmath>
#include <stdexcept>

namespace data {

void standardise(Table& table, std::size_t rows) {
  if (rows < 2 || rows > table.size()) throw std::logic_error("standardise: no such rows, or fewer than 2");
  for (std::size_t j = 0; j < table.features; ++j) {
    const auto value = [&](std::size_t row) -> double& { return table.inputs[row * table.features + j]; };
    double mean = 0, squares = 0;
    for (std::size_t i = 0; i < rows; ++i) mean += value(i) / static_cast<double>(rows);
    for (std::size_t i = 0; i < rows; ++i) squares += (value(i) - mean) * (value(i) - mean);
    const double deviation = std::sqrt(squares / static_cast<double>(rows - 1));
    for (std::size_t i = 0; i < table.size(); ++i) value(i) = (value(i) - mean) / deviation;
  }
}

void gather(const Table& table, std::span<const std::uint32_t> samples, Batch<float>& batch) {
  const std::size_t features = table.features;
  batch.inputs.clear();
  batch.targets.clear();
  batch.labels.clear();
  batch.samples.assign(samples.begin(), samples.end());
  for (const std::uint32_t sample : samples) {
    batch.targets.push_back(static_cast<float>(table.targets.at(sample)));
    for (std::size_t j = 0; j < features; ++j)
      batch.inputs.push_back(static_cast<float>(table.inputs[sample * features + j]));
  }
}

}  // namespace data
