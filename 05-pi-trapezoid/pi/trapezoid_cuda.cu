// trapezoid_cuda.cu: one thread block adds one block of the sum, one thread one lane of one run, as in sum_runs.hpp.
#include "trapezoid_cuda.hpp"

#include <multinode/communicator/device.hpp>

namespace trapezoid {
namespace {

constexpr int chains = runs_per_block * lanes;  // 1024, the most threads that a thread block can have

// __dmul_rn, __dadd_rn: nvcc would fuse plain products and sums into multiply-adds.
__global__ void __launch_bounds__(chains)
    sum_block(std::int64_t inner_points, double h, std::int64_t first_block, double* sums) {
  __shared__ double shared[chains];
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t block = first_block + blockIdx.x;
  const std::int64_t start = block * block_length + thread / lanes * run_length + thread % lanes;
  double sum = 0, index = static_cast<double>(1 + start);  // exact: whole numbers below 2^53
  const auto add = [&] {
    const double x = __dmul_rn(index, h);
    sum = __dadd_rn(sum, __ddiv_rn(4.0, __dadd_rn(1.0, __dmul_rn(x, x))));
    index = __dadd_rn(index, lanes);
  };
  if ((block + 1) * block_length <= inner_points)
    for (int step = 0; step < chain_length; ++step) add();
  else
    for (int step = 0; step < chain_length && start + step * lanes < inner_points; ++step) add();
  shared[thread] = sum;
  for (int distance = 1; distance < chains; distance *= 2) {  // tree_sum: neighbours, then their sums
    __syncthreads();
    if (thread % (2 * distance) == 0) shared[thread] = __dadd_rn(shared[thread], shared[thread + distance]);
  }
  if (thread == 0) sums[blockIdx.x] = shared[0];
}

}  // namespace

void SumsOnGpu::sum_blocks(std::int64_t n, Range blocks, std::span<double> sums) {
  if (blocks.size() == 0) return;
  sum_block<<<static_cast<unsigned>(blocks.size()), chains, 0, stream_.get()>>>(n - 1, 1.0 / double(n), blocks.first,
                                                                                sums_.data());
  multinode::check(cudaGetLastError());
  sums_.copy_to(sums, stream_.get());
  stream_.synchronize();
}

}  // namespace trapezoid
