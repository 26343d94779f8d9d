// communicator_backends.hpp: what communicator.cpp and the backends share. Not for programs.
#pragma once

#include <multinode/check.hpp>
#include <multinode/communicator.hpp>

namespace multinode {

// Each is in a file of its own, built where its library is. largest_count: elements in one call of MPI, whose counts
// are int; a parameter for the tests' sake.
std::unique_ptr<Communicator> make_mpi(World& world, std::size_t largest_count = std::size_t{1} << 30);
std::unique_ptr<Communicator> make_gloo(World& world);
std::unique_ptr<Communicator> make_nccl(World& world);

}  // namespace multinode
