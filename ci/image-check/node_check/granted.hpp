// granted.hpp: the CPUs and the memory that this process may use.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

namespace node_check {

// Undoes what a launcher bound this process to: the node is looked at, not a rank's part of it. What a cpuset withholds
// stays withheld.
void unbind();

std::vector<int> allowed_cpus();

// The tightest limits on the way from this process's cgroup (ROOT/proc/self/cgroup) to the top, in versions 1 and 2.
struct Limits {
  std::optional<double> cpus;
  std::optional<double> memory;  // bytes
};
Limits read_cgroup(const std::filesystem::path& root);

// CPUs to compute on, and bytes of memory: this machine's, within those limits.
std::size_t cpus_to_use();
double memory_bytes();

}  // namespace node_check
