#include "history.hpp"

#include "statistics.hpp"

#include <multinode/base/files.hpp>
#include <multinode/base/options.hpp>

#include <nlohmann/json.hpp>

#include <fstream>
#include <set>
#include <system_error>

namespace image_check {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(HistoryLine, time, name, unit, better, value)

namespace {
const std::string ending = ".history.jsonl", together = "all nodes";
}

void add_to_history(const std::filesystem::path& folder, const Results& results) {
  const auto& nodes = results.head.nodes;
  History lines;
  const auto of = [&](const std::string& node) -> std::vector<HistoryLine>& {
    return lines[!node.empty() ? node : nodes.size() == 1 ? nodes.front() : together];
  };
  for (const auto& [key, measured] : metrics_of(results.samples)) {
    auto name = key;
    name.node.clear();
    of(key.node).push_back(
        {results.head.started, name_of(name), measured.unit, measured.better, median(measured.values)});
  }
  for (const auto& check : results.checks) {
    if (check.status == Status::skip || check.status == Status::not_run) continue;
    // Of a failure, the nodes that are to blame.
    std::set<std::string> where;
    for (const auto& finding : check.findings) where.insert(finding.node);
    if (where.empty()) where.insert("");
    for (const auto& node : where)
      of(node).push_back({results.head.started, check.check, "", "more", check.status == Status::pass ? 1.0 : 0.0});
  }
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  for (const auto& [node, of_node] : lines) {
    const auto path = folder / (node + ending);
    std::string text;
    for (const auto& line : of_node) text += nlohmann::json(line).dump() + "\n";
    try {
      multinode::write_all(multinode::open_in_place(path, true).get(), text, path);
    } catch (const std::system_error& why) {
      throw multinode::UsageError(std::string("--history: ") + why.what());
    }
  }
}

History read_history(const std::filesystem::path& folder) {
  History history;
  for (const auto& name : multinode::names_in(folder)) {
    if (!name.ends_with(ending) || !std::filesystem::is_regular_file(folder / name)) continue;
    std::ifstream file(folder / name);
    int number = 0;
    for (std::string line; std::getline(file, line);) try {
        ++number;
        history[name.substr(0, name.size() - ending.size())].push_back(nlohmann::json::parse(line).get<HistoryLine>());
      } catch (const nlohmann::json::exception& error) {
        if (file.eof()) break;  // it was being written
        throw multinode::UsageError((folder / name).string() + ", line " + std::to_string(number) + ": " +
                                    error.what());
      }
  }
  if (history.empty())
    throw multinode::UsageError("history: no file of a node in " + folder.string() +
                                ": name the folder of run --history");
  return history;
}

}  // namespace image_check
