// placement.hpp: which nodes the workers of a job go to.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

namespace cluster {

// All or nothing: how many workers go to each of these nodes, given the CPUs that are free there; empty if they do not
// all fit. They take as few nodes as possible.
inline std::vector<int> place(int workers, std::vector<int> free) {
  std::vector<int> counts(free.size());
  if (std::accumulate(free.begin(), free.end(), 0L) < workers) return {};
  while (workers > 0) {
    // The smallest node that takes all the rest, else the largest.
    const auto better = [&](int a, int b) { return a >= workers && b >= workers ? a < b : a > b; };
    const auto node = std::min_element(free.begin(), free.end(), better);
    const int count = std::min(*node, workers);
    counts[static_cast<std::size_t>(node - free.begin())] = count;
    workers -= count;
    *node = 0;
  }
  return counts;
}

}  // namespace cluster
