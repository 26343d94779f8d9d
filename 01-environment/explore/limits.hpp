// limits.hpp: how much this process may use, and whether it is in a container.
#pragma once

#include <multinode/launch.hpp>

#include <nlohmann/json_fwd.hpp>

#include <filesystem>

namespace explore {

// Members memlock_bytes and open_files (soft limits; null: unlimited), shm_bytes (size of /dev/shm; null: none).
nlohmann::json read_limits();

// Bytes of memory in ROOT/proc/meminfo, or null.
nlohmann::json read_memory(const std::filesystem::path& root);

// Members cpus (a number of CPUs, such as 1.5) and memory_bytes: the tightest limit on the way from this process's
// cgroup (ROOT/proc/self/cgroup) to the top, in versions 1 and 2; null: unlimited, or not visible from here.
nlohmann::json read_cgroup(const std::filesystem::path& root);

// An array of {kind, found}: the traces of a container: the name of a file or of a variable, never a variable's value.
// Empty: no container was detected.
nlohmann::json read_container(const std::filesystem::path& root, const multinode::Environment& environment);

}  // namespace explore
