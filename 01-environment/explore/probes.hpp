// probes.hpp: what a process sees of its node. For tests the probes of files take another `root` than "/".
#pragma once

#include <multinode/launch.hpp>

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace explore {

// topology.cpp: the CPUs of this process, the cores and NUMA nodes that they belong to (hwloc), and how many threads
// the libraries will start on them.

// Members allowed, count, cores, numa_nodes (of those CPUs), and machine: {model, cpus, cores, packages, numa_nodes}.
// `synthetic`: a topology in hwloc's notation ("numa:2 core:4 pu:2") instead of this machine's, for tests.
nlohmann::json read_cpu(const std::vector<int>& cpus, const std::string& synthetic = "");

// Members openmp, openmp_from: the number of threads and the variable or CPU set that determines it, by the rules of
// OpenMP's runtimes.
nlohmann::json predict_threads(const multinode::Environment& environment, std::size_t cpus);

// gpus.cpp

// Version of NVIDIA's kernel driver, from ROOT/proc/driver/nvidia/version; "none" if it is not loaded.
std::string nvidia_driver(const std::filesystem::path& root);

// The node's GPUs, as the driver lists them in ROOT/proc/driver/nvidia/gpus: an array of {name, uuid, pci}.
nlohmann::json gpus_of_driver(const std::filesystem::path& root);

// Members: driver; devices, an array of {name, uuid, pci, memory_bytes}; none_because if devices is empty. Devices come
// from CUDA, in its order and limited by CUDA_VISIBLE_DEVICES; in a build without CUDA, from the driver.
nlohmann::json read_gpus(const std::filesystem::path& root);

// network.cpp

// ROOT/sys/class/net: an array of {name, state, speed_mbit, mtu, addresses}; null if the kernel does not provide a
// value. `addresses` of each interface, as "10.0.0.3/24".
nlohmann::json read_interfaces(const std::filesystem::path& root,
                               const std::map<std::string, std::vector<std::string>>& addresses);

// ROOT/sys/class/infiniband: an array with one element per port, {device, port, state, rate, link_layer, interface,
// firmware}. interface: the network interface of a RoCE port.
nlohmann::json read_rdma(const std::filesystem::path& root);

// limits.cpp: how much this process may use, and whether it is in a container.

// Members memlock_bytes and open_files (soft limits; null: unlimited), shm_bytes (size of /dev/shm; null: none).
nlohmann::json read_limits();

// Bytes of memory in ROOT/proc/meminfo, or null.
nlohmann::json read_memory(const std::filesystem::path& root);

// Members cpus and memory_bytes of multinode::read_cgroup(); null: unlimited, or not visible from here.
nlohmann::json read_cgroup(const std::filesystem::path& root);

// An array of {kind, found}: the traces of a container: the name of a file or of a variable, never a variable's value.
// Empty: no container was detected.
nlohmann::json read_container(const std::filesystem::path& root, const multinode::Environment& environment);

// versions.cpp: {name: version}: the versions that World compares, and the kernel and the distribution
// (ROOT/etc/os-release).
nlohmann::json read_versions(const std::filesystem::path& root);

// required.cpp: does this node have a file, a command, a library? Finds what is installed on the head node only.
struct Required {
  std::vector<std::string> files, commands, libraries;
};

// An array of {kind, name, found, problem}: found is the path (the name, for a library), or null; problem says why.
// `path` is the PATH to look for commands in. Libraries are loaded, as a program would.
nlohmann::json find_required(const Required& required, const std::string& path);

}  // namespace explore
