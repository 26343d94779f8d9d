// granted.hpp: the CPUs and the memory that this process may use.
#pragma once

#include <cstddef>

namespace node_check {

// Undoes what a launcher bound this process to: the node is looked at, not a rank's part of it. What a cpuset withholds
// stays withheld.
void unbind();

// CPUs to compute on, and bytes of memory: this machine's, within the limits of this process.
std::size_t cpus_to_use();
double memory_bytes();

}  // namespace node_check
