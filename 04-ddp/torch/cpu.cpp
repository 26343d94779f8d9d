#include "cpu.hpp"

#include <multinode/check.hpp>

#include <torch/torch.h>

#include <algorithm>
#include <thread>

multinode::Backend parse_cpu_backend(std::string_view name) {
  const multinode::Backend backend = multinode::parse_backend(name);
  if (backend == multinode::Backend::nccl)
    throw multinode::UsageError("--backend nccl: this program trains on the CPU; use --backend mpi or gloo");
  return backend;
}

std::unique_ptr<multinode::Communicator> make_cpu_communicator(multinode::World& world, std::string_view name) {
  const multinode::Backend backend = parse_cpu_backend(name);
  return make_communicator(world,
                           backend == multinode::Backend::automatic ? multinode::choose_cpu_backend(world) : backend);
}

void share_cores(const multinode::World& world) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  torch::set_num_threads(std::clamp(cores / world.local_size(), 1, torch::get_num_threads()));
}
