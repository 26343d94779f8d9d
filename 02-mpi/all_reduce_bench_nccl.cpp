// One number for a network of GPUs: the all-reduce of a 500000 x 2000 matrix of floats (4 GB), ten times, over NCCL.
//
//   mpicxx -std=c++20 -O2 all_reduce_bench_nccl.cpp -o all_reduce_bench_nccl -I/usr/local/cuda/include -L/usr/local/cuda/lib64 -lnccl -lcudart
//   mpirun -n 2 ./all_reduce_bench_nccl 2000   without a GPU: with-gpus 2 mpirun ...
//
// The argument is the number of rows; without it each rank needs 4 GB of GPU memory.
// Exit status: 0 if every element is right, 1 if not.
// After: all_reduce_bench_mpi.cpp.
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>
#include <mpi.h>
#include <nccl.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

const char* reason(cudaError_t code) { return cudaGetErrorString(code); }
const char* reason(ncclResult_t) { return ncclGetLastError(nullptr); }  // the reason, not only the kind of error
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

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1, local_rank = 0, devices = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;
  const std::size_t columns = 2000, rows = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 500000;
  if (rows < 1 || rows > 10000000) {
    if (rank == 0) std::fprintf(stderr, "rows must be a number from 1 to 10000000, not '%s'\n", argv[1]);
    return MPI_Finalize(), 1;
  }

  MPI_Comm node;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
  MPI_Comm_rank(node, &local_rank);
  MPI_Comm_free(&node);
  CHECK(cudaGetDeviceCount(&devices));
  CHECK(cudaSetDevice(local_rank % devices));
  cudaDeviceProp gpu;
  CHECK(cudaGetDeviceProperties(&gpu, local_rank % devices));
  const bool emulated = std::strstr(gpu.name, "Emulated");  // a bandwidth of such a GPU would mean nothing
  if (rank == 0) std::printf("# %s%s\n", gpu.name, emulated ? ": right or wrong, no bandwidth" : "");
  ncclUniqueId id;
  if (rank == 0) CHECK(ncclGetUniqueId(&id));
  MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  ncclComm_t comm;
  CHECK(ncclCommInitRank(&comm, size, id, rank));

  const std::size_t count = rows * columns, bytes = count * sizeof(float);
  std::vector<float> host(count);
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  float* matrix = nullptr;
  CHECK(cudaMalloc(&matrix, bytes));

  const int warm_up = 2, trials = 10;
  double algbw = 0;  // bytes per second, the mean over the trials
  long wrong = 0, sum_of_ranks = 0;
  for (int r = 0; r < size; ++r) sum_of_ranks += r % 8;
  for (int trial = -warm_up; trial < trials; ++trial) {
    // In place: what is in the matrix is the last sum.
    for (std::size_t i = 0; i < count; ++i) host[i] = float(rank % 8) + float(i % 8);
    CHECK(cudaMemcpyAsync(matrix, host.data(), bytes, cudaMemcpyHostToDevice, stream));
    CHECK(cudaStreamSynchronize(stream));

    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    CHECK(ncclAllReduce(matrix, matrix, count, ncclFloat, ncclSum, comm, stream));
    CHECK(cudaStreamSynchronize(stream));  // ncclAllReduce only puts the work on the stream
    const double seconds = MPI_Wtime() - start;
    if (trial >= 0) algbw += double(bytes) / seconds / trials;

    CHECK(cudaMemcpyAsync(host.data(), matrix, bytes, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    for (std::size_t i = 0; i < count; ++i) wrong += host[i] != float(sum_of_ranks + size * long(i % 8));
  }
  CHECK(cudaFree(matrix));
  CHECK(cudaStreamDestroy(stream));
  CHECK(ncclCommDestroy(comm));

  // Each rank measures its own time. The result is the mean over the ranks, as in the original.
  MPI_Allreduce(MPI_IN_PLACE, &algbw, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  algbw /= size;
  const double busbw = algbw * 2 * (size - 1) / size;
  if (rank == 0) {
    std::printf("all_reduce, ranks: %d, trials: %d, payload: %.3g GB\n", size, trials, double(bytes) / 1e9);
    if (!emulated) {
      std::printf("  algbw: %.3f GBps (%.1f Gbps)\n", algbw / 1e9, algbw * 8 / 1e9);
      std::printf("  busbw: %.3f GBps (%.1f Gbps)\n", busbw / 1e9, busbw * 8 / 1e9);
    }
    std::printf("%s: %ld elements wrong\n", wrong == 0 ? "RIGHT" : "WRONG", wrong);
  }
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("all_reduce_bench_nccl: standard output"), 1;
  return wrong == 0 ? 0 : 1;
}
