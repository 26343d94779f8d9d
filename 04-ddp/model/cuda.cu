// SPDX-License-Identifier: Apache-2.0
#include "cuda.hpp"

#include <algorithm>
#include <stdexcept>
#include <type_traits>

namespace model {
namespace {

template <class T>
constexpr cudaDataType_t cuda_type = std::is_same_v<T, double> ? CUDA_R_64F : CUDA_R_32F;

constexpr std::size_t most_numbers = 64;  // that are summed at once

}  // namespace

// How a GPU carries out the operations: one thread per element, one warp per row.
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

void check(cublasStatus_t code, multinode::source_location at) {
  if (code != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(multinode::place(at) + "cuBLAS: " + cublasGetStatusString(code));
}

Cuda::Cuda()
    : wait_([](cudaEvent_t event) { multinode::check(cudaEventSynchronize(event)); }),
      numbers_(most_numbers),
      host_numbers_(most_numbers) {
  check(cublasCreate(&blas_));
  check(cublasSetStream(blas_, stream()));
}

Cuda::~Cuda() {
  if (blas_) cublasDestroy(blas_);
}

// cuBLAS is column-major: it sees the transposes of all three, and so gets b first.
template <class T>
void Cuda::product(Transpose transpose, std::size_t rows, std::size_t columns, std::size_t inner, const T* a,
                   const T* b, T keep, T* c) {
  if (rows == 0 || columns == 0) return;
  if (inner == 0) {
    if (keep == 0) multinode::check(cudaMemsetAsync(c, 0, rows * columns * sizeof(T), stream()));
    return;
  }
  const auto number = [](std::size_t n) { return static_cast<int>(n); };
  const bool first = transpose == Transpose::first, second = transpose == Transpose::second;
  const T one = 1;
  check(cublasGemmEx(blas_, second ? CUBLAS_OP_T : CUBLAS_OP_N, first ? CUBLAS_OP_T : CUBLAS_OP_N, number(columns),
                     number(rows), number(inner), &one, b, cuda_type<T>, number(second ? inner : columns), a,
                     cuda_type<T>, number(first ? rows : inner), &keep, c, cuda_type<T>, number(columns),
                     std::is_same_v<T, double> ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}

void Cuda::attach(multinode::World& world, multinode::Communicator& communicator) {
  communicator.set_stream(stream());
  wait_ = [&world](cudaEvent_t event) {
    const auto inside = world.watchdog().enter("wait for the GPU");
    multinode::check(cudaEventSynchronize(event));
  };
}

void Cuda::sum(multinode::Communicator& communicator, std::span<double> numbers) {
  while (!numbers.empty()) {
    const std::span<double> some = numbers.first(std::min(numbers.size(), most_numbers));
    const std::span<double> here = host_numbers_.span().first(some.size());
    std::ranges::copy(some, here.begin());
    numbers_.copy_from(here, stream());
    communicator.all_reduce(numbers_.span().first(some.size()));
    numbers_.copy_to(here, stream());
    communicator.synchronize();  // within the deadline
    std::ranges::copy(here, some.begin());
    numbers = numbers.subspan(some.size());
  }
}

void scale(Cuda& cuda, std::span<float> elements, float factor) {
  cuda.each(elements.size(), Scale<float>{elements.data(), factor});
}
void scale(Cuda& cuda, std::span<double> elements, double factor) {
  cuda.each(elements.size(), Scale<double>{elements.data(), factor});
}

template class PerceptronOn<float, Cuda>;
template class PerceptronOn<double, Cuda>;

}  // namespace model
