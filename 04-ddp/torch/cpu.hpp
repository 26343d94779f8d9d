// cpu.hpp: ranks that compute on the CPU's cores.
#pragma once

#include <multinode/communicator.hpp>

#include <memory>
#include <string_view>

// --backend of a program that uses no GPU. Throws UsageError for nccl and for what is no backend.
multinode::Backend parse_cpu_backend(std::string_view name);
std::unique_ptr<multinode::Communicator> make_cpu_communicator(multinode::World& world, std::string_view name);

// Shares out the node's cores to its ranks: more threads of tensor operations than cores fight for them. A rank that
// has fewer threads already, by OMP_NUM_THREADS or because the launcher binds it to a core, keeps them.
void share_cores(const multinode::World& world);
