// placement.hpp: which nodes the workers of a job go to.
#pragma once

#include "control-plane/cluster.pb.h"

#include <span>
#include <string>
#include <vector>

namespace cluster {

struct Slots {
  int cpus = 0, gpus = 0;
};
inline Slots operator+(Slots a, Slots b) { return {a.cpus + b.cpus, a.gpus + b.gpus}; }
inline Slots operator-(Slots a, Slots b) { return {a.cpus - b.cpus, a.gpus - b.gpus}; }

Slots sum(std::span<const Slots> nodes);
// What `workers` workers of a job take.
inline Slots slots_of(const Job& job, int workers) { return {workers, workers * job.gpus_per_worker()}; }
// All workers fit, if it does not matter on which node each slot is.
bool fits(const Job& job, Slots sum);
// All workers fit.
bool fits(const Job& job, std::span<const Slots> free);

// All or nothing: how many workers, of which each takes a CPU and its GPUs, go to each of these nodes, given what is
// free there; empty if they do not all fit. PACK takes as few nodes as possible, and for the rest the node that it
// fills best; SPREAD gives one to each in turn.
std::vector<int> place(const Job& job, std::span<const Slots> free);

// A line that says why they do not fit: "8 workers want 8 CPUs, 6 of 8 are free".
std::string why_not(const Job& job, std::span<const Slots> free, std::span<const Slots> all);

// "1 CPU", "2 CPUs"
std::string counted(std::int64_t count, const std::string& what);

}  // namespace cluster
