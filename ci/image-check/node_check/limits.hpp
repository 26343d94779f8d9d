// limits.hpp: what this process may use, and the devices that it sees.
#pragma once

#include "finding.hpp"

#include <filesystem>

namespace node_check {

// memlock, open files, processes, core size, stack; CPUs and memory.
Findings look_at_limits();

// One folder: its size, whether a file can be written, and whether `needed` bytes are free.
Finding look_at_folder(const std::string& what, const std::filesystem::path& folder, double needed,
                       const std::string& what_to_do);

// RDMA ports, network interfaces and GPUs.
Findings look_at_devices(const std::filesystem::path& sysfs);

// As text: "mlx5_0/1 ACTIVE 400 Gb/sec (4X NDR)"; `sysfs` is /sys.
std::vector<std::string> rdma_ports(const std::filesystem::path& sysfs);

}  // namespace node_check
