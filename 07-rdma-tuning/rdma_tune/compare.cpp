#include "commands.hpp"
#include "options.hpp"
#include "table.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/files.hpp>
#include <multinode/base/json.hpp>
#include <multinode/base/text.hpp>
#include <multinode/node/groups.hpp>
#include <multinode/world/libraries.hpp>
#include <multinode/world/program.hpp>
#include <multinode/world/report.hpp>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <string_view>

namespace rdma {

namespace po = boost::program_options;
using multinode::UsageError, nlohmann::json;

namespace {

// What is compared, and its field of a port in the JSON of `rdma_tune`.
constexpr struct {
  const char *what, *field;
} compared[] = {
    {"ports in use", ""}, {"site file", ""},      {"link layer", "link_layer"},
    {"speed", "rate"},    {"MTU", "mtu"},         {"subnet prefix", "subnet_prefix"},
    {"P_Keys", "pkeys"},  {"network", "network"}, {"GID index", "gid_index"}};  // only for the last line of the report

constexpr std::size_t longest_line = 256 << 10, most_nodes = 10'000;

struct Node {
  std::string name, from;        // from: its file, or its rank
  std::vector<Subnet> networks;  // that its ports in use reach
  std::vector<Subnet> addresses;
  std::vector<std::optional<std::string>> values;  // as `compared`; nothing: unknown, which makes no difference
};

// The different values of its ports in use. Throws json::exception if it is no line of `rdma_tune --json`.
Node node_of(const std::string& line, const std::string& from) {
  const json object = multinode::parse_json(line);
  Node node{multinode::one_line(object.at("node").get<std::string>()), from, {}, {}, {}};
  std::vector<json> ports;
  for (const json& port : object.at("ports")) {
    if (!port.at("usable").get<bool>()) continue;
    ports.push_back(port);
    if (port.value("network", "").empty()) continue;
    Subnet network = Subnet::parse(port["network"]);
    if (port.value("assumed", false) && !network.is_ipv4()) network.bits = 127;  // most IPv6 fabrics are routed
    node.networks.push_back(network);
    for (const json& route : port.value("routes", json::array())) node.networks.push_back(Subnet::parse(route));
    node.addresses.push_back({Subnet::parse(port.value("gid", "")).address, network.bits});
  }
  node.values.emplace_back(std::to_string(ports.size()));
  node.values.emplace_back();
  if (object.contains("site")) node.values.back() = multinode::one_line(object["site"].get<std::string>());
  for (const auto& [what, field] : std::span(compared).subspan(2)) {
    std::set<std::string> values;
    for (const json& port : ports)
      if (const json value = port.value(field, json()); !value.is_null() && value != "" && value != -1) {
        const int number = what == std::string("P_Keys") ? port.value("port", 1) : 1;  // that of most cards is 1
        values.insert((number > 1 ? "port " + std::to_string(number) + ": " : "") +
                      multinode::one_line(value.is_string() ? value.get<std::string>() : multinode::json_text(value)));
      }
    node.values.emplace_back();
    if (!values.empty()) node.values.back() = multinode::join(values, ", ");
  }
  return node;
}

// Whether each address of b's ports is in a network that a port of a reaches. Links of two addresses, /31 and /127, are
// of a routed fabric, whose routes may be in tables of their own.
bool reaches(const Node& a, const Node& b) {
  return std::ranges::all_of(b.addresses, [&](const Subnet& address) {
    return std::ranges::any_of(a.networks, [&](const Subnet& network) {
      return network.contains(address.address) ||
             (network.bits == 127 && address.bits == 127 && network.is_ipv4() == address.is_ipv4());
    });
  });
}

std::string at_most_eight(const std::vector<std::string>& words) {
  const std::string all = multinode::join(std::span(words).first(std::min<std::size_t>(words.size(), 8)), " ");
  return words.size() > 8 ? all + " ... (" + std::to_string(words.size()) + ")" : all;
}

int report(std::vector<Node> nodes, const std::string& json_file) {
  std::set<std::string> names;
  for (const Node& node : nodes) names.insert(node.name);
  json object{{"nodes", json::array()}, {"differences", json::array()}};
  for (Node& node : nodes) {
    if (names.size() < nodes.size()) node.name = node.from;  // pods and recorded nodes may share a name
    object["nodes"].push_back(node.name);
  }
  // Where one node has a site file, all need it.
  if (std::ranges::any_of(nodes, [](const Node& node) { return node.values[1].has_value(); }))
    for (Node& node : nodes) node.values[1] = node.values[1].value_or("none");
  multinode::Table table({"what differs", "value", "nodes", ""});
  std::map<std::string, std::vector<std::string>> odd;  // what is odd, by node
  bool undecided = false, indices_differ = false, networks_differ = false;
  std::size_t known = 0;
  for (std::size_t i = 0; i < std::size(compared); ++i) {
    const std::string what = compared[i].what;
    std::vector<std::optional<std::string>> values;
    for (const Node& node : nodes) {
      const auto same = std::ranges::find_if(nodes, [&](const Node& other) {
        return &other == &node || (what == "network" && reaches(node, other) && reaches(other, node));
      });
      values.push_back(same->values[i]);
    }
    const std::vector<multinode::Group> groups = multinode::groups_of(values);
    if (what == "GID index") {
      indices_differ = groups.size() > 1;
      continue;
    }
    known += !groups.empty();
    if (groups.size() < 2) continue;
    networks_differ |= what == "network";
    std::size_t telling = 0;
    for (const multinode::Group& group : groups) telling += group.members.size();
    const bool majority = 2 * groups.front().members.size() > telling;
    undecided |= !majority;
    json of_values = json::array();
    for (const multinode::Group& group : groups) {
      const bool is_odd = majority && &group != &groups.front();
      std::vector<std::string> members;
      for (const int member : group.members) members.push_back(nodes[static_cast<std::size_t>(member)].name);
      for (const std::string& name : members)
        if (is_odd) odd[name].push_back(what);
      table.add({what, group.value, at_most_eight(members), is_odd ? "odd" : ""});
      of_values.push_back({{"value", group.value}, {"nodes", members}, {"odd", is_odd}});
    }
    object["differences"].push_back({{"what", what}, {"values", of_values}});
  }

  const std::size_t found = object["differences"].size();
  const bool nothing = std::ranges::all_of(nodes, [](const Node& node) { return node.values[0] == "0"; });
  if (nothing) {
    std::cout << "nothing to compare: none of " << nodes.size() << " nodes has an RDMA port to use\n";
  } else if (found) {
    table.print(std::cout);
    for (const auto& [name, what] : odd) std::cout << "odd one out: " << name << ": " + multinode::join(what) + "\n";
    if (networks_differ) std::cout << "nodes in different networks reach each other only through a router\n";
    if (undecided) std::cout << "no value has a majority: compare cannot know which is right\n";
    std::cout << found << " of " << known << " things differ, " << nodes.size() << " nodes\n";
  } else {
    std::cout << nodes.size() << " nodes agree in everything that was compared (" << known << " things)\n";
    if (nodes.front().values[1]) std::cout << "site file of all nodes: " + *nodes.front().values[1] + "\n";
  }
  if (indices_differ)
    std::cout << "GID indices differ, which is normal: start the processes with rdma_tune exec -- COMMAND\n";
  std::cout << std::flush;
  multinode::JsonLines(json_file).write(object);
  return nothing ? multinode::exit_untestable : found ? multinode::exit_wrong : multinode::exit_right;
}

// Each rank reads its node. Ranks on one host count once, unless they differ.
int compare_ranks(int argc, const char* const* argv) {
  std::string sysfs = "/sys";
  Wanted wanted;
  multinode::CommonOptions common;
  po::options_description known("rdma_tune compare, a process on each node: which node's RDMA is the odd one?");
  known.add(wanted_options(wanted)).add(sysfs_option(sysfs));
  return multinode::run({"rdma_tune compare", known, common}, argc, argv, [&](multinode::World& world) -> int {
    wanted.site = read_site(sysfs);
    const System system = read_system(sysfs);
    json object = rdma::to_json(system, choose(system, wanted));
    object.erase("root");
    const auto all = world.gather_on_rank_0("facts of the nodes", multinode::json_text(object));
    if (world.rank() != 0) return multinode::exit_right;  // all ranks exit with the worst status
    std::vector<Node> nodes;
    std::set<std::pair<std::string, std::string>> taken;
    for (int rank = 0; rank < world.size(); ++rank) {
      const std::string& host = world.host(rank);
      const std::string& line = all[static_cast<std::size_t>(rank)];
      if (taken.insert({host, line}).second) nodes.push_back(node_of(line, host + ", rank " + std::to_string(rank)));
    }
    if (nodes.size() < 2)
      throw UsageError("compare needs two nodes, and all ranks are on " + nodes.front().name +
                       ": start one on each, as mpirun -npernode 1 does");
    return report(std::move(nodes), common.json);
  });
}

// The ranks of mpirun meet over MPI, which this program does not load.
void become_rdma_tune_mpi(const char* const* argv) {
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe"),
                              other = self.parent_path() / "rdma_tune_mpi";
  if (self.filename() == other.filename()) return;
  std::vector<char*> words{const_cast<char*>(other.c_str())};
  for (; *argv; ++argv) words.push_back(const_cast<char*>(*argv));
  words.push_back(nullptr);
  execv(other.c_str(), words.data());
  throw UsageError("compare: " + other.string() + ": " + std::strerror(errno) +
                   "; under mpirun it must be beside rdma_tune. Or: rdma_tune --json FILE on each node, and then "
                   "rdma_tune compare FILE...");
}

}  // namespace

int run_compare(int argc, const char* const* argv) {
  const multinode::Launch launch = multinode::read_launch(multinode::current_environment());
  if (launch.world_size.value > 1 && (argc < 2 || argv[1][0] == '-')) {
    if (launch.under_mpi && !multinode::libraries().has_mpi()) become_rdma_tune_mpi(argv);
    return compare_ranks(argc, argv);
  }
  std::vector<std::string> files;
  std::vector<const char*> options{argv[0]};
  for (int i = 1; i < argc; ++i) {
    const bool is_option = argv[i][0] == '-' || argv[i - 1] == std::string_view("--json");
    if (is_option)
      options.push_back(argv[i]);
    else
      files.emplace_back(argv[i]);
  }
  std::string json_file;
  po::options_description known(
      "rdma_tune compare FILE...: which node's RDMA is the odd one? mpirun -n 2 rdma_tune compare --help describes the "
      "use without files");
  known.add_options()("json", po::value(&json_file), "file to write a JSON object to");
  if (!multinode::parse_command_line(static_cast<int>(options.size()), options.data(), known, true))
    return multinode::exit_right;
  std::vector<Node> nodes;
  for (const std::string& file : files) {
    const auto refuse = [&](const std::string& why) -> UsageError {
      return UsageError("compare: " + file + ": " + why + "; it must be a file of rdma_tune --json");
    };
    std::istringstream stream(multinode::ForeignFile(file, 16 << 20, multinode::Links::followed).text());
    const std::size_t before = nodes.size();
    int number = 0;
    for (std::string line; ++number, std::getline(stream, line);) try {
        if (line.size() > longest_line) throw std::length_error(line);
        if (line.find_first_not_of(" \t\r") != line.npos) nodes.push_back(node_of(line, file));
      } catch (const std::exception&) {  // JSON, or an address in it
        throw refuse("line " + std::to_string(number) + " is of another kind");
      }
    if (nodes.size() == before) throw refuse("it has no node");
    if (nodes.size() > most_nodes) throw refuse("more than " + std::to_string(most_nodes) + " nodes");
  }
  if (nodes.size() < 2)
    throw UsageError(
        "compare needs at least two nodes: files of rdma_tune --json, or a process on each: "
        "mpirun -npernode 1 rdma_tune compare");
  return report(std::move(nodes), json_file);
}

}  // namespace rdma
