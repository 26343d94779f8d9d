#include "commands.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/options.hpp>
#include <multinode/base/program_options.hpp>
#include <multinode/world/report.hpp>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <deque>
#include <iostream>
#include <sstream>

namespace image_check {
namespace {

using multinode::UsageError;

constexpr std::size_t all_pairs_up_to = 32;

// Both libraries' names for "this network only".
Variables rail_variables(const std::string& rail) {
  if (rail.empty()) return {};
  if (std::filesystem::exists("/sys/class/infiniband/" + rail))
    return {{"NCCL_IB_HCA", "=" + rail}, {"UCX_NET_DEVICES", rail + ":1"}};
  return {{"OMPI_MCA_btl_tcp_if_include", rail},
          {"NCCL_SOCKET_IFNAME", "=" + rail},
          {"NCCL_IB_DISABLE", "1"},
          {"UCX_NET_DEVICES", rail}};
}

// The best median of the cycles, in the output of a benchmark whose JSON lines went there, too: its rank 0 may be on
// another host, and its launcher may put something before each line. Other work on the nodes makes a cycle slower, and
// nothing makes it faster than the network.
double best_bandwidth(const std::string& output) {
  double best = 0;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    const auto row = nlohmann::json::parse(line.substr(std::min(line.find('{'), line.size())), nullptr, false);
    if (row.is_object() && row.contains("busbw_gb_per_s"))
      best = std::max(best, row.at("busbw_gb_per_s").get<double>() * row.at("time_us").get<double>() /
                                row.at("median_us").get<double>());
  }
  return best;
}

// One way to reach the nodes: over all devices, or over one rail.
class Measuring {
 public:
  Measuring(const Cluster& cluster, const std::string& rail, const std::string& bytes)
      : cluster_(cluster), rail_(rail), limit_(30 + static_cast<long>(cluster.nodes.size()) / 2) {
    const std::string backend = cluster.gpus > 0 ? "nccl" : cluster.launcher != "mnrun" ? "mpi" : "gloo";
    program_ = boost::program_options::split_unix(fmt::format(
        "--backend {0} -b {1} -e {1} -n 3 -N 4 --timeout {2} --json /dev/stdout", backend, bytes, limit_.count() / 3));
    program_.insert(program_.begin(), cluster.path_of("02-mpi/alltoall_perf"));
  }

  // All pairs start at once, from this node. What is better than before counts.
  void measure(const std::vector<Pair>& pairs, Matrix& matrix, std::ostream& out) const {
    std::deque<Processes> running;
    std::vector<MemoryFile> outputs(pairs.size());
    Variables variables = small_machine();
    for (const auto& [name, value] : rail_variables(rail_)) variables[name] = value;
    for (const auto& [a, b] : pairs)
      running.emplace_back(
          cluster_.launch({cluster_.nodes[a], cluster_.nodes[b]}, cluster_.processes_per_node, program_, variables),
          variables, outputs[running.size()].path(), limit_);
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const Outcome outcome = running[i].end();
      // Of a pair that is so slow that its time is up, what it measured; of one that hangs, the benchmark says so.
      const double found = outcome.exit_status == 0 || outcome.timed_out ? best_bandwidth(outputs[i].text()) : 0;
      if (found == 0)
        out << cluster_.nodes[pairs[i].first] << " - " << cluster_.nodes[pairs[i].second]
            << (outcome.timed_out ? ": TIMED OUT\n" : ": FAILED\n") << outputs[i].text() << std::flush;
      auto& best = matrix[pairs[i]];
      best = std::max(best, found);
    }
  }

 private:
  const Cluster& cluster_;
  std::string rail_;
  std::chrono::seconds limit_;
  Command program_;
};

}  // namespace

std::vector<std::vector<Pair>> rounds_of(std::size_t nodes) {
  // One stays, the others move on by a place in each round (the circle method); of an odd number, one rests.
  const std::size_t places = nodes + nodes % 2, moving = places - 1;
  std::vector<std::vector<Pair>> rounds(nodes > all_pairs_up_to ? 8 : moving);
  for (std::size_t round = 0; round < rounds.size(); ++round)
    for (std::size_t i = 0; i < places / 2; ++i) {
      const std::size_t a = i == 0 ? moving : (round + i) % moving, b = (round + moving - i) % moving;
      if (std::max(a, b) < nodes) rounds[round].push_back(std::minmax(a, b));
    }
  return rounds;
}

SlowPaths find_slow(const Matrix& matrix, double at_least) {
  SlowPaths slow;
  std::vector<double> sorted;
  for (const auto& [pair, value] : matrix) sorted.push_back(value);
  std::ranges::sort(sorted);
  if (!sorted.empty()) slow.good = sorted[(3 * (sorted.size() - 1) + 3) / 4];
  slow.limit = slow.good * at_least;
  for (const auto& [pair, value] : matrix)
    if (value == 0 || value < slow.limit) slow.pairs.insert(pair);
  slow.others = slow.pairs;
  for (Matrix rest = matrix;;) {  // the worst node, then the worst of what it leaves
    struct Count {
      double slow = 0, all = 0;
      double share() const { return all < 2 ? 0 : slow / all; }
    };
    std::map<std::size_t, Count> counts;
    for (const auto& [pair, value] : rest)
      for (const auto node : {pair.first, pair.second})
        ++counts[node].all, counts[node].slow += slow.pairs.contains(pair);
    const auto worst = std::ranges::max_element(counts, {}, [](const auto& of_node) { return of_node.second.share(); });
    if (worst == counts.end() || worst->second.share() <= 0.75) break;
    const auto has_it = [node = worst->first](const Pair& pair) { return pair.first == node || pair.second == node; };
    slow.nodes.push_back(worst->first);
    std::erase_if(slow.others, has_it);
    std::erase_if(rest, [&](const auto& one) { return has_it(one.first); });
  }
  return slow;
}

std::string text_of(const Matrix& matrix, const std::vector<std::string>& names, const SlowPaths& slow) {
  std::size_t width = 4;
  for (const auto& name : names) width = std::max(width, name.size());
  std::string text = fmt::format("{:{}}", "GB/s", width);
  for (const auto& name : names) text += fmt::format("  {:>{}}", name, std::max<std::size_t>(name.size(), 9));
  for (std::size_t row = 0; row < names.size(); ++row) {
    text += fmt::format("\n{:{}}", names[row], width);
    for (std::size_t column = 0; column < names.size(); ++column) {
      const auto at = matrix.find(std::minmax(row, column));
      std::string cell = at == matrix.end() ? "-" : at->second == 0 ? "failed" : fmt::format("{:.3g}", at->second);
      if (at != matrix.end() && slow.pairs.contains(at->first)) cell = "*" + cell;
      text += fmt::format("  {:>{}}", cell, std::max<std::size_t>(names[column].size(), 9));
    }
  }
  return text + "\n";
}

int paths(const PathsOptions& options, std::ostream& out) {
  const Cluster cluster = find_cluster(options.cluster);
  const auto& names = cluster.nodes;
  if (names.size() < 3)
    throw UsageError("paths: " + std::to_string(names.size()) +
                     " nodes cannot tell which one is bad: name three or more with --hosts");
  if (cluster.gpus == 0 && cluster.launcher == "mnrun" && !options.rails.empty())
    throw UsageError("--rails: mnrun's Gloo does not choose a network: add --launcher mpirun");
  multinode::JsonLines json(options.json);
  const auto rails =
      options.rails.empty() ? std::vector<std::string>{""} : options.rails;  // "": as the libraries choose
  const std::string bytes = cluster.gpus > 0 ? "64M" : "1M";                 // fast networks need more
  bool right = true;
  for (const auto& rail : rails) {
    const std::string over = rail.empty() ? "" : " over " + rail;
    const Measuring measuring(cluster, rail, bytes);
    const auto rounds = rounds_of(names.size());
    Matrix matrix;
    for (const auto& round : rounds) measuring.measure(round, matrix, out);
    // What is slow has a second chance, with less beside it: other work on a node may have disturbed it.
    const auto suspects = find_slow(matrix, options.at_least / 100).pairs;
    for (auto round : rounds) {
      std::erase_if(round, [&](const Pair& pair) { return !suspects.contains(pair); });
      measuring.measure(round, matrix, out);
    }
    const auto slow = find_slow(matrix, options.at_least / 100);
    if (names.size() <= all_pairs_up_to) out << text_of(matrix, names, slow);
    out << fmt::format("{} of {} pairs measured{}; good ones have {:.3g} GB/s, and less than {:.3g} is slow\n",
                       matrix.size(), names.size() * (names.size() - 1) / 2, over, slow.good, slow.limit);
    const auto pair_name = [&](const Pair& pair) { return names[pair.first] + " - " + names[pair.second]; };
    for (const auto& [pair, value] : matrix)
      json.write({{"pair", pair_name(pair)}, {"over", rail.empty() ? "" : ", " + rail}, {"gb_per_s", value}});
    const auto tell = [&](const std::string& what, const std::string& host) {
      std::cerr << "image-check: " + what + over + "\n";
      json.write({{"what", "path"}, {"ok", false}, {"why", what + over}, {"host", host}});
      right = false;
    };
    for (const auto node : slow.nodes)
      tell("node " + names[node] + ": more than 3 of 4 of its pairs are slow", names[node]);
    constexpr std::size_t most = 20;
    for (std::size_t told = 0; const auto& pair : slow.others)
      if (++told <= most)
        tell("pair " + pair_name(pair) +
                 (matrix.at(pair) == 0 ? ": failed" : fmt::format(": {:.3g} GB/s", matrix.at(pair))),
             "the network");
    if (slow.others.size() > most) tell(fmt::format("and {} more pairs", slow.others.size() - most), "the network");
  }
  if (right) out << "no node or pair is slow\n";
  return right ? multinode::exit_right : multinode::exit_wrong;
}

}  // namespace image_check
