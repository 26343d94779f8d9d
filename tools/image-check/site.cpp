#include "site.hpp"

#include "checks_json.hpp"
#include "node_check/findings.hpp"
#include "statistics.hpp"

#include <multinode/base/json.hpp>
#include <multinode/base/options.hpp>
#include <multinode/base/text.hpp>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <regex>
#include <set>

namespace image_check {

// The other members are read by read_check().
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Check, name, title, program, command, arguments, seconds, limit, most_busy,
                                   variables, exit_status, says, answers, transport, measures)

namespace {

using nlohmann::json;

const std::set<std::string> members{"name",      "title", "suite",       "program", "arguments", "command",
                                    "where",     "needs", "seconds",     "limit",   "most_busy", "action",
                                    "variables", "says",  "exit_status", "answers", "measures",  "transport"};

void only(const json& object, const std::set<std::string>& known) {
  for (const auto& [key, value] : object.items())
    if (!known.contains(key)) throw std::runtime_error("unknown member '" + key + "'");
}

// filled() for all texts in `value`.
json all_filled(json value, const json& members_of_each) {
  if (value.is_structured())
    for (auto& part : value) part = all_filled(part, members_of_each);
  return value.is_string() ? json(filled(value, members_of_each)) : value;
}

// One for each combination.
std::vector<json> expanded(const json& check) {
  std::vector<json> all{check};
  for (const json& choices : check.value("each", json::array())) {
    std::vector<json> more;
    for (const json& one : all)
      for (const json& choice : choices) {
        more.push_back(one);
        more.back().merge_patch(choice);
      }
    all = std::move(more);
  }
  for (json& one : all) {
    if (one.erase("each") == 0) continue;
    const json with = one;
    for (const auto& [name, value] : with.items())
      if (!members.contains(name)) one.erase(name);
    one = all_filled(one, with);
  }
  return all;
}

void validate(const json& measures) {
  only(measures, {"value", "times", "over", "pattern", "metric", "unit", "better", "band", "node", "if", "unless"});
  for (const char* needed : {"metric", "unit", "better"}) measures.at(needed);
  for (const auto& [key, value] : measures.items())
    if (key == "if" ? !value.is_object() : !value.is_string())
      throw std::runtime_error("'" + key + "' cannot be " + value.dump());
  if (measures.contains("value") == measures.contains("pattern"))
    throw std::runtime_error("measures needs a value or a pattern");
  if (measures.contains("pattern") && Pattern(measures.at("pattern")).compiled->re_nsub != 1)
    throw std::runtime_error("pattern needs one group");
}

Check read_check(const json& object) {
  only(object, members);
  auto check = with_defaults<Check>(object);
  if (check.title.empty()) check.title = check.name;
  check.from = one_of<Suite>(object.at("suite"), {"smoke", "gate", "deep", "none"});
  if (object.contains("program") == object.contains("command"))
    throw std::runtime_error("needs a program or a command");
  if (object.contains("command")) check.program = "/bin/sh";
  check.where = one_of<Where>(object.value("where", "every process"), {"every process", "every node", "once"});
  for (const json& need : object.value("needs", json::array()))
    check.needs.push_back(one_of<Need>(
        need, {"mpi", "gloo", "gpu", "rdma", "images", "several nodes", "three nodes", "several processes"}));
  if (!(check.seconds > 0 && check.seconds <= check.limit))
    throw std::runtime_error("seconds must be more than 0, and no more than limit");
  check.action = one_of<Action>(object.value("action", "investigate"),
                                {"replace the node", "drain the node", "reboot the node", "investigate"});
  for (const auto& text : check.says) Pattern{text};
  if (object.contains("measures")) validate(check.measures);
  return check;
}

// Whether they give a metric of that name, with a size behind it: {member} in the template stands for any text.
bool can_be(const std::string& metric, const json& measures) {
  static const std::set<std::string> of_node_check{"memory_bandwidth", "matrix_rate", "clock_skew"};
  static const std::regex special(R"([.^$*+?()[\]\\|])"), member(R"(\{[^}]*\})");
  const auto name = measures.is_null() ? "" : measures.at("metric").get<std::string>();
  if (name == "{what}") return of_node_check.contains(metric);
  const auto literal = std::regex_replace(name, special, "\\$&");
  return std::regex_match(metric, std::regex(std::regex_replace(literal, member, ".*") + "(, [0-9.]+ ([KMG]i)?B)?"));
}

// Adds or changes checks.
void add(std::vector<json>& checks, const json& more) {
  for (const json& given : more)
    for (json& check : expanded(given)) {
      const auto known =
          std::ranges::find_if(checks, [&](const json& other) { return other.at("name") == check.at("name"); });
      if (known == checks.end())
        checks.push_back(std::move(check));
      else
        known->merge_patch(check);
    }
}

}  // namespace

json inventory_of(const Site& site, const std::string& node) {
  json all = json::object();
  bool known = site.kinds.empty();
  for (const Kind& kind : site.kinds)
    if (std::regex_match(node, std::regex(kind.nodes))) {
      all.merge_patch(kind.inventory);
      known = true;
    }
  if (!known) throw multinode::UsageError("--site: no member of 'kinds' matches the node '" + node + "'");
  return all;
}

Site read_site(const std::filesystem::path& path) {
  std::string where = "checks.json";
  try {
    std::vector<json> checks;
    add(checks, json::parse(checks_json, nullptr, true, true).at("checks"));
    Site site;
    std::vector<Threshold> thresholds;
    if (!path.empty()) {
      where = path.string();
      std::ifstream file(path);
      if (!file) throw std::runtime_error("cannot be read");
      const json given = multinode::parse_json(std::string(std::istreambuf_iterator<char>(file), {}), true);
      only(given, {"launcher", "kinds", "checks"});
      site.launcher = given.value("launcher", "");
      for (const json& kind : given.value("kinds", json::array())) {
        only(kind, {"nodes", "at_least", "at_most", "inventory"});
        for (const bool least : {true, false})
          for (const auto& [metric, value] :
               kind.value(least ? "at_least" : "at_most", std::map<std::string, double>()))
            thresholds.push_back({kind.at("nodes"), metric, value, least});
        site.kinds.push_back({kind.at("nodes"), kind.value("inventory", json::object())});
        std::regex{site.kinds.back().nodes};
        node_check::check_inventory(site.kinds.back().inventory);
      }
      add(checks, given.value("checks", json::array()));
    }
    for (const json& check : checks) {
      const std::string name = check.at("name");
      try {
        site.checks.push_back(read_check(check));
      } catch (const std::exception& error) {
        throw std::runtime_error("check '" + name + "': " + error.what());
      }
    }
    for (const auto& threshold : thresholds) {
      bool known = false;
      for (auto& check : site.checks)
        if (can_be(threshold.metric, check.measures)) {
          check.thresholds.push_back(threshold);
          known = true;
        }
      if (!known) throw std::runtime_error("kinds: no check measures '" + threshold.metric + "'");
    }
    return site;
  } catch (const std::exception& error) {
    throw multinode::UsageError("--site: " + where + ": " + error.what());
  }
}

namespace {

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

// Of results that another user may have written. Throws multinode::UsageError.
template <class Number>
Number number_in(const FactsOfNode& facts, const std::string& name) {
  const auto& text = facts.at(name);
  const auto number = multinode::number_of<Number>(text);
  if (!number || !(*number >= 0 && *number < 1e9))
    throw multinode::UsageError("site: " + name + " of a node is '" + multinode::printable(text) +
                                "', which is not a number: take results of image-check run");
  return *number;
}

std::string literally(const std::string& text) {
  return std::regex_replace(text, std::regex(R"([.^$*+?()[\]{}\\|])"), "[$&]");
}

// What nodes of one kind have in common, whatever else differs.
json devices_of(const FactsOfNode& facts) {
  json devices = json::object();
  if (facts.contains("cpus")) devices["cpus"] = number_in<int>(facts, "cpus");
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
  std::map<std::string, std::string> kind_of;
  for (const auto& [node, of_node] : facts) kinds[kind_of[node] = devices_of(of_node).dump()].push_back(node);
  // Of each metric the worst of a kind's nodes, and of a curve its largest size, which comes last. What is in ms,
  // node_check judges itself.
  std::map<std::string, std::map<std::pair<std::string, std::string>, std::pair<double, double>>>
      all_limits;  // by devices; by kind and metric: size, limit
  for (const auto& [key, measured] : metrics_of(samples)) {
    const auto kind = kind_of.find(key.node.empty() ? first : key.node);
    if (measured.unit == "ms" || kind == kind_of.end()) continue;
    const bool more = measured.better == "more";
    const double value = median(measured.values),
                 own = more ? value * (1 - required_loss) : value / (1 - required_loss);
    auto& [size, limit] = all_limits[kind->second][{more ? "at_least" : "at_most", key.metric}];
    if (limit == 0 || size != key.band_bytes || (more ? own < limit : own > limit)) limit = own;
    size = key.band_bytes;
  }

  json all = json::array();
  for (const auto& [devices, nodes] : kinds) {
    json inventory = json::parse(devices);
    double memory = HUGE_VAL;
    auto mounts = parts_of(facts.at(nodes.front()), "mounts");
    for (const auto& node : nodes) {
      const auto& of_node = facts.at(node);
      if (of_node.contains("memory")) memory = std::min(memory, number_in<double>(of_node, "memory"));
      const auto list = parts_of(of_node, "mounts");
      const std::set<std::string> of_this(list.begin(), list.end());
      std::erase_if(mounts, [&](const auto& mount) { return !of_this.contains(mount); });
    }
    if (std::isfinite(memory)) inventory["memory_gib"] = rounded(0.97 * memory);
    if (!mounts.empty()) inventory["mounts"] = mounts;
    json kind{{"nodes", multinode::join(nodes, "|", literally)}, {"inventory", inventory}};
    for (const auto& [name, of] : all_limits[devices])
      kind[name.first][name_of({name.second, of.first, ""})] = rounded(of.second);
    all.push_back(kind);
  }
  return "// Written by image-check site from " + std::to_string(sessions.size()) +
         " sessions. Edit it: `nodes` is a regular expression for the names of all nodes of this\n"
         "// kind; what need not be the same on them goes; limits are 30 % worse than the worst of these nodes.\n" +
         json{{"kinds", all}}.dump(2, ' ', true) + "\n";
}

}  // namespace image_check
