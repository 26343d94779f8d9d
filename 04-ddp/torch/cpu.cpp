#include "cpu.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <thread>

void share_cores(const multinode::World& world) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  torch::set_num_threads(std::clamp(cores / world.local_size(), 1, torch::get_num_threads()));
}
