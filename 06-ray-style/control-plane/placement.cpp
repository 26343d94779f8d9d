#include "placement.hpp"

#include <algorithm>
#include <numeric>

namespace cluster {

std::vector<int> place(int workers, bool spread, std::span<const int> free) {
  std::vector<int> rooms(free.begin(), free.end()), counts(free.size());
  if (std::accumulate(rooms.begin(), rooms.end(), 0L) < workers) return {};
  while (workers > 0) {
    if (spread) {
      for (std::size_t node = 0; node < rooms.size() && workers > 0; ++node)
        if (counts[node] < rooms[node]) ++counts[node], --workers;
      continue;
    }
    // The smallest node that takes all the rest, else the largest.
    const auto better = [&](int a, int b) { return a >= workers && b >= workers ? a < b : a > b; };
    const auto node = std::min_element(rooms.begin(), rooms.end(), better);
    const int count = std::min(*node, workers);
    counts[static_cast<std::size_t>(node - rooms.begin())] = count;
    workers -= count;
    *node = 0;
  }
  return counts;
}

std::string counted(long count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

}  // namespace cluster
