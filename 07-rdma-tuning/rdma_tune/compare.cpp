#include "compare.hpp"

#include "options.hpp"
#include "table.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/text.hpp>
#include <multinode/node/groups.hpp>
#include <multinode/world/program.hpp>
#include <multinode/world/report.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <set>

namespace rdma {

namespace fs = std::filesystem;
namespace po = boost::program_options;
using multinode::UsageError, nlohmann::json;

namespace {

constexpr std::uintmax_t largest_file = 64 << 20;

// A member as one line; "" if there is none, or it is null.
std::string text(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return "";
  return multinode::one_line(found->is_string() ? found->get<std::string>() : found->dump());
}

const json& list(const json& object, const char* key) {
  if (!object.is_object()) throw std::runtime_error("an object was expected where '" + std::string(key) + "' belongs");
  const auto found = object.find(key);
  if (found == object.end()) throw std::runtime_error("it has no '" + std::string(key) + "'");
  if (!found->is_array()) throw std::runtime_error("'" + std::string(key) + "' is no list");
  for (const json& element : *found)
    if (!element.is_object()) throw std::runtime_error("'" + std::string(key) + "' holds something else than objects");
  return *found;
}

std::string at_most_eight(const std::vector<std::string>& words) {
  const std::string all = multinode::join(std::span(words).first(std::min<std::size_t>(words.size(), 8)), " ");
  return words.size() > 8 ? all + " ... (" + std::to_string(words.size()) + ")" : all;
}

}  // namespace

NodeFacts facts_of(const json& node) {
  if (!node.is_object()) throw std::runtime_error("it is no object");
  NodeFacts result{text(node, "node"), {}};
  if (result.node.empty()) throw std::runtime_error("it has no 'node'");
  const auto add = [&](const std::string& what, const std::string& value) {
    if (!value.empty()) result.facts.emplace_back(what, value);
  };
  std::map<std::string, std::string> net_mtus;
  for (const json& net : list(node, "net_devices")) net_mtus[text(net, "name")] = text(net, "mtu");

  const json& devices = list(node, "devices");
  std::vector<std::string> names;
  for (const json& device : devices) names.push_back(text(device, "name"));
  std::ranges::sort(names);
  add("RDMA devices", std::to_string(names.size()) + (names.empty() ? "" : ": " + multinode::join(names, " ")));
  for (const json& device : devices) {
    const std::string name = text(device, "name");
    add(name + " board", text(device, "board"));
    add(name + " firmware", text(device, "firmware"));
    for (const json& port : list(device, "ports")) {
      const std::string of_port = name + ":" + text(port, "port") + " ";
      const std::string link_layer = text(port, "link_layer"), state = text(port, "state");
      add(of_port + "link layer", link_layer.empty() ? "not known" : link_layer);
      add(of_port + "state", state.empty() ? "not known" : state);
      add(of_port + "rate", text(port, "rate"));
      add(of_port + "MTU", text(port, "active_mtu"));
      if (link_layer == "InfiniBand") continue;
      const std::string chosen = text(port, "chosen");
      add(of_port + "GID index", chosen == "-1" ? "none" : chosen);
      for (const json& gid : list(port, "gids")) {
        if (text(gid, "index") != chosen) continue;
        add(of_port + "GID type", text(gid, "type"));
        add(of_port + "subnet", text(gid, "subnet"));
        if (const auto mtu = net_mtus.find(text(gid, "net_device")); mtu != net_mtus.end())
          add(of_port + "network MTU", mtu->second);
      }
    }
  }
  return result;
}

std::vector<Difference> differences(std::span<const NodeFacts> nodes) {
  std::vector<std::string> names, order;
  std::map<std::string, std::vector<std::optional<std::string>>> all;  // by fact and node
  std::map<std::string, int> seen;
  for (const NodeFacts& node : nodes) {
    const int number = ++seen[node.node];
    names.push_back(node.node + (number > 1 ? " (" + std::to_string(number) + ")" : ""));
    for (const auto& [what, value] : node.facts) {
      const auto [values, is_new] = all.try_emplace(what, nodes.size());
      if (is_new) order.push_back(what);
      values->second[names.size() - 1] = value;
    }
  }
  std::vector<Difference> found;
  for (const std::string& what : order) {
    const auto groups = multinode::groups_of(all[what]);
    if (groups.size() < 2) continue;
    std::size_t telling = 0;
    for (const auto& group : groups) telling += group.members.size();
    Difference& difference = found.emplace_back(Difference{what, {}, 2 * groups.front().members.size() > telling});
    for (const auto& group : groups) {
      auto& value = difference.values.emplace_back(
          Difference::Value{group.value, {}, difference.majority && &group != &groups.front()});
      for (const int node : group.members) value.nodes.push_back(names[static_cast<std::size_t>(node)]);
    }
  }
  return found;
}

void print_differences(std::ostream& out, std::span<const NodeFacts> nodes, const std::vector<Difference>& found) {
  std::set<std::string> facts;
  for (const NodeFacts& node : nodes)
    for (const auto& fact : node.facts) facts.insert(fact.first);
  if (found.empty()) {
    const bool none = std::ranges::all_of(nodes, [](const NodeFacts& node) { return node.facts.size() == 1; });
    out << nodes.size() << " nodes agree in "
        << (none ? "that none has an RDMA device" : "everything that was compared") << " (" << facts.size()
        << (facts.size() == 1 ? " thing)" : " things)") << std::endl;
    return;
  }
  multinode::Table table({"what differs", "value", "nodes", ""});
  std::vector<std::string> order;
  std::map<std::string, std::vector<std::string>> odd;
  bool undecided = false, index = false;
  for (const Difference& difference : found) {
    undecided = undecided || !difference.majority;
    index = index || difference.what.ends_with("GID index");
    for (const auto& value : difference.values) {
      table.add({difference.what, value.value, at_most_eight(value.nodes), value.odd ? "odd" : ""});
      if (!value.odd) continue;
      for (const std::string& node : value.nodes) {
        auto [entry, is_new] = odd.try_emplace(node);
        if (is_new) order.push_back(node);
        entry->second.push_back(difference.what);
      }
    }
  }
  table.print(out);
  for (const std::string& node : order)
    out << "odd one out: " << node << ": " << multinode::join(odd[node], ", ") << '\n';
  if (undecided)
    out << (nodes.size() == 2 ? "two nodes differ" : "no value has a majority")
        << ": compare cannot know which is right\n";
  if (index)
    out << "GID indices differ: no NCCL_IB_GID_INDEX fits all nodes; start the processes with rdma_tune exec -- "
           "COMMAND\n";
  out << found.size() << " of " << facts.size() << " things differ, " << nodes.size() << " nodes" << std::endl;
}

namespace {

std::vector<NodeFacts> read_nodes(const std::string& path) {
  const auto fail = [&](const std::string& why) -> UsageError {
    return UsageError("compare: " + path + ": " + why + "; it must be a file of rdma_tune --json");
  };
  std::error_code error;
  if (!fs::is_regular_file(path, error)) throw fail(error ? error.message() : "no regular file");
  if (fs::file_size(path, error) > largest_file) throw fail("too large");
  std::ifstream file(path);
  std::vector<NodeFacts> nodes;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const json object = json::parse(line, nullptr, false);
    if (object.is_discarded()) throw fail("line " + std::to_string(number) + " is no JSON");
    try {
      nodes.push_back(facts_of(object));
    } catch (const std::runtime_error& e) {
      throw fail("line " + std::to_string(number) + ": " + e.what());
    }
  }
  if (file.bad() || (!file.eof() && file.fail())) throw fail(std::strerror(errno));
  if (nodes.empty()) throw fail("it is empty");
  return nodes;
}

json to_json(std::span<const NodeFacts> nodes, const std::vector<Difference>& found) {
  json object{{"nodes", json::array()}, {"differences", json::array()}};
  for (const NodeFacts& node : nodes) object["nodes"].push_back(node.node);
  for (const Difference& difference : found) {
    json values = json::array();
    for (const auto& value : difference.values)
      values.push_back({{"value", value.value}, {"nodes", value.nodes}, {"odd", value.odd}});
    object["differences"].push_back({{"what", difference.what}, {"values", values}});
  }
  return object;
}

int report(std::span<const NodeFacts> nodes, const std::string& json_file) {
  const std::vector<Difference> found = differences(nodes);
  print_differences(std::cout, nodes, found);
  multinode::JsonLines(json_file).write(to_json(nodes, found));
  return found.empty() ? multinode::exit_right : multinode::exit_wrong;
}

// Each rank reads its node. Ranks on one host count once, unless they differ.
int compare_ranks(int argc, const char* const* argv) {
  std::string sysfs = "/sys";
  Wanted wanted;
  multinode::CommonOptions common;
  po::options_description known("rdma_tune compare, a process on each node: which node's RDMA is the odd one?");
  known.add_options()("sysfs", po::value(&sysfs)->default_value(sysfs), "the folder to read in place of /sys");
  known.add(wanted_options(wanted));
  return multinode::run({"rdma_tune compare", known, common}, argc, argv, [&](multinode::World& world) -> int {
    const System system = read_system(sysfs);
    const NodeFacts facts = facts_of(rdma::to_json(system, choose(system, wanted)));
    const std::string text = json{facts.node, facts.facts}.dump(-1, ' ', false, json::error_handler_t::replace);
    std::vector<NodeFacts> nodes;
    const auto all = world.gather_on_rank_0("facts of the nodes", text);
    if (world.rank() != 0) return multinode::exit_right;  // all ranks exit with the worst status
    std::map<std::string, std::set<std::string>> of_host;
    for (int rank = 0; rank < world.size(); ++rank)
      of_host[world.host(rank)].insert(all[static_cast<std::size_t>(rank)]);
    std::set<std::string> taken;
    for (int rank = 0; rank < world.size(); ++rank) {
      const std::string& host = world.host(rank);
      if (of_host[host].size() == 1 && !taken.insert(host).second) continue;
      const json object = json::parse(all[static_cast<std::size_t>(rank)]);
      nodes.push_back({object.at(0), object.at(1)});
    }
    if (nodes.size() < 2)
      throw UsageError("compare needs two nodes, and all ranks are on " + facts.node +
                       ": start one on each, as mpirun -npernode 1 does");
    return report(nodes, common.json);
  });
}

}  // namespace

int run_compare(int argc, const char* const* argv) {
  std::vector<std::string> files;
  std::string json_file;
  po::options_description known("rdma_tune compare FILE...: which node's RDMA is the odd one?");
  known.add_options()("json", po::value(&json_file), "file to write a JSON object to")(
      "help,h", "print this text; mpirun -n 2 rdma_tune compare --help describes the use without files");
  po::options_description all;
  all.add(known).add_options()("file", po::value(&files));
  const int strict = po::command_line_style::unix_style ^ po::command_line_style::allow_guessing;
  const bool several = multinode::read_launch(multinode::current_environment()).world_size.value > 1;
  try {
    po::variables_map given;
    po::store(po::command_line_parser(argc, argv)
                  .options(all)
                  .positional(po::positional_options_description().add("file", -1))
                  .style(strict)
                  .run(),
              given);
    if (several && !given.count("file")) return compare_ranks(argc, argv);
    if (given.count("help")) {
      std::cout << known << std::flush;
      return multinode::exit_right;
    }
    po::notify(given);
  } catch (const po::error& e) {
    if (several) return compare_ranks(argc, argv);  // it has other options, and prints an error only once
    throw UsageError(std::string(e.what()) + "; see rdma_tune compare --help");
  }
  std::vector<NodeFacts> nodes;
  std::vector<std::string> from;
  std::map<std::string, std::string> file_of;
  bool same_name = false;
  for (const std::string& file : files)
    for (NodeFacts& node : read_nodes(file)) {
      same_name = same_name || file_of.try_emplace(node.node, file).first->second != file;
      from.push_back(file);
      nodes.push_back(std::move(node));
    }
  if (same_name)  // pods and recorded nodes may share a name: use the files' names
    for (std::size_t i = 0; i < nodes.size(); ++i) nodes[i].node = from[i];
  if (nodes.size() < 2)
    throw UsageError(
        "compare needs at least two nodes: files of rdma_tune --json, or a process on each: "
        "mpirun -npernode 1 rdma_tune compare");
  return report(nodes, json_file);
}

}  // namespace rdma
