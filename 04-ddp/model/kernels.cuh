// kernels.cuh: how a GPU carries out the kernels of device_perceptron.hpp: one thread per element, one warp per row.
#pragma once

#include "perceptron_gpu.hpp"

namespace model {
namespace kernels {

constexpr unsigned threads = 256, warp = 32;  // in a block, a multiple of those in a warp

inline unsigned blocks_for(std::size_t count) { return static_cast<unsigned>((count + threads - 1) / threads); }

inline __device__ std::size_t index() { return std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; }

template <class Op>
__global__ void each_kernel(std::size_t count, Op op) {
  const std::size_t i = index();
  if (i < count) op(i);
}

// The lanes of a warp, all of them, share a row. (They are __host__ too because the kernels' operators are, but
// the host never calls them.)
class Warp {
 public:
  __host__ __device__ explicit Warp(unsigned lane) : lane_(lane) {}
  __host__ __device__ std::size_t first() const { return lane_; }
  __host__ __device__ static std::size_t count() { return warp; }
  template <class T>
  __host__ __device__ static T sum(T value) {  // in a butterfly: every lane adds the same numbers in the same order
#ifdef __CUDA_ARCH__
    for (unsigned far = warp / 2; far > 0; far /= 2) value += __shfl_xor_sync(0xffffffffu, value, far);
#endif
    return value;
  }
  template <class T>
  __host__ __device__ static T largest(T value) {
#ifdef __CUDA_ARCH__
    for (unsigned far = warp / 2; far > 0; far /= 2) {
      const T other = __shfl_xor_sync(0xffffffffu, value, far);
      value = other > value ? other : value;
    }
#endif
    return value;
  }
  __host__ __device__ static bool all(bool value) {
#ifdef __CUDA_ARCH__
    return __all_sync(0xffffffffu, value);
#else
    return value;
#endif
  }

 private:
  unsigned lane_;
};

template <class Op>
__global__ void rows_kernel(std::size_t count, Op op) {
  const std::size_t row = index() / warp;
  if (row < count) op(row, Warp(threadIdx.x % warp));  // for a whole warp or none of it
}

}  // namespace kernels

template <class Op>
void Cuda::each(std::size_t count, Op op) {
  if (count == 0) return;
  kernels::each_kernel<<<kernels::blocks_for(count), kernels::threads, 0, stream()>>>(count, op);
  multinode::check(cudaGetLastError());
}

template <class Op>
void Cuda::rows(std::size_t count, Op op) {
  if (count == 0) return;
  kernels::rows_kernel<<<kernels::blocks_for(count * kernels::warp), kernels::threads, 0, stream()>>>(count, op);
  multinode::check(cudaGetLastError());
}

}  // namespace model
