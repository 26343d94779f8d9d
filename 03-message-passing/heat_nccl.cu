// heat.cpp on GPUs, one process per GPU: the halo exchange is a group of ncclSend and ncclRecv, or MPI's with device
// memory. The bits are those of one process on a CPU.
//
//   nvcc -std=c++20 -O2 -arch=native -ccbin mpicxx heat_nccl.cu -o heat_nccl -lnccl
//   mpirun -n 2 ./heat_nccl
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

void check(bool success, const char* reason) {
  if (success) return;
  std::fprintf(stderr, "%s\n", reason);
  MPI_Abort(MPI_COMM_WORLD, 1);
}
void check(cudaError_t code) { check(code == cudaSuccess, cudaGetErrorString(code)); }
void check(ncclResult_t code) {
  if (code != ncclSuccess) std::fprintf(stderr, "NCCL: %s: ", ncclGetErrorString(code));
  check(code == ncclSuccess, ncclGetLastError(nullptr));  // the reason, where NCCL has one
}

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
  if (over_mpi && !cuda_aware()) {  // it would take the GPU's address for one of the host
    if (rank == 0) std::fprintf(stderr, "heat_nccl: this MPI does not say that it is CUDA-aware: use NCCL\n");
    return MPI_Finalize(), 1;
  }
  MPI_Comm node;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
  MPI_Comm_rank(node, &local_rank);
  MPI_Comm_free(&node);
  check(size <= total, "at most one process per cell, 1000");
  check(cudaGetDeviceCount(&devices));
  check(cudaSetDevice(local_rank % devices));
  ncclUniqueId id{};
  if (rank == 0) check(ncclGetUniqueId(&id));
  MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  ncclComm_t world = nullptr;
  check(ncclCommInitRank(&world, size, id, rank));

  const int first = total * rank / size, cells = total * (rank + 1) / size - first;
  std::vector<double> whole(total + 2), previous(total + 2);
  for (int i = 1; i <= total; ++i) whole[i] = std::sin(std::numbers::pi * i / (total + 1));
  const std::size_t bytes = (cells + 2) * sizeof(double);
  double *old = nullptr, *now = nullptr;
  cudaStream_t stream = nullptr;
  check(cudaStreamCreate(&stream));
  check(cudaMalloc(&old, bytes));
  check(cudaMalloc(&now, bytes));
  check(cudaMemset(old, 0, bytes));  // the walls, too
  check(cudaMemset(now, 0, bytes));
  check(cudaMemcpy(&now[1], &whole[first + 1], cells * sizeof(double), cudaMemcpyHostToDevice));
  check(cudaDeviceSynchronize());  // cudaMemcpy may return before the GPU has all, and MPI knows no streams

  const int left = rank > 0 ? rank - 1 : MPI_PROC_NULL, right = rank < size - 1 ? rank + 1 : MPI_PROC_NULL;
  for (int i = 0; i < steps; ++i) {
    std::swap(old, now);
    if (over_mpi) {
      check(cudaStreamSynchronize(stream));  // MPI knows no streams: the step before must be complete
      MPI_Sendrecv(&old[cells], 1, MPI_DOUBLE, right, tag, &old[0], 1, MPI_DOUBLE, left, tag, MPI_COMM_WORLD,
                   MPI_STATUS_IGNORE);
      MPI_Sendrecv(&old[1], 1, MPI_DOUBLE, left, tag, &old[cells + 1], 1, MPI_DOUBLE, right, tag, MPI_COMM_WORLD,
                   MPI_STATUS_IGNORE);
    } else {
      // The four messages of a group start together, so their order does not matter. Without the group, each call may
      // wait for the one before it on the stream, and two neighbours that both send first can deadlock.
      check(ncclGroupStart());
      if (rank < size - 1) check(ncclSend(&old[cells], 1, ncclDouble, right, world, stream));
      if (rank > 0) check(ncclSend(&old[1], 1, ncclDouble, left, world, stream));
      if (rank > 0) check(ncclRecv(&old[0], 1, ncclDouble, left, world, stream));
      if (rank < size - 1) check(ncclRecv(&old[cells + 1], 1, ncclDouble, right, world, stream));
      check(ncclGroupEnd());
    }
    step<<<(cells + 255) / 256, 256, 0, stream>>>(old, now, cells);  // after the messages: it is on the same stream
    check(cudaGetLastError());

    std::swap(previous, whole);  // the same on the CPU, the rod as a whole, for the comparison
    for (int k = 1; k <= total; ++k)
      whole[k] = previous[k] + r * ((previous[k - 1] - previous[k]) + (previous[k + 1] - previous[k]));
  }

  std::vector<double> own(cells);
  check(cudaMemcpyAsync(own.data(), &now[1], cells * sizeof(double), cudaMemcpyDeviceToHost, stream));
  check(cudaStreamSynchronize(stream));
  int differ = 0;
  for (int i = 0; i < cells; ++i) differ += own[i] != whole[first + 1 + i];
  MPI_Allreduce(MPI_IN_PLACE, &differ, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0)
    std::printf("%s: %d of %d cells differ from one process\n", differ == 0 ? "RIGHT" : "WRONG", differ, total);
  check(cudaFree(old));
  check(cudaFree(now));
  check(cudaStreamDestroy(stream));
  check(ncclCommDestroy(world));
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("heat_nccl: standard output"), 1;
  return differ == 0 ? 0 : 1;
}
