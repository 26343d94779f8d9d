// topology.hpp: the CPUs of this process, the cores and NUMA nodes that they belong to, and how many threads the
// libraries will start on them.
#pragma once

#include <multinode/launch.hpp>

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

namespace explore {

// {0, 1, 2, 8} -> "0-2,8"; `numbers` ascend.
std::string ranges(const std::vector<int>& numbers);

// "0-2,8" -> {0, 1, 2, 8}
std::vector<int> numbers(const std::string& ranges);

// Members allowed, count, cores, numa_nodes (of those CPUs), and machine: {model, cpus, cores, packages, numa_nodes}.
// `synthetic`: a topology in hwloc's notation ("numa:2 core:4 pu:2") instead of this machine's, for tests.
nlohmann::json read_cpu(const std::vector<int>& cpus, const std::string& synthetic = "");

// Members openmp, openmp_from, openblas, openblas_from: the number of threads and the variable or CPU set that
// determines it, by the rules of OpenMP's runtimes and of OpenBLAS built with pthreads.
nlohmann::json predict_threads(const multinode::Environment& environment, std::size_t cpus);

}  // namespace explore
