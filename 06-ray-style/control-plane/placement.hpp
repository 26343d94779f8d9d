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

// All or nothing: how many workers, of which each takes a CPU and `gpus` GPUs, go to each of these nodes, given what is
// free there; empty if they do not all fit. PACK takes as few nodes as possible, and for the rest the node that it
// fills best; SPREAD gives one to each in turn. `workers` is at least 1.
std::vector<int> place(std::span<const Slots> free, int workers, int gpus, Placement placement);

// How many workers fit in all.
int room(std::span<const Slots> free, int gpus);

// A line that says why they do not fit: "8 workers want 8 CPUs, 6 of 8 are free". `free` and `all` are sums over the
// nodes.
std::string why_not(Slots free, Slots all, int room, int workers, int gpus);

// "1 CPU", "2 CPUs"
std::string counted(std::int64_t count, const std::string& what);

}  // namespace cluster
