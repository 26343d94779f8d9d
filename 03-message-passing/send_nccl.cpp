// Rank 0 sends a block of integers from its GPU to the GPU of every other rank with ncclSend. One process per GPU.
//
//   mpicxx -std=c++20 -O2 send_nccl.cpp -o send_nccl -I/usr/local/cuda/include -L/usr/local/cuda/lib64 -lnccl -lcudart
//   mpirun -n 4 ./send_nccl                 without a GPU: with-gpus 4 mpirun ...
//
// Exit status: 0 if every element is right, 1 if not, or if a call failed.
// After: send_mpi.cpp. New: a CUDA stream, ncclUniqueId, ncclSend, ncclRecv.
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>
#include <mpi.h>
#include <nccl.h>

#include <cstdio>
#include <cstdlib>
#include <initializer_list>

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
  int rank = 0, size = 0, local_rank = 0, asked = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);  // in the world: chooses whom to send to
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;
  if (size < 2)
    return std::fprintf(stderr, "send_nccl needs at least 2 processes: mpirun -n 2 ./send_nccl\n"), MPI_Finalize(), 1;
  MPI_Comm node;  // the processes that share this node's memory
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
  MPI_Comm_rank(node, &local_rank);  // on this node: chooses the GPU

  int devices = 0;
  CHECK(cudaGetDeviceCount(&devices));
  // Not `rank`: CUDA numbers the GPUs of every node from 0. With % it is also right where a scheduler shows each
  // process one GPU, which is number 0 then. (An MPI that is built for GPUs may begin to use one in MPI_Init. Then
  // choose it before, by the launcher's variable, such as OMPI_COMM_WORLD_LOCAL_RANK.)
  CHECK(cudaSetDevice(local_rank % devices));

  ncclUniqueId id{};  // says how to reach rank 0. NCCL has no launcher, so MPI takes it to the others.
  if (rank == 0) CHECK(ncclGetUniqueId(&id));
  MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  ncclComm_t world = nullptr;
  CHECK(ncclCommInitRank(&world, size, id, rank));

  constexpr int count = 1000;
  int block[count] = {};
  cudaStream_t stream = nullptr;
  int* on_gpu = nullptr;
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaMalloc(&on_gpu, sizeof block));
  long wrong = 0;
  if (rank == 0) {
    for (int peer = 1; peer < size; ++peer) {
      for (int i = 0; i < count; ++i) block[i] = 10000 * peer + i;
      CHECK(cudaMemcpyAsync(on_gpu, block, sizeof block, cudaMemcpyHostToDevice, stream));
      CHECK(ncclSend(on_gpu, count, ncclInt, peer, world, stream));
      // ncclSend has only queued the message. If the other process is gone, this waits forever; message_passing_nccl
      // asks ncclCommGetAsyncError meanwhile, and has a deadline.
      CHECK(cudaStreamSynchronize(stream));
      std::printf("Rank 0 sent data to Rank %d\n", peer);
    }
  } else {
    CHECK(ncclRecv(on_gpu, count, ncclInt, 0, world, stream));
    CHECK(cudaMemcpyAsync(block, on_gpu, sizeof block, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    for (int i = 0; i < count; ++i) wrong += block[i] != 10000 * rank + i;
    std::printf("Rank %d has received data from rank 0\n", rank);
  }

  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0)
    std::printf("%s: %ld of %d elements wrong\n", wrong == 0 ? "RIGHT" : "WRONG", wrong, (size - 1) * count);
  // As in all our programs, memory, events, streams, communicators: what uses another object goes before it.
  CHECK(cudaFree(on_gpu));
  CHECK(cudaStreamDestroy(stream));
  CHECK(ncclCommDestroy(world));
  MPI_Comm_free(&node);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("send_nccl: standard output"), 1;
  return wrong == 0 ? 0 : 1;
}
