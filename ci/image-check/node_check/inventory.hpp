// inventory.hpp: whether a node has what its site says that it has.
#pragma once

#include "health.hpp"

namespace node_check {

// What is wanted is an object, all members of which are optional:
//   gpus, nvlinks (of each GPU), rdma_ports (ACTIVE ones), rdma_gbit_per_s (of each of them), cpus, memory_gib   at
//   least
//   ecc, persistence          true or false, of each GPU
//   p2p                       true: each GPU can read and write each other one's memory
//   gpu_topology              "0-1 NODE, 0-2 SYS, 1-2 SYS": a pattern for what nvidia-smi topo -m shows of each pair
//   numa                      {"gpu0": 0, "mlx5_0": 0}: NUMA nodes of GPUs and RDMA devices, of which this process may
//                             use a CPU
//   gpus_idle                 true: no process is left on a GPU
//   clock_synchronized        true: a time daemon keeps the clock (adjtimex)
//   gpu, driver, kernel       the name of each GPU and the versions: regular expressions that match the whole
//   mounts                    ["/scratch"]
//   files                     {"/usr/lib/x86_64-linux-gnu/libnccl.so.2": "libnccl[.]so[.]2[.]2[0-9][.].*"}: what a path
//                             resolves to
// Throws std::runtime_error for an unknown member, and for a value of another type.
void check_inventory(const nlohmann::json& wanted);

// One finding, "inventory". The mounts come from `root`/proc/self/mounts; the files are below `root`.
Finding look_at_inventory(const nlohmann::json& wanted, const HealthOptions& options,
                          const std::filesystem::path& root = "/");

}  // namespace node_check
