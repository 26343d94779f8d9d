#include "site.hpp"
#include "statistics.hpp"

#include <multinode/base/options.hpp>
#include <multinode/base/text.hpp>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <regex>
#include <set>
#include <sstream>

namespace image_check {
namespace {

using nlohmann::json;
using FactsOfNode = std::map<std::string, std::string>;  // of a node, by name

std::vector<std::string> parts_of(const FactsOfNode& facts, const std::string& name) {
  std::vector<std::string> parts;
  const auto at = facts.find(name);
  if (at == facts.end() || at->second == "none" || at->second == "null") return parts;
  for (std::size_t from = 0, to; from < at->second.size(); from = to + 2) {
    to = std::min(at->second.find(", ", from), at->second.size());
    parts.push_back(at->second.substr(from, to - from));
  }
  return parts;
}

std::string literally(const std::string& text) {
  return std::regex_replace(text, std::regex(R"([.^$*+?()[\]{}\\|])"), "[$&]");
}

// What nodes of one kind have in common, whatever else differs.
json devices_of(const FactsOfNode& facts) {
  json devices = json::object();
  if (facts.contains("cpus")) devices["cpus"] = json::parse(facts.at("cpus"));
  const auto gpus = parts_of(facts, "gpus");
  devices["gpus"] = gpus.size();
  if (!gpus.empty()) {
    auto name = gpus.front();  // "NVIDIA H100 79.11 GiB"
    for (int word = 0; word < 2; ++word) name.resize(std::min(name.rfind(' '), name.size()));
    devices["gpu"] = literally(name);
  }
  devices["rdma_ports"] = std::ranges::count_if(
      parts_of(facts, "rdma_ports"), [](const auto& port) { return port.find(" ACTIVE ") != std::string::npos; });
  return devices;
}

json rounded(double value) { return json::parse(fmt::format("{:.2g}", value)); }

}  // namespace

std::string site_file(const std::vector<Results>& sessions) {
  std::map<std::string, FactsOfNode> facts;  // by node
  std::vector<Sample> samples;
  std::string first;  // node of what all measured together
  for (const auto& session : sessions) {
    if (!session.complete || session.summary.exit_status != 0)
      throw multinode::UsageError("site: '" + session.head.command + "' of " + session.head.started +
                                  " did not pass: take runs of good nodes only");
    first = session.head.nodes.front();
    for (const auto& fact : session.facts) facts[fact.node][fact.name] = fact.value;
    samples.insert(samples.end(), session.samples.begin(), session.samples.end());
  }
  if (facts.empty()) throw multinode::UsageError("site: no run has facts of a node: take runs of the suite smoke");
  std::map<std::string, std::vector<std::string>> kinds;  // nodes, by their devices
  for (const auto& [node, of_node] : facts) kinds[devices_of(of_node).dump()].push_back(node);

  json all = json::array();
  for (const auto& [devices, nodes] : kinds) {
    json inventory = json::parse(devices);
    double memory = HUGE_VAL;
    auto mounts = parts_of(facts.at(nodes.front()), "mounts");
    for (const auto& node : nodes) {
      const auto& of_node = facts.at(node);
      if (of_node.contains("memory")) memory = std::min(memory, json::parse(of_node.at("memory")).get<double>());
      const auto of_this = parts_of(of_node, "mounts");
      std::erase_if(mounts, [&](const auto& mount) { return std::ranges::find(of_this, mount) == of_this.end(); });
    }
    if (std::isfinite(memory)) inventory["memory_gib"] = rounded(0.97 * memory);
    if (!mounts.empty()) inventory["mounts"] = mounts;
    // Of each metric the worst of these nodes, and of a curve its largest size. What is in ms, node_check judges
    // itself.
    std::map<std::string, std::pair<double, json>> least, most;  // by metric: its size, and the limit
    for (const auto& [key, measured] : metrics_of(samples)) {
      if (std::ranges::find(nodes, key.node.empty() ? first : key.node) == nodes.end()) continue;
      if (measured.unit == "ms") continue;
      const double value = median(measured.values);
      auto& [size, limit] = (measured.better == "more" ? least : most)[key.metric];
      const double own = measured.better == "more" ? value * (1 - required_loss) : value / (1 - required_loss);
      const bool worse =
          limit.is_null() || (measured.better == "more" ? own < limit.get<double>() : own > limit.get<double>());
      if (key.band_bytes > size || limit.is_null() || (key.band_bytes == size && worse)) limit = rounded(own);
      size = std::max(size, key.band_bytes);
    }
    json kind{{"nodes", multinode::join(nodes, "|", literally)}, {"inventory", inventory}};
    for (const auto& [name, limits] : {std::pair{"at_least", &least}, std::pair{"at_most", &most}})
      for (const auto& [metric, limit] : *limits)
        kind[name][metric + (limit.first > 0 ? ", " + band_name(limit.first) : "")] = limit.second;
    all.push_back(kind);
  }
  return "// Written by image-check site from " + std::to_string(sessions.size()) +
         " sessions. Edit it: `nodes` is a regular expression for the names of all nodes of this\n"
         "// kind; what need not be the same on them goes; limits are 30 % worse than the worst of these nodes.\n" +
         json{{"kinds", all}}.dump(2) + "\n";
}

}  // namespace image_check
