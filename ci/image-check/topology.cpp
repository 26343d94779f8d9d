#include "topology.hpp"

#include <multinode/base/options.hpp>
#include <multinode/launch/host_list.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>

namespace image_check {

Topology one_switch(const std::vector<std::string>& nodes) {
  Topology topology{nodes.size(), nodes, Nodes(nodes.size() + 1, nodes.size())};
  topology.names.push_back("the network");
  return topology;
}

Topology read_topology(const std::filesystem::path& file, const std::vector<std::string>& nodes) {
  using multinode::UsageError;
  std::ifstream stream(file);
  if (!stream) throw UsageError("--topology: " + file.string() + " cannot be read");
  std::map<std::string, std::vector<std::string>> below;  // by switch
  std::map<std::string, std::string> above;
  std::string line;
  for (int number = 1; std::getline(stream, line); ++number) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string name;
    std::vector<std::string> children;
    for (std::string word; words >> word;) {
      auto key = word.substr(0, word.find('='));
      const auto value = word.substr(std::min(key.size() + 1, word.size()));
      std::ranges::transform(key, key.begin(), [](unsigned char c) { return std::tolower(c); });
      if (key == "switchname")
        name = value;
      else if (key == "nodes" || key == "switches")
        std::ranges::copy(multinode::expand_host_list(value), std::back_inserter(children));
    }
    if (name.empty() && children.empty()) continue;
    const auto wrong = [&](const std::string& why) {
      throw UsageError(fmt::format("--topology: {}:{}: {}", file.string(), number, why));
    };
    if (name.empty() || children.empty() || below.contains(name)) wrong("not a new SwitchName with Nodes or Switches");
    for (const auto& child : children)
      if (!above.emplace(child, name).second || child == name) wrong(child + " is below two switches");
    below[name] = children;
  }

  Topology topology{nodes.size(), nodes, Nodes(nodes.size())};
  std::map<std::string, std::size_t> number;
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    if (!above.contains(nodes[node])) throw UsageError("--topology: " + file.string() + " has no node " + nodes[node]);
    number[nodes[node]] = node;
  }
  std::size_t reached = 0;
  // Vertices below it that are left; one: that stands for the switch, too.
  const std::function<Nodes(const std::string&)> add = [&](const std::string& name) {
    if (const auto node = number.find(name); node != number.end()) return ++reached, Nodes{node->second};
    Nodes left;
    for (const auto& child : below[name])
      for (const auto vertex : add(child)) left.push_back(vertex);
    if (left.size() < 2) return left;
    for (const auto vertex : left) topology.parents[vertex] = topology.names.size();
    topology.names.push_back(name);
    topology.parents.push_back(topology.names.size() - 1);
    return Nodes{topology.names.size() - 1};
  };
  Nodes roots;
  for (const auto& [name, children] : std::map(below))
    if (!above.contains(name))
      for (const auto vertex : add(name)) roots.push_back(vertex);
  if (reached < nodes.size()) throw UsageError("--topology: " + file.string() + ": no switch is above all others");
  if (roots.size() == 1) return topology;
  for (const auto vertex : roots) topology.parents[vertex] = topology.names.size();
  topology.names.push_back("the network");
  topology.parents.push_back(topology.names.size() - 1);
  return topology;
}

}  // namespace image_check
