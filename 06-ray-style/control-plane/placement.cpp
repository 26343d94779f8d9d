#include "placement.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace cluster {

namespace {

int room_on(const Slots& free, const Slots& each) {
  const int by_cpus = free.cpus / each.cpus;
  return each.gpus > 0 ? std::min(by_cpus, free.gpus / each.gpus) : by_cpus;
}

std::vector<int> room_on_all(std::span<const Slots> free, const Slots& each) {
  std::vector<int> rooms;
  for (const Slots& node : free) rooms.push_back(room_on(node, each));
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

std::vector<int> place(std::span<const Slots> free, int workers, Slots each, Placement placement) {
  const std::vector<int> rooms = room_on_all(free, each);
  if (std::accumulate(rooms.begin(), rooms.end(), std::int64_t{0}) < workers) return {};
  return placement == SPREAD ? spread(rooms, workers) : pack(rooms, workers);
}

int room(std::span<const Slots> free, Slots each) {
  const std::vector<int> rooms = room_on_all(free, each);
  return std::accumulate(rooms.begin(), rooms.end(), 0);
}

std::string why_not(Slots free, Slots all, int room, int workers, Slots each) {
  const std::string who = counted(workers, "worker") + (workers == 1 ? " wants " : " want ");
  for (const auto& [member, name] : {std::pair(&Slots::cpus, "CPU"), std::pair(&Slots::gpus, "GPU")}) {
    const std::int64_t wanted = std::int64_t{workers} * (each.*member), sum = free.*member, sum_of_all = all.*member;
    const std::string want = who + counted(wanted, name) + ", ";
    if (sum_of_all < wanted)
      return want + "the cluster has " + (sum_of_all ? "only " + std::to_string(sum_of_all) : "none");
    if (sum < wanted)
      return want + std::to_string(sum) + " of " + std::to_string(sum_of_all) + (sum == 1 ? " is free" : " are free");
  }
  return "each worker wants " + counted(each.cpus, "CPU") + (each.gpus > 0 ? " and " + counted(each.gpus, "GPU") : "") +
         " on one node: there is room for " + std::to_string(room) + " of " + std::to_string(workers);
}

std::string counted(std::int64_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

}  // namespace cluster
