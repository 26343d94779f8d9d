// machine.hpp: what a result depends on: hardware, versions, settings; and how two of them differ.
#pragma once

#include "cluster.hpp"
#include "results.hpp"

namespace image_check {

// Fills machine, versions and settings with what explore and the system say of this machine, the first node. Settings
// are those that steer MPI, NCCL, UCX, OpenMP and the kernel; nothing whose name sounds like a secret.
void describe_machine(Head& head, const Cluster& cluster, const std::filesystem::path& folder);

// In the order machine, version, setting; each by name.
std::vector<Difference> differences(const Head& a, const Head& b);

}  // namespace image_check
