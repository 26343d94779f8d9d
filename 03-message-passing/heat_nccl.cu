// heat.cpp on GPUs, one process per GPU: the halo exchange is a group of ncclSend and ncclRecv, on the kernels' stream
// and on a stream beside it, or MPI's with device memory. The bits are those of one process on a CPU.
//
//   nvcc -std=c++20 -O2 -arch=native -ccbin mpicxx heat_nccl.cu -o heat_nccl -lnccl
//   mpirun -n 2 ./heat_nccl                 without a GPU: with-gpus 2 mpirun ...
//   mpirun -n 2 ./heat_nccl MPI             needs a CUDA-aware MPI
//   mpirun -n 2 ./heat_nccl two_streams     alone, or one_stream, with names for who_waits --timeline
//
// Exit status: 0 if every cell has the bits of one process, 1 if not, or if a call failed, 2 bad command line.
// After: heat.cpp, cuda_aware.cu. New: ncclGroupStart, ncclGroupEnd, two streams, a CUDA graph.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>
#include <nccl.h>
#if __has_include(<mpi-ext.h>)  // Open MPI's extensions
#include <mpi-ext.h>
#endif

#include <algorithm>
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
constexpr int steps = 200, total = 20000, tag = 5;

bool cuda_aware() {  // as in cuda_aware.cu
#if OMPI_HAVE_MPI_EXT_CUDA
  return MPIX_Query_cuda_support() == 1;
#else
  return false;
#endif
}

// The functions that end with _rn round every operation: nvcc would fuse the product and the sum.
__global__ void step(const double* old, double* now, int first, int last) {
  const int i = first + int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i > last) return;
  const double u = old[i], slopes = __dadd_rn(__dsub_rn(old[i - 1], u), __dsub_rn(old[i + 1], u));
  now[i] = __dadd_rn(u, __dmul_rn(r, slopes));
}

struct Rod {               // of one rank. Cells 0 and cells + 1 are the halo
  int left, right, cells;  // MPI_PROC_NULL at the ends of the rod: a wall
  ncclComm_t world;
  cudaStream_t stream = nullptr, halo = nullptr;
  cudaEvent_t computed = nullptr, received = nullptr;
  double *old = nullptr, *now = nullptr;
  bool marks = false;

  // For who_waits --timeline: at this place of the stream begins (1) or ends (-1) what has this name.
  template <int level>
  void mark(cudaStream_t on, const char* name) const {
    const auto region = [](void* text) { MPI_Pcontrol(level, static_cast<char*>(text)); };
    if (marks)
      CHECK(cudaLaunchHostFunc(on, region, const_cast<char*>(name)));  // CUDA calls it when the stream is there
  }
  void compute(int first, int last) const {
    if (first > last) return;
    step<<<(last - first + 256) / 256, 256, 0, stream>>>(old, now, first, last);
    CHECK(cudaGetLastError());
  }
};

void over_mpi(const Rod& rod) {
  const auto& [left, right, cells, world, stream, halo, computed, received, old, now, marks] = rod;
  CHECK(cudaStreamSynchronize(stream));  // MPI knows no streams: the step before must be complete
  MPI_Sendrecv(&old[cells], 1, MPI_DOUBLE, right, tag, &old[0], 1, MPI_DOUBLE, left, tag, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
  MPI_Sendrecv(&old[1], 1, MPI_DOUBLE, left, tag, &old[cells + 1], 1, MPI_DOUBLE, right, tag, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
  rod.compute(1, cells);
}

// The four messages of a group start together, so their order does not matter. Without the group, each call may wait
// for the one before it on the stream, and two neighbours that both send first can deadlock.
void exchange(const Rod& rod, cudaStream_t stream) {
  rod.mark<1>(stream, "messages");
  CHECK(ncclGroupStart());
  if (rod.right >= 0) CHECK(ncclSend(&rod.old[rod.cells], 1, ncclDouble, rod.right, rod.world, stream));
  if (rod.left >= 0) CHECK(ncclSend(&rod.old[1], 1, ncclDouble, rod.left, rod.world, stream));
  if (rod.left >= 0) CHECK(ncclRecv(&rod.old[0], 1, ncclDouble, rod.left, rod.world, stream));
  if (rod.right >= 0) CHECK(ncclRecv(&rod.old[rod.cells + 1], 1, ncclDouble, rod.right, rod.world, stream));
  CHECK(ncclGroupEnd());
  rod.mark<-1>(stream, "messages");
}

void one_stream(const Rod& rod) {
  exchange(rod, rod.stream);
  rod.mark<1>(rod.stream, "all cells");
  rod.compute(1, rod.cells);  // after the messages: it is on the same stream
  rod.mark<-1>(rod.stream, "all cells");
}

void two_streams(const Rod& rod) {
  CHECK(cudaEventRecord(rod.computed, rod.stream));
  CHECK(cudaStreamWaitEvent(rod.halo, rod.computed, 0));  // the step before must be complete
  exchange(rod, rod.halo);
  CHECK(cudaEventRecord(rod.received, rod.halo));
  rod.mark<1>(rod.stream, "inner cells");
  rod.compute(2, rod.cells - 1);  // meanwhile: these cells need no halo
  rod.mark<-1>(rod.stream, "inner cells");
  CHECK(cudaStreamWaitEvent(rod.stream, rod.received, 0));
  rod.mark<1>(rod.stream, "two cells");
  rod.compute(1, 1);
  rod.compute(rod.cells, rod.cells);
  rod.mark<-1>(rod.stream, "two cells");
}

// Two, so that the result is where the start was: a graph keeps the addresses.
void two_steps(Rod& rod, void (*way)(const Rod&)) {
  for (int i = 0; i < 2; ++i) {
    std::swap(rod.old, rod.now);
    way(rod);
  }
}

// Two steps as a CUDA graph: between begin and end, calls are noted and nothing runs. The stream `halo` belongs to it,
// because it waits for an event of the stream that is captured, and that one for an event of `halo` before the end.
cudaGraphExec_t captured(Rod& rod) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  CHECK(cudaStreamBeginCapture(rod.stream, cudaStreamCaptureModeThreadLocal));  // NCCL's threads call CUDA, too
  two_steps(rod, two_streams);
  CHECK(cudaStreamEndCapture(rod.stream, &graph));
  CHECK(cudaGraphInstantiateWithFlags(&ready, graph, 0));
  CHECK(cudaGraphDestroy(graph));
  return ready;
}

int main(int argc, char** argv) {
  int rank = 0, size = 0, asked = 1, local_rank = 0, devices = 0, level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);  // CUDA's threads call MPI_Pcontrol
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;
  const std::string option = argc > 1 ? argv[1] : "";
  const bool mpi = option == "MPI", one = option == "one_stream", two = option == "two_streams";
  if (argc > 1 && !mpi && !one && !two) {
    if (rank == 0)
      std::fprintf(stderr, "heat_nccl: unknown argument '%s': MPI, one_stream, two_streams, or none\n", argv[1]);
    return MPI_Finalize(), 2;
  }
  if (size > total) return std::fprintf(stderr, "heat_nccl: at most one process per cell, 20000\n"), MPI_Finalize(), 1;
  if (mpi && !cuda_aware()) {  // it would take the GPU's address for one of the host
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
  const std::size_t bytes = cells * sizeof(double);
  Rod rod{rank > 0 ? rank - 1 : MPI_PROC_NULL, rank < size - 1 ? rank + 1 : MPI_PROC_NULL, cells, world};
  rod.marks = one || two;
  for (cudaStream_t* stream : {&rod.stream, &rod.halo}) CHECK(cudaStreamCreate(stream));
  for (cudaEvent_t* event : {&rod.computed, &rod.received})
    CHECK(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
  for (double** memory : {&rod.old, &rod.now}) CHECK(cudaMalloc(memory, bytes + 2 * sizeof(double)));

  std::vector<double> start(total + 2), whole, previous, own(cells);
  for (int i = 1; i <= total; ++i) start[i] = std::sin(std::numbers::pi * i / (total + 1));
  whole = previous = start;  // all steps on the CPU, the rod as a whole, for the comparison
  for (int i = 0; i < steps; ++i) {
    std::swap(previous, whole);
    for (int k = 1; k <= total; ++k)
      whole[k] = previous[k] + r * ((previous[k - 1] - previous[k]) + (previous[k + 1] - previous[k]));
  }

  std::vector<void (*)(const Rod&)> ways{one_stream, two_streams, nullptr};  // nullptr: as a graph
  if (argc > 1) ways = {mpi ? over_mpi : one ? one_stream : two_streams};
  std::vector<int> differ(ways.size());
  for (std::size_t way = 0; way < ways.size(); ++way) {
    for (double* memory : {rod.old, rod.now}) CHECK(cudaMemset(memory, 0, bytes + 2 * sizeof(double)));  // walls, too
    CHECK(cudaMemcpy(&rod.now[1], &start[first + 1], bytes, cudaMemcpyHostToDevice));
    CHECK(cudaDeviceSynchronize());  // cudaMemcpy may return before the GPU has all, and MPI knows no streams
    cudaGraphExec_t graph = ways[way] ? nullptr : captured(rod);
    for (int i = 0; i < steps / 2; ++i)
      if (graph)
        CHECK(cudaGraphLaunch(graph, rod.stream));
      else
        two_steps(rod, ways[way]);
    CHECK(cudaMemcpyAsync(own.data(), &rod.now[1], bytes, cudaMemcpyDeviceToHost, rod.stream));
    CHECK(cudaStreamSynchronize(rod.stream));
    if (graph) CHECK(cudaGraphExecDestroy(graph));  // it holds calls of the communicator, which waits for it
    for (int i = 0; i < cells; ++i) differ[way] += own[i] != whole[first + 1 + i];
  }
  MPI_Allreduce(MPI_IN_PLACE, differ.data(), int(differ.size()), MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  std::string numbers = std::to_string(differ[0]);
  for (std::size_t way = 1; way < ways.size(); ++way) numbers += " + " + std::to_string(differ[way]);
  const bool right = *std::ranges::max_element(differ) == 0;
  if (rank == 0)
    std::printf("%s: %s of %d cells differ from one process\n", right ? "RIGHT" : "WRONG", numbers.c_str(), total);
  for (double* memory : {rod.now, rod.old}) CHECK(cudaFree(memory));
  for (cudaEvent_t event : {rod.received, rod.computed}) CHECK(cudaEventDestroy(event));
  for (cudaStream_t stream : {rod.halo, rod.stream}) CHECK(cudaStreamDestroy(stream));
  CHECK(ncclCommDestroy(world));
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("heat_nccl: standard output"), 1;
  return right ? 0 : 1;
}
