#include "statistics.hpp"

#include <fmt/core.h>

#include <cmath>
#include <ctime>

namespace image_check {
namespace {

std::string label_value(const std::string& text) {
  std::string label = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') label += '\\';
    label += letter == '\n' ? std::string("\\n") : std::string(1, letter);
  }
  return label + "\"";
}

}  // namespace

std::string prometheus_text(const Results& results) {
  std::string text;
  const auto metric = [&](const char* name, const char* help) {
    text += fmt::format("# HELP {} {}\n# TYPE {} gauge\n", name, help, name);
  };
  metric("image_check_passed",
         "1 if the check passed, 0 if it failed, was flaky or did not run. Skipped checks are left out.");
  std::map<std::string, bool> passed;  // in all launches
  for (const auto& check : results.checks)
    if (check.status != Status::skip)
      passed[check.check] = passed.try_emplace(check.check, true).first->second && check.status == Status::pass;
  for (const auto& [name, value] : passed)
    text += fmt::format("image_check_passed{{check={}}} {:d}\n", label_value(name), value);
  metric("image_check_value", "What was measured: the median over the launches.");
  for (const auto& [key, measured] : metrics_of(results.samples))
    text += fmt::format("image_check_value{{metric={},size_bytes={},node={},unit={}}} {:g}\n", label_value(key.metric),
                        label_value(key.band_bytes < 0 ? "" : fmt::format("{:.0f}", key.band_bytes)),
                        label_value(key.node), label_value(measured.unit), median(measured.values));
  metric("image_check_exit_status", "0 right, 1 something failed, 3 could not test.");
  text += fmt::format("image_check_exit_status {}\n", results.summary.exit_status);
  metric("image_check_end_time_seconds", "When it ended, in seconds since 1970; if it was killed, when it started.");
  std::tm started{};  // of a report that is made later, too
  const bool known = strptime(results.head.started.c_str(), "%Y-%m-%dT%H:%M:%SZ", &started) != nullptr;
  const auto end = known ? timegm(&started) + std::lround(results.summary.seconds) : std::time(nullptr);
  return text + fmt::format("image_check_end_time_seconds {}\n", end);
}

}  // namespace image_check
