// limits.hpp: the CPUs and the memory that this process may use.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace multinode {

// Numbers of the CPUs that this process may run on (sched_getaffinity).
std::vector<int> allowed_cpus();

// The tightest limits on the way from this process's cgroup (ROOT/proc/self/cgroup) to the top, in versions 1 and 2.
// Nothing: unlimited, or not visible from here.
struct Limits {
  std::optional<double> cpus;  // such as 1.5
  std::optional<std::int64_t> memory_bytes;
};
Limits read_cgroup(const std::filesystem::path& root);

}  // namespace multinode
