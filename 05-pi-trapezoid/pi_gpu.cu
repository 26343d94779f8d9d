// The sum of pi_exact.cpp on GPUs, one process per GPU: one thread per chain, one thread block per block. The answer
// has the same bits as on CPUs.
//
//   nvcc -std=c++20 -O2 -arch=native -ccbin mpicxx pi_gpu.cu -o pi_gpu
//   mpirun -n 4 ./pi_gpu                    without a GPU: with-gpus 4 mpirun ...
//
// Exit status: 0 if the answer and all blocks have the recorded bits, 1 if not, or if a call failed.
// After: pi_exact.cpp.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numbers>
#include <span>
#include <vector>

const char* reason(cudaError_t code) { return cudaGetErrorString(code); }
// Says where a call failed. If a kernel fails, a later call returns its error.
template <class Code>
void check(Code code, const char* file, int line, const char* call) {
  if (code == Code{}) return;
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::fprintf(stderr, "%s:%d: rank %d: %s: %s\n", file, line, rank, call, reason(code));
  MPI_Abort(MPI_COMM_WORLD, 1);  // the other ranks wait for this one
}
#define CHECK(call) check(call, __FILE__, __LINE__, #call)

// Adds neighbours, then the sums of neighbours, and so on: only the number of values decides the order of the
// additions.
double tree_sum(std::span<const double> values) {
  if (values.size() <= 1) return values.empty() ? 0 : values[0];
  const std::size_t half = std::bit_ceil(values.size()) / 2;
  return tree_sum(values.first(half)) + tree_sum(values.subspan(half));
}

constexpr int block_length = 65536, chains = 1024;

// sums[block] = the sum of the points of blocks number `rank`, `rank + ranks`, ... The functions that end with _rn
// round every operation. nvcc would make one fused multiply-add of x * x + 1, which rounds once: other bits.
__global__ void __launch_bounds__(chains) add_blocks(long n, int rank, int ranks, double* sums) {
  __shared__ double sum_of[chains];
  const long block = rank + long(blockIdx.x) * ranks;
  const int chain = int(threadIdx.x);
  const double h = 1.0 / double(n);
  double sum = 0;
  for (int term = 0; term < 64; ++term) {
    const long i = 1 + block * block_length + chain / 8 * 512 + term * 8 + chain % 8;
    if (i >= n) break;
    const double x = __dmul_rn(double(i), h);
    sum = __dadd_rn(sum, __ddiv_rn(4, __dadd_rn(1, __dmul_rn(x, x))));
  }
  sum_of[chain] = sum;
  for (int distance = 1; distance < chains; distance *= 2) {  // tree_sum
    __syncthreads();
    if (chain % (2 * distance) == 0) sum_of[chain] = __dadd_rn(sum_of[chain], sum_of[chain + distance]);
  }
  if (chain == 0) sums[block] = sum_of[0];
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1, local_rank = 0, devices = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;
  MPI_Comm node;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
  MPI_Comm_rank(node, &local_rank);
  CHECK(cudaGetDeviceCount(&devices));
  CHECK(cudaSetDevice(local_rank % devices));  // chapter 03 shows why it is not `rank`

  const long n = 10'000'000;
  const int blocks = int((n - 1 + block_length - 1) / block_length), own = (blocks - rank + size - 1) / size;
  std::vector<double> sums(blocks);
  double* on_gpu = nullptr;
  CHECK(cudaMalloc(&on_gpu, blocks * sizeof(double)));
  CHECK(cudaMemset(on_gpu, 0, blocks * sizeof(double)));
  if (own > 0) add_blocks<<<own, chains>>>(n, rank, size, on_gpu);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(sums.data(), on_gpu, blocks * sizeof(double), cudaMemcpyDeviceToHost));
  MPI_Allreduce(MPI_IN_PLACE, sums.data(), blocks, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);

  // As in pi_exact.cpp: every rank has all sums now, and adds them in the same order. A kernel that rounds differently
  // stays within the bound of the error, so the check is the bits: those of pi_exact, in the answer and in every block.
  const double answer = (3 + tree_sum(sums)) / double(n), h = 1.0 / n;
  const double error = std::numbers::pi - answer - h * h / 6;
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const double sum : sums) hash = (hash ^ std::bit_cast<std::uint64_t>(sum)) * 0x100000001b3;
  const bool right = answer == 0x1.921fb54442d15p+1 && hash == 0xa5d441b79ccbf4c8;
  if (rank == 0)
    std::printf("GPUs %d: pi = %.16f = %a, hash %016jx, error %8.1e\n%s\n", size, answer, answer, std::uintmax_t(hash),
                error, right ? "RIGHT" : "WRONG");
  CHECK(cudaFree(on_gpu));
  MPI_Comm_free(&node);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("pi_gpu: standard output"), 1;
  return right ? 0 : 1;
}
