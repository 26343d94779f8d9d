// What find_path_faults() finds in simulated Clos networks with planted faults, as a table.
// usage: path_simulation NODES CLUSTERS HEALTHY: so many clusters with each fault, and so many healthy ones
// Exit status: 0 the faults are found, and nothing else is named; 1 not; 2 bad command line.
#include "path_faults.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace {
using namespace image_check;

struct Clos {
  std::size_t nodes = 0, rack = 32, pod = 16;  // nodes per rack, racks per pod
  double noise = 0.02, oversubscribed = 1;
  std::mt19937_64 random{1};

  // Faults: what is left of the bandwidth; 0: nothing works.
  std::vector<std::pair<std::size_t, double>> slow_nodes, uplinks;  // node or rack, part
  std::vector<std::size_t> bad_links;                               // rack: one of its 8 links upwards has a quarter
  std::set<Pair> bad_paths;
  std::size_t split_at = 0;  // nodes before it reach none behind it

  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (std::size_t node = 0; node < nodes; ++node) all.push_back("n" + std::to_string(node));
    return all;
  }
  std::size_t racks() const { return (nodes + rack - 1) / rack; }
  Topology topology() const {
    Topology tree{nodes, names(), std::vector<std::size_t>(nodes)};
    const std::size_t pods = (racks() + pod - 1) / pod, first_pod = nodes + racks(),
                      root = first_pod + (pods > 1 ? pods : 0);
    for (std::size_t node = 0; node < nodes; ++node) tree.parents[node] = nodes + node / rack;
    for (std::size_t i = 0; i < racks(); ++i) {
      tree.names.push_back("rack" + std::to_string(i));
      tree.parents.push_back(pods > 1 ? first_pod + i / pod : root);
    }
    for (std::size_t i = 0; pods > 1 && i < pods; ++i) {
      tree.names.push_back("pod" + std::to_string(i));
      tree.parents.push_back(root);
    }
    tree.names.push_back("core");
    tree.parents.push_back(root);
    return tree;
  }

  // All pairs at once. Each has four flows, and each flow takes one of a rack's 8 links, another one each time. One
  // measurement in a thousand is disturbed.
  std::vector<std::optional<double>> operator()(const std::vector<Pair>& pairs) {
    std::vector<double> crossing(racks());
    for (const auto& [a, b] : pairs)
      if (a / rack != b / rack) ++crossing[a / rack], ++crossing[b / rack];
    std::vector<std::optional<double>> values;
    std::normal_distribution<double> normal(1, noise);
    std::uniform_real_distribution<double> uniform(0, 1);
    const auto part_of = [](const auto& faults, std::size_t one) {
      double part = 1;
      for (const auto& [where, left] : faults)
        if (where == one) part = std::min(part, left);
      return part;
    };
    for (const auto& [a, b] : pairs) {
      double part = std::min(part_of(slow_nodes, a), part_of(slow_nodes, b));
      for (const auto& [at, to] : {std::pair(a / rack, b / rack), std::pair(b / rack, a / rack)}) {
        if (at == to) continue;
        part = std::min(part, static_cast<double>(rack) / oversubscribed / crossing[at]);
        part = std::min(part, part_of(uplinks, at));
        for (int flow = 0; flow < 4 && std::ranges::find(bad_links, at) != bad_links.end(); ++flow)
          if (random() % 8 == 0) part = std::min(part, 0.25);
      }
      if (bad_paths.contains(std::minmax(a, b))) part = std::min(part, 0.25);
      if ((a < split_at) != (b < split_at)) part = 0;
      if (uniform(random) < 0.001) part *= 0.2 + 0.4 * uniform(random);
      values.push_back(part == 0 ? std::nullopt : std::optional(10 * part * std::max(normal(random), 0.01)));
    }
    return values;
  }

  struct Score {
    std::size_t planted = 0, found = 0, misnamed = 0, untold = 0;  // faults; and verdicts that name no fault
  };
  // A verdict is right if it separates the nodes that a planted fault does. Nodes that are bad themselves may be on any
  // side.
  Score score(const PathFaults& result) const {
    std::set<std::size_t> bad;
    for (const auto& [node, part] : slow_nodes) bad.insert(node);
    const auto side = [&](std::size_t from, std::size_t to) {
      std::vector<std::size_t> members;
      for (auto node = from; node < std::min(to, nodes); ++node)
        if (!bad.contains(node)) members.push_back(node);
      return members;
    };
    struct Planted {
      Fault fault;
      std::vector<std::size_t> one;
      bool found = false;
    };
    std::vector<Planted> all;
    for (const auto node : bad) all.push_back({Fault::node, {node}});
    for (const auto& [at, part] : uplinks) all.push_back({Fault::uplink, side(at * rack, (at + 1) * rack)});
    for (const auto at : bad_links) all.push_back({Fault::uplink, side(at * rack, (at + 1) * rack)});
    for (const auto& [a, b] : bad_paths) all.push_back({Fault::path, {a, b}});
    if (split_at > 0) all.push_back({Fault::split, side(0, split_at)});
    Score score{.planted = all.size()};
    for (const auto& verdict : result.verdicts) {
      if (verdict.fault == Fault::unknown) {
        ++score.untold;
        continue;
      }
      const auto without = [&](std::vector<std::size_t> side) {
        std::erase_if(side, [&](std::size_t node) { return bad.contains(node); });
        return side;
      };
      bool right = false;
      for (auto& planted : all) {
        const bool same =
            planted.fault == Fault::node ? verdict.fault == Fault::node && verdict.one == planted.one
            : planted.fault == Fault::path
                ? verdict.fault == Fault::path && verdict.one[0] == planted.one[0] && verdict.other[0] == planted.one[1]
                : verdict.fault != Fault::node && verdict.fault != Fault::path &&
                      (without(verdict.one) == planted.one || without(verdict.other) == planted.one);
        planted.found = planted.found || same;
        right = right || same;
      }
      score.misnamed += !right;
    }
    for (const auto& planted : all) score.found += planted.found;
    return score;
  }

  // A cluster of so many nodes, with a fault of this name anywhere: "healthy", "node", "link", "uplink", "split",
  // "path", "node + uplink", "two nodes".
  static Clos with(std::size_t nodes, const std::string& fault, double noise, std::uint64_t seed) {
    Clos clos;
    clos.nodes = nodes;
    clos.rack = nodes <= 16 ? 8 : nodes <= 128 ? 16 : 32;
    clos.noise = noise;
    clos.random.seed(seed);
    const auto any = [&](std::size_t below) { return clos.random() % below; };
    const auto part = [&] { return any(4) == 0 ? 0 : 0.1 + 0.1 * static_cast<double>(any(4)); };
    if (fault == "node" || fault == "node + uplink" || fault == "two nodes")
      clos.slow_nodes.emplace_back(any(nodes), part());
    if (fault == "two nodes")
      clos.slow_nodes.emplace_back((clos.slow_nodes[0].first + 1 + any(nodes - 1)) % nodes, part());
    if (fault == "uplink" || fault == "node + uplink") clos.uplinks.emplace_back(any(clos.racks()), part());
    if (fault == "link") clos.bad_links.push_back(any(clos.racks()));
    if (fault == "split") clos.split_at = clos.rack * (1 + any(clos.racks() - 1));
    if (fault == "path") {
      const auto a = any(nodes);
      clos.bad_paths.insert(std::minmax(a, (a + 1 + any(nodes - 1)) % nodes));
    }
    if (fault == "oversubscribed") clos.oversubscribed = 4;
    return clos;
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return std::cerr << "usage: path_simulation NODES CLUSTERS HEALTHY\n", 2;
  const std::size_t nodes = std::strtoul(argv[1], nullptr, 10);
  const int clusters = std::atoi(argv[2]), healthy = std::atoi(argv[3]);
  bool right = true;
  std::cout << "| nodes | fault | switches | noise | faults found | misnamed | \"cannot tell\" | rounds (all pairs: "
            << nodes - 1 + nodes % 2 << ") | ms |\n|---|---|---|---|---|---|---|---|---|\n";
  for (const std::string fault :
       {"healthy", "oversubscribed", "node", "link", "uplink", "split", "path", "two nodes", "node + uplink"})
    for (const bool known : {true, false})
      for (const double noise : {0.02, 0.1}) {
        const int of = fault == "healthy" || fault == "oversubscribed" ? healthy : clusters;
        Clos::Score all;
        std::size_t rounds = 0;
        double seconds = 0;
        for (int i = 0; i < of; ++i) {
          Clos clos = Clos::with(nodes, fault, noise, static_cast<std::uint64_t>(i) + 1);
          const auto topology = known ? clos.topology() : one_switch(clos.names());
          const auto start = std::chrono::steady_clock::now();
          const auto result = find_path_faults(topology, std::ref(clos));
          seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
          const auto score = clos.score(result);
          all.planted += score.planted, all.found += score.found;
          all.misnamed += score.misnamed, all.untold += score.untold;
          rounds += result.rounds;
        }
        std::cout << fmt::format("| {} | {} | {} | {:.0f} % | {} | {} | {} | {:.1f} | {:.1f} |\n", nodes, fault,
                                 known ? "known" : "unknown", 100 * noise,
                                 all.planted == 0 ? "-" : fmt::format("{} of {}", all.found, all.planted), all.misnamed,
                                 all.untold, static_cast<double>(rounds) / of, 1000 * seconds / of)
                  << std::flush;
        // Which nodes share an unknown link cannot be told; a path is seen only where all are measured.
        const bool unknown_link = fault == "link" && !known, path = fault == "path";
        right = right && all.misnamed * 100 <= (path ? all.planted : 0) &&
                (unknown_link ? all.found == 0 && all.untold * 4 >= all.planted * 3
                              : (path && nodes > 32) || (all.found * 20 >= all.planted * 19 &&
                                                         all.untold * 10 <= (noise < 0.05 ? 0 : all.planted)));
      }
  std::cout << (right ? "" : "WRONG: a fault was not found, or something was named that is none\n");
  return right ? 0 : 1;
}
