#include "csv.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/text.hpp>

#include <boost/algorithm/string.hpp>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <optional>
#include <stdexcept>

namespace data {
namespace {

std::optional<double> finite_number(std::string_view text) {
  const auto value = multinode::number_of<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

}  // namespace

Table parse_csv(std::string_view text, const std::string& name) {
  Table table;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (boost::algorithm::all(line, boost::is_space())) continue;
    const std::string at = name + ": line " + std::to_string(number);
    std::vector<std::string> fields;
    boost::split(fields, line, boost::is_any_of(","));
    for (std::string& field : fields) boost::trim(field);
    if (table.names.empty()) {
      if (fields.size() < 2)
        throw std::runtime_error(at + ": one column only; features and a target, separated by commas, are expected");
      table.names = fields;
      if (std::ranges::none_of(fields, [](const std::string& field) { return finite_number(field).has_value(); }))
        continue;
      for (std::size_t i = 0; i < fields.size(); ++i) table.names[i] = "column " + std::to_string(i + 1);
    }
    if (fields.size() != table.names.size())
      throw std::runtime_error(at + ": " + std::to_string(fields.size()) + " instead of " +
                               std::to_string(table.names.size()) + " columns");
    for (std::size_t i = 0; i < fields.size(); ++i) {
      const std::optional<double> value = finite_number(fields[i]);
      if (!value)
        throw std::runtime_error(
            at + ", column " + std::to_string(i + 1) + ": " +
            (fields[i].empty() ? "empty" : "'" + multinode::printable(fields[i]) + "' is not a finite number"));
      (i + 1 < fields.size() ? table.inputs : table.targets).push_back(*value);
    }
  }
  if (table.size() == 0) throw std::runtime_error(name + ": no rows of numbers in it");
  return table;
}

Table read_csv(const std::filesystem::path& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error) throw multinode::UsageError("cannot read " + path.string() + ": " + error.message());
  std::ifstream file(path, std::ios::binary);
  std::string text(size, '\0');
  if (!file.read(text.data(), static_cast<std::streamsize>(size)))
    throw multinode::UsageError("cannot read " + path.string() + ": " + std::strerror(errno));
  return parse_csv(text, path.string());
}

std::vector<std::size_t> standardise(Table& table, std::size_t rows) {
  if (rows < 2 || rows > table.size()) throw std::logic_error("standardise: no such rows, or fewer than 2");
  const std::size_t features = table.features();
  std::vector<std::size_t> constant;
  for (std::size_t j = 0; j < features; ++j) {
    const auto value = [&](std::size_t row) -> double& { return table.inputs[row * features + j]; };
    double mean = 0, squares = 0;
    bool same = true;
    for (std::size_t i = 0; i < rows; ++i) {
      mean += value(i) / static_cast<double>(rows);
      same = same && value(i) == value(0);
    }
    for (std::size_t i = 0; i < rows; ++i) squares += (value(i) - mean) * (value(i) - mean);
    const double deviation = std::sqrt(squares / static_cast<double>(rows - 1));
    if (same)
      constant.push_back(j);
    else if (!std::isnormal(deviation))
      throw std::runtime_error(table.names[j] + ": its values are too large or too small to be standardised");
    for (std::size_t i = 0; i < table.size(); ++i) value(i) = same ? 0 : (value(i) - mean) / deviation;
  }
  return constant;
}

void gather(const Table& table, std::span<const std::uint32_t> samples, Batch<float>& batch) {
  const std::size_t features = table.features();
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
