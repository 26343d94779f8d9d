#include "inventory.hpp"

#include "limits.hpp"

#include <multinode/base/files.hpp>
#include <multinode/base/text.hpp>
#include <multinode/node/devices.hpp>
#include <multinode/node/limits.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <regex>
#include <set>

namespace node_check {

using nlohmann::json;

namespace {

// What the node has, by the names of what is wanted. Of several devices the least, so that one that is bad shows.
json facts(const std::filesystem::path& root) {
  const Gpus gpus = gpus_of_driver(root);
  json has{{"gpus", gpus.names.size()}, {"gpu", gpus.names}, {"rdma_ports", 0}};
  if (const auto version = multinode::read_text(root / "sys/module/nvidia/version")) has["driver"] = *version;
  for (const auto& port : multinode::rdma_ports(root / "sys")) {
    if (!port.is_active()) continue;
    has["rdma_ports"] = has["rdma_ports"].get<int>() + 1;
    const double rate = std::atof(port.rate.value_or("0").c_str());
    has["rdma_gbit_per_s"] = std::min(rate, has.value("rdma_gbit_per_s", rate));
  }
  has["cpus"] = multinode::usable_cpus();
  has["memory_gib"] = memory_bytes() / 0x1p30;
  return has;
}

// A pattern for all of the text, or of each text.
bool matches(const json& text, const std::string& pattern) {
  if (text.is_array())
    return !text.empty() && std::ranges::all_of(text, [&](const json& one) { return matches(one, pattern); });
  return text.is_string() && std::regex_match(text.get<std::string>(), std::regex(pattern));
}

}  // namespace

void check_inventory(const json& wanted) {
  static const std::set<std::string> counts{"gpus", "rdma_ports", "rdma_gbit_per_s", "cpus", "memory_gib"},
      patterns{"gpu", "driver"};
  for (const auto& [name, value] : wanted.items()) {
    const bool count = counts.contains(name) && value.is_number() && value >= 0,
               pattern = patterns.contains(name) && value.is_string();
    if (pattern) std::regex{value.get<std::string>()};
    if (name == "mounts")
      (void)value.get<std::vector<std::string>>();
    else if (!counts.contains(name) && !patterns.contains(name))
      throw std::runtime_error("inventory: unknown member '" + name + "'");
    else if (!count && !pattern)
      throw std::runtime_error("inventory: '" + name + "' cannot be " + value.dump());
  }
}

Finding look_at_inventory(const json& wanted, const std::filesystem::path& root) {
  std::string wrong;
  const json has = facts(root);
  std::set<std::string> mounted;
  for (const auto& [folder, kind] : mounts_in(root / "proc/self/mounts")) mounted.insert(folder);
  for (const auto& [name, value] : wanted.items()) {
    const json found = has.value(name, json());
    if (name == "mounts") {
      for (const std::string folder : value)
        if (!mounted.contains(folder)) add(wrong, folder + " is not mounted");
    } else if (value.is_string() ? !matches(found, value) : found < value) {
      add(wrong, fmt::format("{} is {}, and {}{} is wanted", name, found.is_null() ? "unknown" : found.dump(),
                             value.is_number() ? "at least " : "", value.dump()));
    }
  }
  if (!wrong.empty()) wrong += ": the site file lists this as this node's; repair the node or correct the file";
  return {"inventory", wanted.size(), "members", "equal", wrong.empty(), wrong};
}

}  // namespace node_check
