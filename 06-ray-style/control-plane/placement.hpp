// placement.hpp: which nodes the workers of a job go to.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace cluster {

// All or nothing: how many workers go to each of these nodes, given the CPUs that are free there; empty if they do not
// all fit. Packed, they take as few nodes as possible; spread, each node in turn gets one.
std::vector<int> place(int workers, bool spread, std::span<const int> free);

// "1 CPU", "2 CPUs"
std::string counted(long count, const std::string& what);

}  // namespace cluster
