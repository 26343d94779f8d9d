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

// All or nothing: how many workers, of whom each takes `each`, go to each of these nodes, given what is free there;
// empty where they do not all fit. PACK takes as few nodes as possible, and for the rest the node that it fills best;
// SPREAD gives one to each in turn. `workers` and `each.cpus` are at least 1.
std::vector<int> place(std::span<const Slots> free, int workers, Slots each, Placement placement);

// How many workers fit in all.
int room(std::span<const Slots> free, Slots each);

// A line that says why they do not fit: "8 workers want 8 CPUs, 6 of 8 are free". `free` and `all` are sums over the
// nodes.
std::string why_not(Slots free, Slots all, int room, int workers, Slots each);

// "1 CPU", "2 CPUs"
std::string counted(std::int64_t count, const std::string& what);

}  // namespace cluster
