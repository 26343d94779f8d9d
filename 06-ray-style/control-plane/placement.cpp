#include "placement.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <tuple>

namespace cluster {

namespace {

std::vector<int> rooms_of(std::span<const Slots> free, int gpus) {
  std::vector<int> rooms;
  for (const Slots& node : free) rooms.push_back(gpus > 0 ? std::min(node.cpus, node.gpus / gpus) : node.cpus);
  return rooms;
}

std::vector<int> pack(const std::vector<int>& rooms, int workers) {
  std::vector<std::size_t> largest(rooms.size());
  std::iota(largest.begin(), largest.end(), std::size_t{0});
  std::stable_sort(largest.begin(), largest.end(), [&](auto a, auto b) { return rooms[a] > rooms[b]; });
  std::vector<int> counts(rooms.size());
  for (auto node = largest.begin(); workers > 0; ++node) {
    if (rooms[*node] >= workers) {  // the last: of those with room for the rest, one with the least, the first of them
      const int least = rooms[*std::prev(
          std::partition_point(node, largest.end(), [&](auto candidate) { return rooms[candidate] >= workers; }))];
      node = std::find_if(node, largest.end(), [&](auto candidate) { return rooms[candidate] == least; });
    }
    counts[*node] = std::min(rooms[*node], workers);
    workers -= counts[*node];
  }
  return counts;
}

std::vector<int> spread(const std::vector<int>& rooms, int workers) {
  std::vector<int> counts(rooms.size());
  while (workers > 0)
    for (std::size_t node = 0; node < rooms.size() && workers > 0; ++node)
      if (counts[node] < rooms[node]) {
        ++counts[node];
        --workers;
      }
  return counts;
}

}  // namespace

int room(std::span<const Slots> free, int gpus) {
  const std::vector<int> rooms = rooms_of(free, gpus);
  return std::accumulate(rooms.begin(), rooms.end(), 0);
}

std::vector<int> place(std::span<const Slots> free, int workers, int gpus, Placement placement) {
  if (room(free, gpus) < workers) return {};
  const std::vector<int> rooms = rooms_of(free, gpus);
  return placement == SPREAD ? spread(rooms, workers) : pack(rooms, workers);
}

std::string why_not(Slots free, Slots all, int room, int workers, int gpus) {
  const std::string who = counted(workers, "worker") + (workers == 1 ? " wants " : " want ");
  for (const auto& [wanted, sum, sum_of_all, name] : {std::tuple(std::int64_t{workers}, free.cpus, all.cpus, "CPU"),
                                                      {std::int64_t{workers} * gpus, free.gpus, all.gpus, "GPU"}}) {
    const std::string want = who + counted(wanted, name) + ", ";
    if (sum_of_all < wanted)
      return want + "the cluster has " + (sum_of_all ? "only " + std::to_string(sum_of_all) : "none");
    if (sum < wanted)
      return want + std::to_string(sum) + " of " + std::to_string(sum_of_all) + (sum == 1 ? " is free" : " are free");
  }
  return "each worker wants 1 CPU and " + counted(gpus, "GPU") + " on one node: there is room for " +
         std::to_string(room) + " of " + std::to_string(workers);
}

std::string counted(std::int64_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

}  // namespace cluster
