// communicator_backends.hpp: shared by communicator.cpp and the backends; not for programs.
#pragma once

#include <multinode/check.hpp>
#include <multinode/communicator.hpp>

namespace multinode {

// Collective. Each has its own file, which is built if its library was found. largest_count: the most elements in one
// MPI call, whose counts are int; tests pass a small one.
std::unique_ptr<Communicator> make_mpi(World& world, std::size_t largest_count = std::size_t{1} << 30);
std::unique_ptr<Communicator> make_gloo(World& world);
std::unique_ptr<Communicator> make_nccl(World& world);

}  // namespace multinode
