#include "placement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <tuple>

namespace cluster {

namespace {

// How many workers fit on each node.
std::vector<int> rooms_of(const Job& job, std::span<const Slots> free) {
  const int gpus = job.gpus_per_worker();
  std::vector<int> rooms;
  for (const Slots& node : free) rooms.push_back(gpus > 0 ? std::min(node.cpus, node.gpus / gpus) : node.cpus);
  return rooms;
}

int sum_of(const std::vector<int>& rooms) { return std::accumulate(rooms.begin(), rooms.end(), 0); }

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

Slots sum(std::span<const Slots> nodes) { return std::accumulate(nodes.begin(), nodes.end(), Slots()); }

bool fits(const Job& job, Slots sum) {
  const Slots wanted = slots_of(job, job.num_workers());
  return wanted.cpus <= sum.cpus && wanted.gpus <= sum.gpus;
}

bool fits(const Job& job, std::span<const Slots> free) { return job.num_workers() <= sum_of(rooms_of(job, free)); }

std::vector<int> place(const Job& job, std::span<const Slots> free) {
  if (!fits(job, free)) return {};
  const std::vector<int> rooms = rooms_of(job, free);
  return job.placement() == SPREAD ? spread(rooms, job.num_workers()) : pack(rooms, job.num_workers());
}

std::string why_not(const Job& job, std::span<const Slots> free, std::span<const Slots> all) {
  if (all.empty()) return "the cluster has no nodes";
  const int workers = job.num_workers();
  const Slots wanted = slots_of(job, workers), left = sum(free), most = sum(all);
  const std::string who = counted(workers, "worker") + (workers == 1 ? " wants " : " want ");
  for (const auto& [want, free_now, at_most, name] :
       {std::tuple(wanted.cpus, left.cpus, most.cpus, "CPU"), {wanted.gpus, left.gpus, most.gpus, "GPU"}}) {
    if (at_most < want)
      return fmt::format("{}{}, the cluster has {}", who, counted(want, name),
                         at_most ? fmt::format("only {}", at_most) : "none");
    if (free_now < want)
      return fmt::format("{}{}, {} of {} {} free", who, counted(want, name), free_now, at_most,
                         free_now == 1 ? "is" : "are");
  }
  return fmt::format("each worker wants 1 CPU and {} on one node: there is room for {} of {}",
                     counted(job.gpus_per_worker(), "GPU"), sum_of(rooms_of(job, free)), workers);
}

std::string counted(std::int64_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

}  // namespace cluster
