// libraries.hpp: makes MPI, Gloo, CUDA and NCCL known to World. communicator.hpp and mpi.hpp include this header. If a
// file of a program does, the ranks meet over MPI where mpirun started them, and reports have the libraries' versions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace multinode {

bool register_communicator_libraries() noexcept;

// Before main(), as <iostream> prepares std::cout. By this line a program refers to the function: the linker leaves out
// what no program refers to in a static library.
inline const bool communicator_libraries_are_registered = register_communicator_libraries();

}  // namespace multinode
