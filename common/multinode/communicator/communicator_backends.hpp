// communicator_backends.hpp: shared by communicator.cpp and the backends; not for programs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <multinode/base/check.hpp>
#include <multinode/communicator/communicator.hpp>

namespace multinode {

// Collective. Each has its own file, which is built if its library was found.
std::unique_ptr<Communicator> make_mpi(World& world);
std::unique_ptr<Communicator> make_gloo(World& world);
std::unique_ptr<Communicator> make_nccl(World& world, int device);  // of own_gpus()

// Initializes MPI, unless it is initialized. Throws std::runtime_error if it has no thread support.
void start_mpi();
// Throws UsageError, after start_mpi(), if MPI and the launcher disagree about rank or world size.
void require_ranks_of_mpi(const Launch& launch);
// Whether start_mpi() initialized it, and it has not been finalized.
bool must_finalize_mpi() noexcept;
void finalize_mpi() noexcept;  // if it must

}  // namespace multinode
