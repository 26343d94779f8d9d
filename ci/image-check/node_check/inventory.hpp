// inventory.hpp: whether a node has what its site says that it has.
#pragma once

#include "finding.hpp"

#include <filesystem>

namespace node_check {

// What is wanted is an object, all members of which are optional:
//   gpus, rdma_ports (ACTIVE ones), rdma_gbit_per_s (of each of them), cpus, memory_gib   at least
//   gpu, driver               the name of each GPU and the version: regular expressions that match the whole
//   mounts                    ["/scratch"]
// Throws std::runtime_error for an unknown member, and for a value of another type.
void check_inventory(const nlohmann::json& wanted);

// One finding, "inventory", by the files below `root`. GPUs are those of NVIDIA's driver.
Finding look_at_inventory(const nlohmann::json& wanted, const std::filesystem::path& root = "/");

}  // namespace node_check
