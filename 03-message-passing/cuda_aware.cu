// Every rank sends a block from its GPU to the GPU of its right neighbour: staged through host memory, which works with
// every MPI, and, if this MPI is CUDA-aware, directly from device memory. One process per GPU.
//
//   nvcc -std=c++20 -O2 -arch=native -ccbin mpicxx cuda_aware.cu -o cuda_aware
//   mpirun -n 2 ./cuda_aware                without a GPU: with-gpus 2 mpirun ...
//
// Exit status: 0 if every element is right, 1 if not, or if a call failed.
// After: deadlock.cpp, send_nccl.cpp. New: MPIX_Query_cuda_support, page-locked memory.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>
#if __has_include(<mpi-ext.h>)  // Open MPI's extensions
#include <mpi-ext.h>
#endif

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <vector>

constexpr int count = 1 << 18, tag = 3;
constexpr std::size_t bytes = count * sizeof(int);

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

// The standard has no such question. Ask after MPI_Init: the answer can depend on how the program was started.
bool cuda_aware() {
#if OMPI_HAVE_MPI_EXT_CUDA
  return MPIX_Query_cuda_support() == 1;
#else
  return false;
#endif
}

__global__ void fill(int* block, int first) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) block[i] = first + i;
}

struct Blocks {
  int left, right;
  int *mine, *got;  // in device memory
  int* host;        // page-locked: the GPU copies to and from it directly
  cudaStream_t stream;
};

void staged(const Blocks& b) {
  CHECK(cudaMemcpyAsync(b.host, b.mine, bytes, cudaMemcpyDeviceToHost, b.stream));
  CHECK(cudaStreamSynchronize(b.stream));  // MPI knows no streams: kernel and copy must be complete
  MPI_Sendrecv_replace(b.host, count, MPI_INT, b.right, tag, b.left, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  CHECK(cudaMemcpyAsync(b.got, b.host, bytes, cudaMemcpyHostToDevice, b.stream));
}

void direct(const Blocks& b) {
  CHECK(cudaStreamSynchronize(b.stream));  // the kernel must be complete
  MPI_Sendrecv(b.mine, count, MPI_INT, b.right, tag, b.got, count, MPI_INT, b.left, tag, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
}

// In GB/s. Of pageable memory, CUDA first makes a copy that is page-locked, and may return only then.
double copy_to_host(const Blocks& b, int* host) {
  const int times = 20;
  cudaEvent_t start, end;
  for (cudaEvent_t* event : {&start, &end}) CHECK(cudaEventCreate(event));
  CHECK(cudaEventRecord(start, b.stream));
  for (int i = 0; i < times; ++i) CHECK(cudaMemcpyAsync(host, b.mine, bytes, cudaMemcpyDeviceToHost, b.stream));
  CHECK(cudaEventRecord(end, b.stream));
  CHECK(cudaEventSynchronize(end));
  float milliseconds = 0;
  CHECK(cudaEventElapsedTime(&milliseconds, start, end));
  for (cudaEvent_t event : {end, start}) CHECK(cudaEventDestroy(event));
  return times * double(bytes) / milliseconds / 1e6;
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
  MPI_Comm_free(&node);
  CHECK(cudaGetDeviceCount(&devices));
  CHECK(cudaSetDevice(local_rank % devices));

  Blocks b{(rank + size - 1) % size, (rank + 1) % size, nullptr, nullptr, nullptr, nullptr};
  CHECK(cudaStreamCreate(&b.stream));
  CHECK(cudaMalloc(&b.mine, bytes));
  CHECK(cudaMalloc(&b.got, bytes));
  CHECK(cudaMallocHost(&b.host, bytes));

  cudaDeviceProp gpu;
  CHECK(cudaGetDeviceProperties(&gpu, local_rank % devices));
  const bool emulated = std::strstr(gpu.name, "Emulated");  // a bandwidth of such a GPU would mean nothing
  if (rank == 0) std::printf("# %s%s\n", gpu.name, emulated ? ": right or wrong, no bandwidth" : "");
  if (rank == 0) std::printf("this MPI %s CUDA-aware\n", cuda_aware() ? "is" : "does not say that it is");
  int wrong = 0;
  // Directly only if MPI is CUDA-aware: another one would take the GPU's address for one of the host.
  for (int way = 0; way < (cuda_aware() ? 2 : 1); ++way) {
    CHECK(cudaMemsetAsync(b.got, 0, bytes, b.stream));
    fill<<<(count + 255) / 256, 256, 0, b.stream>>>(b.mine, 10000 * (rank + 1) + way);
    CHECK(cudaGetLastError());
    way == 0 ? staged(b) : direct(b);
    CHECK(cudaMemcpyAsync(b.host, b.got, bytes, cudaMemcpyDeviceToHost, b.stream));
    CHECK(cudaStreamSynchronize(b.stream));
    for (int i = 0; i < count; ++i) wrong += b.host[i] != 10000 * (b.left + 1) + way + i;
    if (rank == 0) std::printf("%s\n", way == 0 ? "staged through host memory" : "sent from device memory");
  }
  std::vector<int> pageable(count);
  const double locked = copy_to_host(b, b.host), other = copy_to_host(b, pageable.data());
  for (int i = 0; i < count; ++i) wrong += pageable[i] != b.host[i] || b.host[i] - i != b.host[0];
  if (rank == 0 && !emulated) std::printf("copies: page-locked %.1f GB/s, pageable %.1f GB/s\n", locked, other);
  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) std::printf("%s: %d elements wrong\n", wrong == 0 ? "RIGHT" : "WRONG", wrong);
  CHECK(cudaFreeHost(b.host));
  CHECK(cudaFree(b.got));
  CHECK(cudaFree(b.mine));
  CHECK(cudaStreamDestroy(b.stream));
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("cuda_aware: standard output"), 1;
  return wrong == 0 ? 0 : 1;
}
