// path_faults.hpp: what is wrong between nodes? Found from rounds in which disjoint pairs of nodes are measured at
// once.
#pragma once

#include "topology.hpp"

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace image_check {

using Pair = std::pair<std::size_t, std::size_t>;  // of nodes, by number

// Of each pair its bandwidth in GB/s; nothing: it failed. Pairs of one call share no node: they run at once.
using MeasurePairs = std::function<std::vector<std::optional<double>>(const std::vector<Pair>& pairs)>;

enum class Fault {
  node = 1,  // or its link
  path,      // between two nodes that are fast with all others
  uplink,    // of a switch, towards the root
  between,   // two switches below the same one
  inside,    // a switch, or its links to several of those below it
  split,     // sets of nodes that no known switch separates
  unknown,
};

struct PathVerdict {
  Fault fault = Fault::unknown;
  Nodes one{}, other{};   // nodes, sorted: between these and those it is slow, or nothing works
  double confidence = 0;  // that it is this, and no other explanation
  std::string text{};
};

struct PathFaults {
  std::vector<PathVerdict> verdicts;
  std::size_t rounds = 0, paths = 0;  // calls, and pairs that were measured at least once
  double good = 0;                    // GB/s of good pairs
  double noise = 0;                   // standard deviation of one pair's bandwidth, as part of it
  double limit = 0;                   // a pair is slow below this part of the good ones
  bool contention = false;            // no fault: pairs are slow only while others send
};

// Up to 32 nodes, all pairs are measured; else a few random rounds within the switches of each level and over all, so
// that a single bad path is seen only by chance. More rounds follow while explanations compete. The explanation is the
// likeliest set of faults, where each has a part of its pairs slow (not all where ECMP spreads them over links).
// A pair is slow below `at_least` of what good ones have, or below what noise explains.
PathFaults find_path_faults(const Topology& topology, const MeasurePairs& measure, double at_least = 0.5);

}  // namespace image_check
