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

// As many divisions as sum_block, independent of each other. sum_block can reach 10/13 = 0.77 of its speed: in the SASS
// of sm_90 (nvcc 13), a division has 8 instructions in double precision, to which this kernel adds 2 and sum_block 5.
// They are the limit, because each occupies an H100's scheduler for two cycles (other GPUs': four or more), and all
// instructions of a term, 17 and 20, issue in less. An H100 reaches 0.80: see measurements.md.
__global__ void __launch_bounds__(chains) divide_block(double first, double* sums) {
  const double start = first + blockIdx.x * double(block_length) + threadIdx.x;
  double sum = 0;
  for (int step = 0; step < chain_length; ++step) sum = __dadd_rn(sum, __ddiv_rn(4.0, start + step * double(chains)));
  sums[blockIdx.x * chains + threadIdx.x] = sum;
}

// Seconds that the GPU needs for what `work` queues on the stream; the best of `rounds`.
template <class Work>
double time_on_gpu(const multinode::Stream& stream, int rounds, Work work) {
  multinode::Event start(cudaEventBlockingSync), end(cudaEventBlockingSync);
  float best = 0;
  for (int round = 0; round < rounds; ++round) {
    float milliseconds = 0;
    start.record(stream.get());
    work();
    multinode::check(cudaGetLastError());
    end.record(stream.get());
    multinode::check(cudaEventSynchronize(end.get()));
    multinode::check(cudaEventElapsedTime(&milliseconds, start.get(), end.get()));
    if (round == 0 || milliseconds < best) best = milliseconds;
  }
  return best / 1e3;
}

}  // namespace

Throughput measure_gpu(int rounds) {
  constexpr unsigned blocks = 1 << 14;  // 2^30 terms
  constexpr double count = double(blocks) * double(block_length);
  multinode::Stream stream;
  multinode::DeviceBuffer<double> sums(blocks * chains);
  Throughput best;
  best.evaluations = count / time_on_gpu(stream, rounds, [&] {
                       sum_block<<<blocks, chains, 0, stream.get()>>>(std::int64_t{1} << 30, 0x1p-30, 0, sums.data());
                     });
  best.divisions =
      count / time_on_gpu(stream, rounds, [&] { divide_block<<<blocks, chains, 0, stream.get()>>>(1.0, sums.data()); });
  return best;
}

void SumsOnGpu::sum_blocks(std::int64_t n, Range blocks, std::span<double> sums) {
  if (blocks.size() == 0) return;
  sum_block<<<static_cast<unsigned>(blocks.size()), chains, 0, stream_.get()>>>(n - 1, 1.0 / double(n), blocks.first,
                                                                                sums_.data());
  multinode::check(cudaGetLastError());
  sums_.copy_to(sums, stream_.get());
  stream_.synchronize();
}

}  // namespace trapezoid
