// One process drives all GPUs of a node: a communicator and a stream for each, and a group around the calls of all.
//
//   nvcc -std=c++20 -O2 -arch=native one_process_many_gpus.cu -o one_process_many_gpus -lnccl
//   ./one_process_many_gpus                 without a GPU: with-gpus 4 ./one_process_many_gpus
//   ./one_process_many_gpus no-group        may hang
//
// Exit status: 0 if every element is right on every GPU, 1 if not, or if a call failed, 2 bad command line.
// After: send_nccl.cpp. New: ncclCommInitAll, a group of collectives, the current GPU of a thread.
// SPDX-License-Identifier: Apache-2.0
#include <nccl.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

const char* reason(cudaError_t code) { return cudaGetErrorString(code); }
const char* reason(ncclResult_t) { return ncclGetLastError(nullptr); }  // the reason, not only the kind of error
// Says where a call failed. If a kernel fails, a later call returns its error.
template <class Code>
void check(Code code, const char* file, int line, const char* call) {
  if (code == Code{}) return;
  std::fprintf(stderr, "%s:%d: %s: %s\n", file, line, call, reason(code));
  std::exit(1);
}
#define CHECK(call) check(call, __FILE__, __LINE__, #call)

constexpr int count = 1000;
__global__ void fill(int* block, int rank) {
  for (int i = int(threadIdx.x); i < count; i += int(blockDim.x)) block[i] = rank + i;
}

int main(int argc, char** argv) {
  const bool grouped = argc == 1;
  if (!grouped && argv[1] != std::string("no-group"))
    return std::fprintf(stderr, "one_process_many_gpus: unknown argument '%s': no-group, or none\n", argv[1]), 2;
  int devices = 0;
  CHECK(cudaGetDeviceCount(&devices));
  std::vector<ncclComm_t> comms(devices);
  CHECK(ncclCommInitAll(comms.data(), devices, nullptr));  // comms[gpu] is of rank `gpu`. No id: all is in this process

  std::vector<cudaStream_t> streams(devices);
  std::vector<int*> blocks(devices);
  for (int gpu = 0; gpu < devices; ++gpu) {
    CHECK(cudaSetDevice(gpu));  // for what this thread allocates, creates and launches from here on
    CHECK(cudaStreamCreate(&streams[gpu]));
    CHECK(cudaMalloc(&blocks[gpu], count * sizeof(int)));
    fill<<<1, 256, 0, streams[gpu]>>>(blocks[gpu], gpu);
    CHECK(cudaGetLastError());
  }

  // A call may wait until all ranks have made it, and this thread makes those of all ranks: the group starts them
  // together.
  if (grouped) CHECK(ncclGroupStart());
  for (int gpu = 0; gpu < devices; ++gpu)  // no cudaSetDevice: a communicator knows its GPU
    CHECK(ncclAllReduce(blocks[gpu], blocks[gpu], count, ncclInt, ncclSum, comms[gpu], streams[gpu]));
  if (grouped) CHECK(ncclGroupEnd());

  int wrong = 0;
  std::vector<int> sum(count);
  for (int gpu = 0; gpu < devices; ++gpu) {
    CHECK(cudaMemcpyAsync(sum.data(), blocks[gpu], count * sizeof(int), cudaMemcpyDeviceToHost, streams[gpu]));
    CHECK(cudaStreamSynchronize(streams[gpu]));
    for (int i = 0; i < count; ++i) wrong += sum[i] != devices * (devices - 1) / 2 + devices * i;
  }
  std::printf("%s: %d of %d elements wrong\n", wrong == 0 ? "RIGHT" : "WRONG", wrong, devices * count);
  for (int* block : blocks) CHECK(cudaFree(block));
  for (cudaStream_t stream : streams) CHECK(cudaStreamDestroy(stream));
  for (ncclComm_t comm : comms) CHECK(ncclCommDestroy(comm));
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("one_process_many_gpus: standard output"), 1;
  return wrong == 0 ? 0 : 1;
}
