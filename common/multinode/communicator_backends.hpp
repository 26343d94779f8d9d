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

// The GPU that NCCL would use in this process, as host name and PCI address; "" if there is none. A launcher may show
// each process all GPUs of the node, or its own alone (srun --gpus-per-task 1).
std::string own_gpu(const World& world);

// Whether every rank has a GPU, and no two ranks the same.
bool one_gpu_each(std::span<const std::string> gpus);

}  // namespace multinode
