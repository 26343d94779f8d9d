// gradient_memory_gpu.hpp: gradients in the memory of a GPU.
#pragma once

#include "gradient_memory.hpp"

#include <cuda_runtime_api.h>

namespace ddp {

template <class T>
class GradientMemoryGpu : public GradientMemory<T> {
 public:
  explicit GradientMemoryGpu(cudaStream_t stream) : stream_(stream) {}
  void scale(std::span<T> elements, T factor) override;
  void move(std::span<T> storage, std::span<const typename GradientMemory<T>::Move> moves) override;

 private:
  cudaStream_t stream_;
};

}  // namespace ddp
