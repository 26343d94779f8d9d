// limits.hpp: the CPUs and the memory that this process may use, and its limits.
//
// The folder node says what this machine is. It reads the kernel's files and not the output of commands (lscpu, ulimit,
// nvidia-smi): images lack them, and their formats change. All paths start at a root, so that tests read recorded
// trees.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/resource.h>

namespace multinode {

// The numbers of the CPUs that this process may run on (sched_getaffinity). Throws std::system_error.
std::vector<int> allowed_cpus();

// How many processes or threads can run at once: allowed_cpus(), or the quota of this process's cgroup, rounded down,
// if that is less; at least 1. Throws std::system_error.
int usable_cpus(const std::filesystem::path& root = "/");

// "0-2,8" -> {0, 1, 2, 8}: the kernel's lists of CPUs.
std::vector<int> cpus_in(const std::string& list);

// The lowest limits of this process's cgroup (`root`/proc/self/cgroup) and its ancestors, in cgroup versions 1 and 2.
// nullopt: unlimited, or not visible to this process.
struct Limits {
  std::optional<double> cpus;  // such as 1.5
  std::optional<std::int64_t> memory_bytes;
  // Processes that the kernel has killed for lack of memory: in the cgroup, and in the ancestor that has that limit.
  std::optional<std::int64_t> oom_kills;
};
Limits read_cgroup(const std::filesystem::path& root);

// Knows whether the kernel has killed a process of this cgroup for lack of memory since this object was made.
class OomWatch {
 public:
  explicit OomWatch(std::filesystem::path root = "/") : root_(std::move(root)), before_(read_cgroup(root_).oom_kills) {}
  // ": out of memory (limit 80 MiB)" if it has, "" if it has not, and `unknown` where no counter can be read.
  std::string reason(std::string_view unknown = "") const;
  static constexpr std::string_view see_dmesg = " (if for lack of memory, \"dmesg\" says it)";

 private:
  std::filesystem::path root_;
  std::optional<std::int64_t> before_;
};

// How long this thread was ready to run and had no CPU, so far; 0 if the kernel does not count that.
double seconds_without_a_cpu();

// This machine's memory.
std::int64_t memory_bytes();

// How much of it this process can use: memory_bytes(), or the limit of its cgroup if that is less.
std::int64_t usable_memory(const std::filesystem::path& root = "/");

// The soft limit of this process, such as that of RLIMIT_MEMLOCK. nullopt: unlimited. Throws std::system_error.
std::optional<rlim_t> soft_limit(__rlimit_resource resource);

}  // namespace multinode
