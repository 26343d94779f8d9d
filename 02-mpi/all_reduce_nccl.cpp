// all_reduce.cpp with NCCL: one GPU per process. MPI starts the processes and passes NCCL's id on, no more.
//
//   mpicxx -std=c++20 -O2 all_reduce_nccl.cpp -o all_reduce_nccl -I/usr/local/cuda/include -L/usr/local/cuda/lib64 -lnccl -lcudart
//   mpirun -n 2 ./all_reduce_nccl           without a GPU: with-gpus 2 mpirun ...
//
// Exit status: 0 if every element is right, 1 if not.
// After: all_reduce.cpp.
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
  MPI_Comm node;  // the processes of this node: the rank in it chooses the GPU, not the rank of all
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
  MPI_Comm_rank(node, &local_rank);
  MPI_Comm_free(&node);
  CHECK(cudaGetDeviceCount(&devices));
  CHECK(cudaSetDevice(local_rank % devices));  // % because a scheduler may show each process its own GPU only
  cudaDeviceProp gpu;
  CHECK(cudaGetDeviceProperties(&gpu, local_rank % devices));
  const bool emulated = std::strstr(gpu.name, "Emulated");  // a bandwidth of such a GPU would mean nothing
  if (rank == 0) std::printf("# %s%s\n", gpu.name, emulated ? ": right or wrong, no bandwidth" : "");

  ncclUniqueId id;
  if (rank == 0) CHECK(ncclGetUniqueId(&id));
  MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  ncclComm_t comm;
  CHECK(ncclCommInitRank(&comm, size, id, rank));

  cudaStream_t stream;
  cudaEvent_t start, end;
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaEventCreate(&start));
  CHECK(cudaEventCreate(&end));

  if (rank == 0) std::printf("%10s %12s %14s %14s\n", "bytes", "time (us)", "algbw (GB/s)", "busbw (GB/s)");
  long wrong = 0, sum_of_ranks = 0;
  for (int r = 0; r < size; ++r) sum_of_ranks += r % 8;
  for (std::size_t count = 2; count <= 1 << 20; count *= 8) {
    const std::size_t bytes = count * sizeof(float);
    std::vector<float> host(count);
    for (std::size_t i = 0; i < count; ++i) host[i] = float(rank % 8) + float(i % 8);
    float *mine = nullptr, *sum = nullptr;
    CHECK(cudaMalloc(&mine, bytes));
    CHECK(cudaMalloc(&sum, bytes));
    CHECK(cudaMemcpyAsync(mine, host.data(), bytes, cudaMemcpyHostToDevice, stream));

    // ncclAllReduce returns before anything is added: it only puts the work on the stream, in which the events take
    // the time. The warm-up makes all ranks meet, so that no barrier is needed.
    const int warm_up = 5, trials = 20;
    for (int trial = -warm_up; trial < trials; ++trial) {
      if (trial == 0) CHECK(cudaEventRecord(start, stream));
      CHECK(ncclAllReduce(mine, sum, count, ncclFloat, ncclSum, comm, stream));
    }
    CHECK(cudaEventRecord(end, stream));
    CHECK(cudaMemcpyAsync(host.data(), sum, bytes, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    float milliseconds = 0;
    CHECK(cudaEventElapsedTime(&milliseconds, start, end));

    for (std::size_t i = 0; i < count; ++i) wrong += host[i] != float(sum_of_ranks + size * long(i % 8));

    const double seconds = milliseconds / 1e3 / trials, algbw = double(bytes) / seconds / 1e9;
    const double busbw = algbw * 2 * (size - 1) / size;
    if (rank == 0 && emulated)
      std::printf("%10zu %12.1f %14s %14s\n", bytes, seconds * 1e6, "n/a", "n/a");
    else if (rank == 0)
      std::printf("%10zu %12.1f %14.3f %14.3f\n", bytes, seconds * 1e6, algbw, busbw);
    CHECK(cudaFree(sum));
    CHECK(cudaFree(mine));
  }
  CHECK(cudaEventDestroy(end));
  CHECK(cudaEventDestroy(start));
  CHECK(cudaStreamDestroy(stream));
  CHECK(ncclCommDestroy(comm));

  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) std::printf("%s: %ld elements wrong\n", wrong == 0 ? "RIGHT" : "WRONG", wrong);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("all_reduce_nccl: standard output"), 1;
  return wrong == 0 ? 0 : 1;
}
