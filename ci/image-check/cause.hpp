// cause.hpp: one thing that is wrong with this node, and fails many checks.
#pragma once

#include "cluster.hpp"

#include <string>

namespace image_check {

// What a program of MPI, Gloo or NCCL needs before it can do anything: limits, shared memory, temporary space, the
// loopback interface, its libraries, the launcher. In a few words, with what to do; "": nothing of that is wrong.
std::string common_cause(const Cluster& cluster);

}  // namespace image_check
