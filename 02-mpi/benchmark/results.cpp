#include "results.hpp"

#include "statistics.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/files.hpp>
#include <multinode/base/json.hpp>
#include <multinode/base/text.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <ctime>
#include <limits>
#include <utility>

namespace perf {

namespace {

double microseconds(double seconds) { return seconds * 1e6; }
double gb_per_s(double bytes_per_second) { return bytes_per_second / 1e9; }

std::string now() {
  char text[32];
  const std::time_t time = std::time(nullptr);
  std::tm utc{};
  std::strftime(text, sizeof text, "%FT%TZ", gmtime_r(&time, &utc));
  return text;
}

std::string bandwidth(std::optional<double> bytes_per_second) {
  return bytes_per_second ? four_digits(gb_per_s(*bytes_per_second)) : "n/a";
}

struct Column {
  const char *name, *unit;
  int width;
  std::string (*cell)(const Result&);
};
constexpr std::array variables = {
    Column{"size", "(B)", 12, [](const Result& r) { return std::to_string(r.size); }},
    Column{"count", "(elements)", 12, [](const Result& r) { return std::to_string(r.count); }},
    Column{"type", "", 8, [](const Result& r) { return r.type; }},
    Column{"redop", "", 6, [](const Result& r) { return r.redop; }},
    Column{"root", "", 6, [](const Result& r) { return std::to_string(r.root); }}};
constexpr std::array speeds = {
    Column{"time", "(us)", 7, [](const Result& r) { return four_digits(microseconds(r.time)); }},
    Column{"algbw", "(GB/s)", 6, [](const Result& r) { return bandwidth(r.algbw); }},
    Column{"busbw", "(GB/s)", 6, [](const Result& r) { return bandwidth(r.busbw); }},
    Column{"#wrong", "", 6, [](const Result& r) { return r.wrong ? std::to_string(*r.wrong) : "n/a"; }}};
constexpr std::array details = {
    Column{"median", "(us)", 7, [](const Result& r) { return four_digits(microseconds(r.median)); }},
    Column{"p99", "(us)", 7, [](const Result& r) { return four_digits(microseconds(r.p99)); }},
    Column{"spread", "(%)", 6, [](const Result& r) { return r.spread ? four_digits(100 * *r.spread) : "n/a"; }}};
constexpr std::array clock_time = {Column{"timestamp", "(UTC)", 20, [](const Result&) { return now(); }}};

struct ColumnGroup {
  std::span<const Column> columns;
  const char* heading;
  std::size_t place = 0;  // whose result: 0 out of place, 1 in place
};
std::vector<ColumnGroup> column_groups(bool timestamps) {
  std::vector<ColumnGroup> groups = {{variables, ""},
                                     {speeds, "out-of-place", 0},
                                     {speeds, "in-place", 1},
                                     {details, "out-of-place", 0},
                                     {details, "in-place", 1}};
  if (timestamps) groups.push_back({clock_time, ""});
  return groups;
}

std::string trimmed(std::string line) { return line.erase(line.find_last_not_of(' ') + 1); }

std::vector<std::pair<const char*, nlohmann::json>> fields_of(const Result& result) {
  nlohmann::json rank_times = nlohmann::json::array();
  for (const double time : result.rank_times) rank_times.push_back(microseconds(time));
  nlohmann::json algbw, busbw, wrong, spread;  // null
  if (result.algbw) algbw = gb_per_s(*result.algbw);
  if (result.busbw) busbw = gb_per_s(*result.busbw);
  if (result.wrong) wrong = *result.wrong;
  if (result.spread) spread = 100 * *result.spread;
  return {{"collective", result.collective},
          {"backend", result.backend},
          {"ranks", result.ranks},
          {"groups", result.groups},
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
          {"algbw_gb_per_s", algbw},
          {"busbw_gb_per_s", busbw},
          {"wrong", wrong},
          {"median_us", microseconds(result.median)},
          {"p99_us", microseconds(result.p99)},
          {"spread_percent", spread},
          {"late_ranks", result.late},
          {"rank_times_us", rank_times}};
}

// The names or the values of all fields that have one value. None of them can have a comma or a quote.
std::string csv_line(const Result& result, bool names) {
  std::vector<std::string> cells;
  for (const auto& [name, value] : fields_of(result))
    if (!value.is_array())
      cells.push_back(names               ? name
                      : value.is_null()   ? ""
                      : value.is_string() ? value.get<std::string>()
                                          : multinode::json_text(value));
  return multinode::join(cells, ",") + '\n';
}

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
  nlohmann::json object;
  for (auto& [name, value] : fields_of(result)) object[name] = std::move(value);
  return object;
}

CsvLines::CsvLines(const std::string& path) : path_(path) {
  if (path_.empty()) return;
  try {
    file_ = multinode::open_in_place(path_, false);
  } catch (const std::system_error& why) {
    throw multinode::UsageError(std::string("--csv: ") + why.what());
  }
  multinode::write_all(file_.get(), csv_line(Result(), true), path_);
}

void CsvLines::write(const Result& result) {
  if (!path_.empty()) multinode::write_all(file_.get(), csv_line(result, false), path_);
}

std::vector<std::string> too_slow(std::span<const Result> results, std::span<const LeastBusbw> bands) {
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < bands.size(); ++i) {
    const auto [least, begin] = bands[i];
    std::string asked = fmt::format("--min-busbw asks for {:g} GB/s from {}", gb_per_s(least), size_text(begin));
    std::size_t end = std::numeric_limits<std::size_t>::max();
    if (i + 1 < bands.size()) {
      end = bands[i + 1].from_size;
      asked += " up to " + size_text(end);
    }
    bool measured = false, has_busbw = false;
    for (const Result& result : results) {
      if (result.asked_size < begin || result.asked_size >= end) continue;
      measured = true;
      if (!result.busbw) continue;
      has_busbw = true;
      if (*result.busbw >= least) continue;
      lines.push_back(fmt::format("{}: {} of {} ({}, {}, {}) has {} GB/s", asked, result.collective,
                                  size_text(result.size), result.type, result.redop,
                                  result.in_place ? "in place" : "out of place", bandwidth(result.busbw)));
    }
    if (!has_busbw)
      lines.push_back(asked + ": nothing was tested, " +
                      (measured ? "it has no bus bandwidth" : "no such size was measured"));
  }
  return lines;
}

void ResultTable::head() {
  std::string headings, names, units;
  for (const ColumnGroup& group : column_groups(timestamps_)) {
    int width = 0;
    for (const Column& column : group.columns) {
      width += column.width + 2;
      names += fmt::format("{:>{}}  ", column.name, column.width);
      units += fmt::format("{:>{}}  ", column.unit, column.width);
    }
    headings += fmt::format("{:^{}} ", group.heading, width - 1);
  }
  for (std::string line : {headings, names, units}) {
    line.front() = '#';
    out_ << trimmed(line) << '\n';
  }
  out_ << std::flush;
}

void ResultTable::row(std::span<const Result> places) {
  std::string line;
  for (const ColumnGroup& group : column_groups(timestamps_))
    for (const Column& column : group.columns)
      line +=
          fmt::format("{:>{}}  ", group.place < places.size() ? column.cell(places[group.place]) : "n/a", column.width);
  out_ << trimmed(line) << '\n';
  for (const Result& result : places)
    for (const int rank : result.late)
      out_ << fmt::format("# rank {} is late {}: {} us, where the median of the ranks is {} us\n", rank,
                          result.in_place ? "in place" : "out of place",
                          four_digits(microseconds(result.rank_times.at(static_cast<std::size_t>(rank)))),
                          four_digits(microseconds(median(result.rank_times))));
  out_ << std::flush;
}

void ResultTable::foot(const std::vector<Result>& all) {
  std::uint64_t wrong = 0;
  bool checked = !all.empty();
  std::vector<double> busbw;
  for (const Result& result : all) {
    wrong += result.wrong.value_or(0);
    if (!result.wrong) checked = false;
    if (result.busbw) busbw.push_back(*result.busbw);
  }
  out_ << "# Out of bounds values : "
       << (wrong     ? std::to_string(wrong) + " FAILED"
           : checked ? "0 OK"
                     : "not checked")
       << "\n# Avg bus bandwidth    : " << (busbw.empty() ? "n/a" : bandwidth(mean(busbw))) << std::endl;
}

}  // namespace perf
