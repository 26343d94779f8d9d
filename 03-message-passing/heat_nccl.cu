// heat.cpp on GPUs, one process per GPU: the halo exchange is a group of ncclSend and ncclRecv, or MPI's with device
// memory. The bits are those of one process on a CPU.
//
//   nvcc -std=c++20 -O2 -arch=native -ccbin mpicxx heat_nccl.cu -o heat_nccl -lnccl
//   mpirun -n 2 ./heat_nccl                 without a GPU: with-gpus 2 mpirun ...
//   mpirun -n 2 ./heat_nccl MPI      needs a CUDA-aware MPI
//
// Exit status: 0 if every cell has the bits of one process, 1 if not, or if a call failed, 2 bad command line.
// After: heat.cpp, cuda_aware.cu. New: ncclGroupStart, ncclGroupEnd.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>
#include <nccl.h>
#if __has_include(<mpi-ext.h>)  // Open MPI's extensions
#include <mpi-ext.h>
#endif

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numbers>
#include <string>
#include <utility>
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

constexpr double r = 0.25;
constexpr int steps = 50, total = 1000, tag = 5;

bool cuda_aware() {  // as in cuda_aware.cu
#if OMPI_HAVE_MPI_EXT_CUDA
  return MPIX_Query_cuda_support() == 1;
#else
  return false;
#endif
}

// The functions that end with _rn round every operation: nvcc would fuse the product and the sum.
__global__ void step(const double* old, double* now, int cells) {
  const int i = 1 + int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i > cells) return;
  const double u = old[i], slopes = __dadd_rn(__dsub_rn(old[i - 1], u), __dsub_rn(old[i + 1], u));
  now[i] = __dadd_rn(u, __dmul_rn(r, slopes));
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1, local_rank = 0, devices = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;
  const bool over_mpi = argc > 1 && argv[1] == std::string("MPI");
  if (argc > 1 && !over_mpi) {
    if (rank == 0) std::fprintf(stderr, "heat_nccl: unknown argument '%s': MPI, or none\n", argv[1]);
    return MPI_Finalize(), 2;
  }
  if (size > total) return std::fprintf(stderr, "heat_nccl: at most one process per cell, 1000\n"), MPI_Finalize(), 1;
  if (over_mpi && !cuda_aware()) {  // it would take the GPU's address for one of the host
    if (rank == 0) std::fprintf(stderr, "heat_nccl: this MPI does not say that it is CUDA-aware: use NCCL\n");
    return MPI_Finalize(), 1;
  }
  MPI_Comm node;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
  MPI_Comm_rank(node, &local_rank);
  MPI_Comm_free(&node);
  CHECK(cudaGetDeviceCount(&devices));
  CHECK(cudaSetDevice(local_rank % devices));
  ncclUniqueId id{};
  if (rank == 0) CHECK(ncclGetUniqueId(&id));
  MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  ncclComm_t world = nullptr;
  CHECK(ncclCommInitRank(&world, size, id, rank));

  const int first = total * rank / size, cells = total * (rank + 1) / size - first;
  std::vector<double> whole(total + 2), previous(total + 2);
  for (int i = 1; i <= total; ++i) whole[i] = std::sin(std::numbers::pi * i / (total + 1));
  const std::size_t bytes = (cells + 2) * sizeof(double);
  double *old = nullptr, *now = nullptr;
  cudaStream_t stream = nullptr;
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaMalloc(&old, bytes));
  CHECK(cudaMalloc(&now, bytes));
  CHECK(cudaMemset(old, 0, bytes));  // the walls, too
  CHECK(cudaMemset(now, 0, bytes));
  CHECK(cudaMemcpy(&now[1], &whole[first + 1], cells * sizeof(double), cudaMemcpyHostToDevice));
  CHECK(cudaDeviceSynchronize());  // cudaMemcpy may return before the GPU has all, and MPI knows no streams

  const int left = rank > 0 ? rank - 1 : MPI_PROC_NULL, right = rank < size - 1 ? rank + 1 : MPI_PROC_NULL;
  for (int i = 0; i < steps; ++i) {
    std::swap(old, now);
    if (over_mpi) {
      CHECK(cudaStreamSynchronize(stream));  // MPI knows no streams: the step before must be complete
      MPI_Sendrecv(&old[cells], 1, MPI_DOUBLE, right, tag, &old[0], 1, MPI_DOUBLE, left, tag, MPI_COMM_WORLD,
                   MPI_STATUS_IGNORE);
      MPI_Sendrecv(&old[1], 1, MPI_DOUBLE, left, tag, &old[cells + 1], 1, MPI_DOUBLE, right, tag, MPI_COMM_WORLD,
                   MPI_STATUS_IGNORE);
    } else {
      // The four messages of a group start together, so their order does not matter. Without the group, each call may
      // wait for the one before it on the stream, and two neighbours that both send first can deadlock.
      CHECK(ncclGroupStart());
      if (rank < size - 1) CHECK(ncclSend(&old[cells], 1, ncclDouble, right, world, stream));
      if (rank > 0) CHECK(ncclSend(&old[1], 1, ncclDouble, left, world, stream));
      if (rank > 0) CHECK(ncclRecv(&old[0], 1, ncclDouble, left, world, stream));
      if (rank < size - 1) CHECK(ncclRecv(&old[cells + 1], 1, ncclDouble, right, world, stream));
      CHECK(ncclGroupEnd());
    }
    step<<<(cells + 255) / 256, 256, 0, stream>>>(old, now, cells);  // after the messages: it is on the same stream
    CHECK(cudaGetLastError());

    std::swap(previous, whole);  // the same on the CPU, the rod as a whole, for the comparison
    for (int k = 1; k <= total; ++k)
      whole[k] = previous[k] + r * ((previous[k - 1] - previous[k]) + (previous[k + 1] - previous[k]));
  }

  std::vector<double> own(cells);
  CHECK(cudaMemcpyAsync(own.data(), &now[1], cells * sizeof(double), cudaMemcpyDeviceToHost, stream));
  CHECK(cudaStreamSynchronize(stream));
  int differ = 0;
  for (int i = 0; i < cells; ++i) differ += own[i] != whole[first + 1 + i];
  MPI_Allreduce(MPI_IN_PLACE, &differ, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0)
    std::printf("%s: %d of %d cells differ from one process\n", differ == 0 ? "RIGHT" : "WRONG", differ, total);
  CHECK(cudaFree(now));
  CHECK(cudaFree(old));
  CHECK(cudaStreamDestroy(stream));
  CHECK(ncclCommDestroy(world));
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("heat_nccl: standard output"), 1;
  return differ == 0 ? 0 : 1;
}
