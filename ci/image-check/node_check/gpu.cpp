#include "limits.hpp"

#include <multinode/communicator/device.hpp>

#include <fmt/core.h>

namespace node_check {

std::optional<Gpus> gpus_of_cuda() {
#ifdef MULTINODE_HAVE_CUDA
  Gpus gpus{"CUDA"};
  const int count = multinode::device_count(&gpus.error);
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties{};
    multinode::check(cudaGetDeviceProperties(&properties, device));
    gpus.names.push_back(
        fmt::format("{} {:.2f} GiB", properties.name, static_cast<double>(properties.totalGlobalMem) / 0x1p30));
  }
  return gpus;
#else
  return std::nullopt;
#endif
}

}  // namespace node_check
