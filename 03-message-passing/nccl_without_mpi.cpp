// An all-reduce with NCCL and without MPI: the processes pass NCCL's id on in a file that all nodes see.
//
//   g++ -std=c++20 -O2 nccl_without_mpi.cpp -o nccl_without_mpi -I/usr/local/cuda/include -L/usr/local/cuda/lib64 -lnccl -lcudart
//   for r in 0 1; do RANK=$r LOCAL_RANK=$r WORLD_SIZE=2 ./nccl_without_mpi id & done; wait
//
// Any launcher that sets these three variables will do: torchrun, mnrun, or a loop. Take a new file name for every run.
// With the number of a rank behind the file, that rank ends before the last sum, and the others abort it.
// Exit status: 0 if every element is right, 1 if not, or if a call failed.
// After: send_nccl.cpp. New: an id in a file, ncclCommAbort.
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>
#include <nccl.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

const char* reason(cudaError_t code) { return cudaGetErrorString(code); }
const char* reason(ncclResult_t) { return ncclGetLastError(nullptr); }  // the reason, not only the kind of error
// Says where a call failed. If a kernel fails, a later call returns its error.
template <class Code>
void check(Code code, const char* file, int line, const char* call) {
  if (code == Code{}) return;
  throw std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + call + ": " + reason(code));
}
#define CHECK(call) check(call, __FILE__, __LINE__, #call)

int number(const char* variable) {
  const char* text = std::getenv(variable);
  if (!text) throw std::runtime_error(std::string(variable) + " is not set: start it with torchrun, mnrun or a loop");
  return std::atoi(text);
}

// Rank 0 makes the id: it says at which address and port rank 0 listens. The others need a copy of it, and how they get
// it is up to the program: MPI_Bcast, a file as here, or a socket.
ncclUniqueId id_for_all(int rank, const std::string& file) {
  ncclUniqueId id{};
  if (rank == 0) {
    if (std::filesystem::exists(file))
      throw std::runtime_error(file + " is there already: take a new name for each run");
    CHECK(ncclGetUniqueId(&id));
    std::ofstream(file + ".part", std::ios::binary).write(id.internal, sizeof id.internal);
    std::filesystem::rename(file + ".part", file);  // the others see all of it or nothing
    return id;
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!std::filesystem::exists(file)) {
    if (std::chrono::steady_clock::now() > deadline) throw std::runtime_error("no " + file + " from rank 0 after 60 s");
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::ifstream(file, std::ios::binary).read(id.internal, sizeof id.internal);
  return id;
}

// Waits for the stream, but not forever: after 15 s a thread ends the communicator's kernels, and the result is false.
// NCCL itself notices a rank that is gone on other nodes only.
bool complete(cudaStream_t stream, ncclComm_t comm) {
  std::promise<void> done;
  std::future<bool> in_time = std::async(std::launch::async, [&] {
    if (done.get_future().wait_for(std::chrono::seconds(15)) == std::future_status::ready) return true;
    CHECK(ncclCommAbort(comm));  // not ncclCommDestroy, which may wait for the other ranks
    return false;
  });
  CHECK(cudaStreamSynchronize(stream));
  done.set_value();
  return in_time.get();
}

int main(int argc, char** argv) try {
  if (argc < 2) throw std::runtime_error("usage: RANK=r LOCAL_RANK=l WORLD_SIZE=n ./nccl_without_mpi FILE [GONE]");
  const int rank = number("RANK"), size = number("WORLD_SIZE"), local_rank = number("LOCAL_RANK");
  int devices = 0;
  CHECK(cudaGetDeviceCount(&devices));
  CHECK(cudaSetDevice(local_rank % devices));
  ncclComm_t comm = nullptr;
  CHECK(ncclCommInitRank(&comm, size, id_for_all(rank, argv[1]), rank));  // returns when all ranks have called it
  if (rank == 0) std::filesystem::remove(argv[1]);

  const std::size_t count = 1000;
  std::vector<int> host(count);
  for (std::size_t i = 0; i < count; ++i) host[i] = rank + int(i);
  cudaStream_t stream = nullptr;
  int* block = nullptr;
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaMalloc(&block, count * sizeof(int)));
  CHECK(cudaMemcpyAsync(block, host.data(), count * sizeof(int), cudaMemcpyHostToDevice, stream));
  CHECK(ncclAllReduce(block, block, count, ncclInt, ncclSum, comm, stream));  // in place: the same block twice
  CHECK(cudaMemcpyAsync(host.data(), block, count * sizeof(int), cudaMemcpyDeviceToHost, stream));
  CHECK(cudaStreamSynchronize(stream));
  int wrong = 0;
  for (std::size_t i = 0; i < count; ++i) wrong += host[i] != size * (size - 1) / 2 + size * int(i);

  // All ranks have the same exit status, so they add up what they found.
  if (argc > 2 && rank == std::atoi(argv[2])) return 0;  // without a word to the others
  CHECK(cudaMemcpyAsync(block, &wrong, sizeof wrong, cudaMemcpyHostToDevice, stream));
  CHECK(ncclAllReduce(block, block, 1, ncclInt, ncclSum, comm, stream));
  CHECK(cudaMemcpyAsync(&wrong, block, sizeof wrong, cudaMemcpyDeviceToHost, stream));
  bool all = true;
  if (argc > 2)
    all = complete(stream, comm);
  else
    CHECK(cudaStreamSynchronize(stream));
  if (!all)
    std::printf("WRONG: rank %d: aborted, the GPU is free\n", rank);
  else if (rank == 0)
    std::printf("%s: %d elements wrong\n", wrong == 0 ? "RIGHT" : "WRONG", wrong);
  CHECK(cudaFree(block));
  CHECK(cudaStreamDestroy(stream));
  if (all) CHECK(ncclCommDestroy(comm));
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("nccl_without_mpi: standard output"), 1;
  return all && wrong == 0 ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
