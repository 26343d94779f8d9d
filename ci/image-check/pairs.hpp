// pairs.hpp: which node is bad? All nodes in pairs at once; then those of slow pairs once more, each with a good one.
#pragma once

#include "cluster.hpp"

#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace image_check {

using Pair = std::pair<std::size_t, std::size_t>;  // of nodes, by number

// Of each pair its bandwidth in GB/s; nothing: it failed. Pairs of one call share no node: they can run at once.
using MeasurePairs = std::function<std::vector<std::optional<double>>(int round, const std::vector<Pair>& pairs)>;

struct BadNodes {
  std::vector<std::size_t> bad;      // each was slow, or failed, in both rounds, the second time with a good node
  std::vector<std::size_t> unknown;  // were in a slow pair, and no good node was left to try them with
  double good = 0;                   // GB/s of the best pair
};

// Two rounds, however many nodes: round 1 has every node in a pair (with an odd number the last one in a second call,
// with node 0; three nodes in all three pairs), round 2 has those of slow pairs, each with a node of a pair that was
// good. As many calls as there are suspects to a good node. A pair is slow below `at_least` of the best pair's
// bandwidth.
BadNodes find_bad_nodes(std::size_t nodes, const MeasurePairs& measure, double at_least = 0.5);

// Two RDMA devices with an active port or more, by `sysfs`: measured one by one, so that a dead one of eight shows.
// Else none.
std::vector<std::string> rdma_rails(const std::filesystem::path& sysfs = "/sys");

// What part of the best pair's bandwidth a pair must have if each node has so many network devices: a pair that lacks
// one of eight has 7/8, so 15/16. Of one device half: noise and topology explain less.
double least_share(std::size_t devices);

struct PairsOptions {
  ClusterOptions cluster;
  std::string json;                // file for a line a pair
  std::vector<std::string> rails;  // network interfaces or HCAs, each measured separately; none: rdma_rails()
  double at_least = 0;             // percent of the best pair's bandwidth; 0: least_share()
};
// Measures with chapter 02's alltoall_perf: all processes of one node send to all of the other, over all devices.
// Returns exit_right, or exit_wrong, naming bad nodes and rails on standard error. Throws multinode::UsageError for
// less than three nodes.
int pairs(const PairsOptions& options, std::ostream& out);

}  // namespace image_check
