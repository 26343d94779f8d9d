// finding.hpp: what was found of one thing on one node.
#pragma once

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <vector>

namespace node_check {

struct Finding {
  std::string what;
  nlohmann::json value;  // a number where more or less is better, else a number or a text; null: unknown
  std::string unit;
  std::string better = "equal";   // or "more", "less"; "same": equal in all processes, whatever it was before
  std::optional<bool> ok = true;  // nothing: what this looks at is not here
  std::string why;                // and, where it is wrong, what to do
};
using Findings = std::vector<Finding>;

inline Finding absent(std::string what, std::string why) {
  return {std::move(what), nullptr, "", "equal", std::nullopt, std::move(why)};
}
inline Finding faulty(std::string what, std::string why) {
  return {std::move(what), nullptr, "", "equal", false, std::move(why)};
}

// As a line of results: what rank `rank` found on `host`.
inline nlohmann::json line_of(const Finding& finding, const std::string& host, int rank) {
  return {{"what", finding.what},
          {"rank", rank},
          {"host", host},
          {"value", finding.value},
          {"unit", finding.unit},
          {"better", finding.better},
          {"ok", finding.ok ? nlohmann::json(*finding.ok) : nlohmann::json()},
          {"why", finding.ok == false ? host + ": " + finding.why : finding.why}};
}

// Adds to what is wrong, or noteworthy: "one thing; another thing".
inline void add(std::string& text, const std::string& part) { text += (text.empty() ? "" : "; ") + part; }

}  // namespace node_check
