#include "results.hpp"

#include "statistics.hpp"

#include <multinode/base/json.hpp>

#include <fmt/core.h>

#include <array>
#include <cmath>

namespace perf {

namespace {

double microseconds(double seconds) { return seconds * 1e6; }
double gb_per_s(double bytes_per_second) { return bytes_per_second / 1e9; }

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
    Column{"root", "", 6, [](const Result&) { return std::string("-1"); }}};  // none
constexpr std::array speeds = {
    Column{"time", "(us)", 7, [](const Result& r) { return four_digits(microseconds(r.time)); }},
    Column{"algbw", "(GB/s)", 6, [](const Result& r) { return bandwidth(r.algbw); }},
    Column{"busbw", "(GB/s)", 6, [](const Result& r) { return bandwidth(r.busbw); }},
    Column{"#wrong", "", 6, [](const Result& r) { return r.wrong ? std::to_string(*r.wrong) : "n/a"; }}};
constexpr std::array details = {
    Column{"median", "(us)", 7, [](const Result& r) { return four_digits(microseconds(r.median)); }},
    Column{"p99", "(us)", 7, [](const Result& r) { return four_digits(microseconds(r.p99)); }},
    Column{"spread", "(%)", 6, [](const Result& r) { return r.spread ? four_digits(100 * *r.spread) : "n/a"; }}};
struct ColumnGroup {
  std::span<const Column> columns;
  const char* heading;
  std::size_t place = 0;  // whose result: 0 out of place, 1 in place
};
constexpr std::array column_groups = {ColumnGroup{variables, ""}, ColumnGroup{speeds, "out-of-place", 0},
                                      ColumnGroup{speeds, "in-place", 1}, ColumnGroup{details, "out-of-place", 0},
                                      ColumnGroup{details, "in-place", 1}};

std::string trimmed(std::string line) { return line.erase(line.find_last_not_of(' ') + 1); }

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
  if (result.spread) spread = 100 * *result.spread;
  return {{"collective", result.collective},
          {"backend", result.backend},
          {"ranks", result.ranks},
          {"size_bytes", result.size},
          {"count", result.count},
          {"type", result.type},
          {"redop", result.redop},
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

std::vector<std::string> too_slow(std::span<const Result> results, const LeastBusbw& least) {
  const std::string asked = fmt::format("--min-busbw asks for {:g} GB/s from {}: ", gb_per_s(least.bytes_per_second),
                                        size_text(least.from_size));
  std::vector<std::string> lines;
  bool has_busbw = false;
  for (const Result& result : results) {
    if (result.asked_size < least.from_size || !result.busbw) continue;
    has_busbw = true;
    if (*result.busbw >= least.bytes_per_second) continue;
    lines.push_back(fmt::format("{}{} of {} ({}, {}, {}) has {} GB/s", asked, result.collective, size_text(result.size),
                                result.type, result.redop, result.in_place ? "in place" : "out of place",
                                bandwidth(result.busbw)));
  }
  if (!has_busbw) lines.push_back(asked + "nothing was tested, no such size has a bus bandwidth");
  return lines;
}

void print_head(std::ostream& out) {
  std::string headings, names, units;
  for (const ColumnGroup& group : column_groups) {
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
    out << trimmed(line) << '\n';
  }
  out << std::flush;
}

void print_row(std::ostream& out, std::span<const Result> places) {
  std::string line;
  for (const ColumnGroup& group : column_groups)
    for (const Column& column : group.columns)
      line +=
          fmt::format("{:>{}}  ", group.place < places.size() ? column.cell(places[group.place]) : "n/a", column.width);
  out << trimmed(line) << '\n';
  for (const Result& result : places)
    for (const int rank : result.late)
      out << fmt::format("# rank {} is late {}: {} us, where the median of the ranks is {} us\n", rank,
                         result.in_place ? "in place" : "out of place",
                         four_digits(microseconds(result.rank_times.at(static_cast<std::size_t>(rank)))),
                         four_digits(microseconds(median(result.rank_times))));
  out << std::flush;
}

void print_foot(std::ostream& out, const std::vector<Result>& all) {
  std::uint64_t wrong = 0;
  bool checked = !all.empty();
  std::vector<double> busbw;
  for (const Result& result : all) {
    wrong += result.wrong.value_or(0);
    if (!result.wrong) checked = false;
    if (result.busbw) busbw.push_back(*result.busbw);
  }
  out << "# Out of bounds values : "
      << (wrong     ? std::to_string(wrong) + " FAILED"
          : checked ? "0 OK"
                    : "not checked")
      << "\n# Avg bus bandwidth    : " << (busbw.empty() ? "n/a" : bandwidth(mean(busbw))) << std::endl;
}

}  // namespace perf
