// paths.hpp: how fast is each pair of nodes? A matrix, in which slow pairs are marked and bad nodes named.
#pragma once

#include "cluster.hpp"

#include <map>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace image_check {

using Pair = std::pair<std::size_t, std::size_t>;  // of nodes, by number, the lower one first
using Matrix = std::map<Pair, double>;             // GB/s of each pair that was measured; 0: it failed

// Rounds of pairs that share no node, so that those of a round can be measured at once. Together all pairs of up to 32
// nodes; of more nodes, 8 rounds.
std::vector<std::vector<Pair>> rounds_of(std::size_t nodes);

struct SlowPaths {
  double good = 0,
         limit = 0;  // GB/s: what three quarters of the pairs do not exceed, and the part of it that is enough
  std::vector<std::size_t> nodes;  // of whose pairs more than three quarters are below the limit
  std::set<Pair> pairs, others;    // below the limit: all of them, and those without these nodes
};
// The upper quartile stands for what is good, not the median, because a slow link in the middle slows most pairs.
SlowPaths find_slow(const Matrix& matrix, double at_least);

// A table with a row and a column per node. `*` marks slow pairs.
std::string text_of(const Matrix& matrix, const std::vector<std::string>& names, const SlowPaths& slow);

struct PathsOptions {
  ClusterOptions cluster;
  std::string json;  // file for a line per pair, and one per finding
  std::vector<std::string>
      rails;             // network interfaces or HCAs, each measured separately; none: as the libraries choose
  double at_least = 50;  // percent of a good pair's bandwidth
};
// Measures with chapter 02's alltoall_perf: all processes of one node send to all of the other, over all devices, then
// over each rail. Returns exit_right, or exit_wrong, naming nodes, pairs and rails on standard error. Throws
// multinode::UsageError for less than three nodes.
int paths(const PathsOptions& options, std::ostream& out);

}  // namespace image_check
