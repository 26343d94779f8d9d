// trapezoid_cuda.hpp: sum_blocks on a GPU, with the same bits.
#pragma once

#include "trapezoid.hpp"

#include <multinode/communicator/device.hpp>

namespace trapezoid {

#ifdef MULTINODE_HAVE_CUDA
// sum_blocks on the current GPU, with memory for so many blocks, which no call allocates.
class SumsOnGpu {
 public:
  explicit SumsOnGpu(std::int64_t most_blocks) : sums_(static_cast<std::size_t>(most_blocks)) {}
  void sum_blocks(std::int64_t n, Range blocks, std::span<double> sums);  // sums: host memory

 private:
  multinode::Stream stream_;
  multinode::DeviceBuffer<double> sums_;
};
#endif

}  // namespace trapezoid
