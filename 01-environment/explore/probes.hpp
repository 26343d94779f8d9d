// probes.hpp: what a process sees of its node, as the JSON that reference.md describes.
#pragma once

#include <multinode/launch.hpp>

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace explore {

// Members cpu, threads, memory_bytes, gpus, rdma, network, versions, limits, cgroup, container. null: unlimited, or the
// kernel does not tell. Tests read another `root` than "/". No value of `environment` appears in it.
nlohmann::json read_node(const multinode::Environment& environment, const std::filesystem::path& root = "/");

// These CPUs, the cores and NUMA nodes that they belong to, and the whole machine, by hwloc.
// `synthetic`: a topology in hwloc's notation ("numa:2 core:4 pu:2") instead of this machine's, for tests.
nlohmann::json read_cpu(const std::vector<int>& cpus, const std::string& synthetic = "");

// How many threads OpenMP's runtimes will start, and the variable or CPU set that determines it.
nlohmann::json predict_threads(const multinode::Environment& environment, std::size_t cpus);

// Does this node have a file, a command, a library? Finds what is installed on the head node only.
struct Required {
  std::vector<std::string> files, commands, libraries;
};

// An array of {kind, name, found, problem}: found is the path (the name, for a library), or null; problem says why.
// `path` is the PATH to look for commands in. Libraries are loaded, as a program would.
nlohmann::json find_required(const Required& required, const std::string& path);

}  // namespace explore
