// history.hpp: what was measured and found on each node in all runs: a file for each node, JSON lines.
#pragma once

#include "results.hpp"

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace image_check {

// One value of one run: a metric's, or of a check 1 for passed and 0 for failed.
struct HistoryLine {
  std::string time;  // ISO 8601, UTC: the run's start
  std::string name;  // metric with its size, or check
  std::string unit;  // "" of checks
  std::string better;
  double value = 0;
};
using History = std::map<std::string, std::vector<HistoryLine>>;  // by node; "all nodes": of all together

// Appends the run's values to FOLDER/NODE.history.jsonl. Throws multinode::UsageError for what cannot be written.
void add_to_history(const std::filesystem::path& folder, const Results& results);
// Throws multinode::UsageError, naming file and line.
History read_history(const std::filesystem::path& folder);

}  // namespace image_check
