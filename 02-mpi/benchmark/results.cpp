#include "results.hpp"

#include "options.hpp"
#include "statistics.hpp"

#include <multinode/check.hpp>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>
#include <iomanip>
#include <limits>
#include <sstream>
#include <utility>

namespace perf {

namespace {

double microseconds(double seconds) { return seconds * 1e6; }
double gb_per_s(double bytes_per_second) { return bytes_per_second / 1e9; }

// In percent; of one rank there is none.
std::optional<double> spread_of(const Result& result) {
  if (result.rank_times.size() < 2) return std::nullopt;
  return 100 * result.spread;
}

struct Column {
  const char* name;
  const char* unit;
  int width;
};
constexpr std::array variables = {Column{"size", "(B)", 12}, Column{"count", "(elements)", 12}, Column{"type", "", 8},
                                  Column{"redop", "", 6}, Column{"root", "", 6}};
constexpr std::array speeds = {Column{"time", "(us)", 7}, Column{"algbw", "(GB/s)", 6}, Column{"busbw", "(GB/s)", 6},
                               Column{"#wrong", "", 6}};
constexpr std::array details = {Column{"median", "(us)", 7}, Column{"p99", "(us)", 7}, Column{"spread", "(%)", 6}};
constexpr Column timestamp{"timestamp", "(UTC)", 20};

// All columns in the table's order: f(columns, "out-of-place"), where the text is what stands above them.
template <class Function>
void for_each_group(bool timestamps, Function&& f) {
  f(std::span<const Column>(variables), "");
  for (const auto& columns : {std::span<const Column>(speeds), std::span<const Column>(details)})
    for (const char* where : {"out-of-place", "in-place"}) f(columns, where);
  if (timestamps) f(std::span<const Column>(&timestamp, 1), "");
}

std::string optional_digits(std::optional<double> value) { return value ? four_digits(*value) : "n/a"; }

std::vector<std::string> cells_of(std::span<const Column> columns, const std::optional<Result>& result) {
  if (!result) return std::vector<std::string>(columns.size(), "n/a");
  if (columns.data() == speeds.data())
    return {four_digits(microseconds(result->time)), result->algbw ? four_digits(gb_per_s(*result->algbw)) : "n/a",
            result->busbw ? four_digits(gb_per_s(*result->busbw)) : "n/a",
            result->wrong ? std::to_string(*result->wrong) : "n/a"};
  return {four_digits(microseconds(result->median)), four_digits(microseconds(result->p99)),
          optional_digits(spread_of(*result))};
}

std::string now() {
  char text[32];
  const std::time_t time = std::time(nullptr);
  std::tm utc{};
  std::strftime(text, sizeof text, "%FT%TZ", gmtime_r(&time, &utc));
  return text;
}

std::string csv_cell(const nlohmann::json& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return value.dump();
  std::string text;
  for (const auto& element : value) text += (text.empty() ? "" : " ") + element.dump();
  return text;
}

constexpr std::array csv_columns = {
    "collective",     "backend",        "ranks",          "size_bytes", "count",      "type",
    "redop",          "root",           "in_place",       "cycle",      "iterations", "calls_per_sample",
    "time_us",        "algbw_gb_per_s", "busbw_gb_per_s", "wrong",      "median_us",  "p99_us",
    "spread_percent", "late_ranks",     "rank_times_us"};

}  // namespace

std::string four_digits(double value) {
  const double size = std::abs(value);
  return fmt::format("{:.{}f}", value, size < 1 ? 4 : size < 10 ? 3 : size < 100 ? 2 : size < 1000 ? 1 : 0);
}

std::string size_text(std::size_t bytes) {
  constexpr std::array units = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto size = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; size >= 1024; ++unit) size /= 1024;
  return fmt::format("{:g} {}", size, units[unit]);
}

nlohmann::json to_json(const Result& result) {
  nlohmann::json rank_times = nlohmann::json::array();
  for (const double time : result.rank_times) rank_times.push_back(microseconds(time));
  nlohmann::json algbw, busbw, wrong, spread;  // null
  if (result.algbw) algbw = gb_per_s(*result.algbw);
  if (result.busbw) busbw = gb_per_s(*result.busbw);
  if (result.wrong) wrong = *result.wrong;
  if (const auto percent = spread_of(result)) spread = *percent;
  return {{"collective", result.collective},
          {"backend", result.backend},
          {"ranks", result.ranks},
          {"size_bytes", result.size},
          {"count", result.count},
          {"type", result.type},
          {"redop", result.redop},
          {"root", result.root},
          {"in_place", result.in_place},
          {"cycle", result.cycle},
          {"iterations", result.iterations},
          {"calls_per_sample", result.calls_per_sample},
          {"time_us", microseconds(result.time)},
          {"median_us", microseconds(result.median)},
          {"p99_us", microseconds(result.p99)},
          {"algbw_gb_per_s", algbw},
          {"busbw_gb_per_s", busbw},
          {"wrong", wrong},
          {"rank_times_us", rank_times},
          {"spread_percent", spread},
          {"late_ranks", result.late}};
}

Csv::Csv(const std::string& path) : path_(path) {
  if (path_.empty()) return;
  file_.open(path_, std::ios::trunc);
  if (!file_) throw multinode::UsageError("--csv: cannot write " + path_ + ": " + std::strerror(errno));
  const char* separator = "";
  for (const char* column : csv_columns) file_ << std::exchange(separator, ",") << column;
  file_ << '\n';
}

void Csv::write(const Result& result) {
  if (path_.empty()) return;
  const nlohmann::json object = to_json(result);
  const char* separator = "";
  for (const char* column : csv_columns) file_ << std::exchange(separator, ",") << csv_cell(object.at(column));
  file_ << '\n' << std::flush;
  if (!file_) throw std::runtime_error("cannot write " + path_ + ": " + std::strerror(errno));
}

std::vector<std::string> too_slow(std::span<const Result> results, std::span<const LeastBusbw> bands) {
  std::vector<std::string> lines;
  for (const LeastBusbw& band : bands) {
    std::size_t end = std::numeric_limits<std::size_t>::max();
    for (const LeastBusbw& other : bands)
      if (other.from_size > band.from_size) end = std::min(end, other.from_size);
    std::ostringstream asked;
    asked << "--min-busbw asks for " << gb_per_s(band.bytes_per_second) << " GB/s from " << size_text(band.from_size);
    if (end != std::numeric_limits<std::size_t>::max()) asked << " up to " << size_text(end);
    bool measured = false, has_busbw = false;
    for (const Result& result : results) {
      if (result.asked_size < band.from_size || result.asked_size >= end) continue;
      measured = true;
      if (!result.busbw) continue;
      has_busbw = true;
      if (*result.busbw >= band.bytes_per_second) continue;
      lines.push_back(asked.str() + ": " + result.collective + " of " + size_text(result.size) + " (" + result.type +
                      ", " + result.redop + (result.in_place ? ", in place" : ", out of place") + ") has " +
                      four_digits(gb_per_s(*result.busbw)) + " GB/s");
    }
    if (!has_busbw)
      lines.push_back(asked.str() + ": nothing was tested, " +
                      (measured ? "it has no bus bandwidth" : "no such size was measured"));
  }
  return lines;
}

void ResultTable::head() {
  std::ostringstream above, names, units;
  for_each_group(timestamps_, [&](std::span<const Column> columns, const std::string& where) {
    int width = -2;
    for (const Column& column : columns) {
      width += column.width + 2;
      names << std::setw(column.width) << column.name << "  ";
      units << std::setw(column.width) << column.unit << "  ";
    }
    const int right = (width - static_cast<int>(where.size())) / 2;
    above << std::setw(width - right) << where << std::string(static_cast<std::size_t>(right) + 2, ' ');
  });
  for (std::string line : {above.str(), names.str(), units.str()}) {
    line.front() = '#';
    line.erase(line.find_last_not_of(' ') + 1);
    out_ << line << '\n';
  }
  out_ << std::flush;
}

void ResultTable::row(const Result& out_of_place, const std::optional<Result>& in_place) {
  std::ostringstream line;
  for_each_group(timestamps_, [&](std::span<const Column> columns, const std::string& where) {
    std::vector<std::string> cells;
    if (columns.data() == variables.data())
      cells = {std::to_string(out_of_place.size), std::to_string(out_of_place.count), out_of_place.type,
               out_of_place.redop, std::to_string(out_of_place.root)};
    else if (columns.data() == &timestamp)
      cells = {now()};
    else
      cells = cells_of(columns, where == "in-place" ? in_place : out_of_place);
    for (std::size_t i = 0; i < cells.size(); ++i) line << std::setw(columns[i].width) << cells[i] << "  ";
  });
  std::string text = line.str();
  text.erase(text.find_last_not_of(' ') + 1);
  out_ << text << '\n';
  const auto name_late = [&](const Result& result) {
    for (const int rank : result.late)
      out_ << "# rank " << rank << " is late" << (result.in_place ? " in place: " : " out of place: ")
           << four_digits(microseconds(result.rank_times.at(static_cast<std::size_t>(rank))))
           << " us, where the median of the ranks is " << four_digits(microseconds(median(result.rank_times)))
           << " us\n";
  };
  name_late(out_of_place);
  if (in_place) name_late(*in_place);
  out_ << std::flush;
}

void ResultTable::foot(const std::vector<Result>& all) {
  std::uint64_t wrong = 0;
  bool checked = !all.empty();
  std::vector<double> busbw;
  for (const Result& result : all) {
    wrong += result.wrong.value_or(0);
    if (!result.wrong) checked = false;
    if (result.busbw) busbw.push_back(gb_per_s(*result.busbw));
  }
  out_ << "# Out of bounds values : "
       << (wrong     ? std::to_string(wrong) + " FAILED"
           : checked ? "0 OK"
                     : "not checked")
       << "\n# Avg bus bandwidth    : " << (busbw.empty() ? "n/a" : four_digits(mean(busbw))) << std::endl;
}

}  // namespace perf
