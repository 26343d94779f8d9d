// placement.hpp: which nodes the workers of a job go to.
#pragma once

#include "cluster/cluster.pb.h"

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

// A line that says why they do not fit: "8 workers want 8 CPUs, 6 of 8 are free". `all`: what the same nodes have.
std::string why_not(std::span<const Slots> free, std::span<const Slots> all, int workers, Slots each);

// "1 CPU", "2 CPUs"
std::string counted(std::int64_t count, const std::string& what);

}  // namespace cluster
