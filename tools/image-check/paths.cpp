#include "commands.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/options.hpp>
#include <multinode/base/output.hpp>
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

// All pairs start at once, from this node. What is better than before counts.
void measure(const Cluster& cluster, const std::vector<Pair>& pairs, Matrix& matrix, std::ostream& out) {
  const std::chrono::seconds limit(30 + cluster.nodes.size() / 2);
  Command program = boost::program_options::split_unix(fmt::format(
      "--backend {0} -b {1} -e {1} -n 3 -N 4 --timeout {2} --json /dev/stdout", cluster.gpus > 0 ? "nccl" : "mpi",
      cluster.gpus > 0 ? "64M" : "1M", limit.count() / 3));  // fast networks need larger messages
  program.insert(program.begin(), cluster.path_of("02-mpi/alltoall_perf"));
  const auto variables = small_machine();
  std::vector<MemoryFile> outputs(pairs.size());
  std::deque<Processes> running;
  for (const auto& [a, b] : pairs)
    running.emplace_back(
        cluster.launch({cluster.nodes[a], cluster.nodes[b]}, cluster.processes_per_node, program, variables), variables,
        outputs[running.size()].path(), limit);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const Outcome outcome = running[i].end();
    // Of a pair that is so slow that its time is up, what it measured; of one that hangs, the benchmark says so.
    const double found = outcome.exit_status == 0 || outcome.timed_out ? best_bandwidth(outputs[i].text()) : 0;
    if (found == 0)
      out << cluster.nodes[pairs[i].first] << " - " << cluster.nodes[pairs[i].second]
          << (outcome.timed_out ? ": TIMED OUT\n" : ": FAILED\n") << outputs[i].text() << std::flush;
    auto& best = matrix[pairs[i]];
    best = std::max(best, found);
  }
}

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
  std::map<std::size_t, std::pair<int, int>> counts;  // of each node: slow pairs, all pairs
  for (const auto& [pair, value] : matrix)
    for (const auto node : {pair.first, pair.second})
      ++counts[node].second, counts[node].first += slow.pairs.contains(pair);
  for (const auto& [node, of] : counts)
    if (of.second > 1 && 4 * of.first > 3 * of.second) slow.nodes.insert(node);
  for (const auto& pair : slow.pairs)
    if (!slow.nodes.contains(pair.first) && !slow.nodes.contains(pair.second)) slow.others.insert(pair);
  return slow;
}

void print(const Matrix& matrix, const std::vector<std::string>& names, const SlowPaths& slow, std::ostream& out) {
  auto head = names;
  head.insert(head.begin(), "GB/s");
  multinode::Table table(head);
  for (std::size_t row = 0; row < names.size(); ++row) {
    std::vector<std::string> cells{names[row]};
    for (std::size_t column = 0; column < names.size(); ++column) {
      const auto at = matrix.find(std::minmax(row, column));
      if (at == matrix.end())
        cells.push_back("-");
      else
        cells.push_back((slow.pairs.contains(at->first) ? "*" : "") +
                        (at->second == 0 ? "failed" : fmt::format("{:.3g}", at->second)));
    }
    table.add(cells);
  }
  table.print(out);
}

int paths(int argc, char** argv, const std::string&) {
  namespace po = boost::program_options;
  ClusterOptions where;
  std::string json_file;
  double at_least = 50;
  po::options_description known("paths");
  known.add_options()  //
      ("at-least", po::value(&at_least)->value_name("PERCENT")->default_value(at_least),
       "of a good pair's bandwidth, else a pair is slow")  //
      ("json", po::value(&json_file)->value_name("FILE"), "file for a JSON object per pair and per finding");
  known.add(where.description());
  if (!multinode::parse_command_line(argc, argv, known, true)) return multinode::exit_right;
  multinode::require_range("at-least", at_least, 0.0, 100.0);
  auto& out = std::cout;
  const Cluster cluster = find_cluster(where);
  const auto& names = cluster.nodes;
  if (names.size() < 3)
    throw UsageError("paths: " + std::to_string(names.size()) +
                     " nodes cannot tell which one is bad: name three or more with --hosts");
  if (const auto differences = environment_differences(cluster, std::chrono::seconds(30)); !differences.empty())
    throw UsageError("paths: the environments differ: " + multinode::join(differences, "; "));
  multinode::JsonLines json(json_file);
  const auto rounds = rounds_of(names.size());
  Matrix matrix;
  for (const auto& round : rounds) measure(cluster, round, matrix, out);
  // What is slow has a second chance, with less beside it: other work on a node may have disturbed it.
  const auto suspects = find_slow(matrix, at_least / 100).pairs;
  for (auto round : rounds) {
    std::erase_if(round, [&](const Pair& pair) { return !suspects.contains(pair); });
    measure(cluster, round, matrix, out);
  }
  const auto slow = find_slow(matrix, at_least / 100);
  if (names.size() <= all_pairs_up_to) print(matrix, names, slow, out);
  out << fmt::format("{} of {} pairs measured; good ones have {:.3g} GB/s, and less than {:.3g} is slow\n",
                     matrix.size(), names.size() * (names.size() - 1) / 2, slow.good, slow.limit);
  const auto pair_name = [&](const Pair& pair) { return names[pair.first] + " - " + names[pair.second]; };
  for (const auto& [pair, value] : matrix) json.write({{"pair", pair_name(pair)}, {"gb_per_s", value}});
  const auto tell = [&](const std::string& what, const std::string& host) {
    multinode::say("image-check", what);
    json.write({{"what", "path"}, {"ok", false}, {"why", what}, {"host", host}});
  };
  for (const auto node : slow.nodes)
    tell("node " + names[node] + ": more than 3 of 4 of its pairs are slow", names[node]);
  for (const auto& pair : slow.others)
    tell(
        "pair " + pair_name(pair) + (matrix.at(pair) == 0 ? ": failed" : fmt::format(": {:.3g} GB/s", matrix.at(pair))),
        "the network");
  if (!slow.pairs.empty()) return multinode::exit_wrong;
  out << "no node or pair is slow\n";
  return multinode::exit_right;
}

}  // namespace image_check
