// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/check.hpp>
#include <multinode/base/files.hpp>
#include <multinode/base/json.hpp>
#include <multinode/base/options.hpp>
#include <multinode/base/text.hpp>
#include <multinode/world/libraries.hpp>
#include <multinode/world/report.hpp>

#include <algorithm>
#include <ctime>
#include <system_error>

namespace multinode {

namespace {

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_of("0123456789") != std::string::npos &&
         text.find_first_not_of("0123456789+-.eE%xX ") == std::string::npos;
}

std::size_t width_of(const std::string& text) {  // characters, not bytes, of UTF-8
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace

Table::Table(std::vector<std::string> head) { rows_.push_back(std::move(head)); }

void Table::add(std::vector<std::string> row) {
  if (row.size() != rows_.front().size())
    throw std::logic_error("Table::add: the row has another number of cells than the head");
  for (std::string& cell : row) cell = one_line(cell);
  rows_.push_back(std::move(row));
}

void Table::print(std::ostream& out) const {
  const std::size_t columns = rows_.front().size();
  std::vector<std::size_t> widths(columns);
  std::vector<bool> right(columns, rows_.size() > 1);  // columns with only numbers below the head
  for (std::size_t r = 0; r < rows_.size(); ++r)
    for (std::size_t c = 0; c < columns; ++c) {
      widths[c] = std::max(widths[c], width_of(rows_[r][c]));
      if (r > 0 && !is_number(rows_[r][c])) right[c] = false;
    }
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t c = 0; c < columns; ++c) {
      const std::string pad(widths[c] - width_of(row[c]), ' ');
      line += (c ? "  " : "") + (right[c] ? pad + row[c] : row[c] + pad);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out << line << '\n';
  }
  out << std::flush;
}

JsonLines::JsonLines(const std::string& path, bool append) : path_(path) {
  if (path_.empty()) return;
  try {
    file_ = open_in_place(path_, append);
  } catch (const std::system_error& why) {
    throw UsageError(std::string("--json: ") + why.what());
  }
}

void JsonLines::write(const nlohmann::json& object) {
  if (path_.empty()) return;
  nlohmann::json line = object;
  line["version"] = version();
  write_all(file_.get(), json_text(line) + '\n', path_);
}

nlohmann::json fingerprint(const World& world) {
  std::vector<std::string> hosts;
  for (int rank = 0; rank < world.size(); ++rank)
    if (hosts.empty() || hosts.back() != world.host(rank)) hosts.push_back(world.host(rank));
  char time[32];
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  std::strftime(time, sizeof time, "%FT%TZ", gmtime_r(&now, &utc));
  nlohmann::json versions_json = nlohmann::json::object();
  for (const auto& [name, version] : versions()) versions_json[name] = version;
  nlohmann::json print = {{"program", world.program()},
                          {"hosts", hosts},
                          {"launcher", world.launch().launcher},
                          {"world_size", world.size()},
                          {"nodes", world.node_count()},
                          {"versions", versions_json},
                          {"time", time}};
  if (const char* text = libraries().emulated_gpus()) print["gpu"] = text;
  return {{"fingerprint", print}};
}

}  // namespace multinode
