// Faults of kernels: each has CUDA's error until the process ends. A separate process makes each of them. These are
// those that planted_mistakes.cu does not make, and one of each kind of error.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <gtest/gtest.h>

#undef NDEBUG
#include <cassert>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

const int devices = setenv("EMULATED_GPUS", "2", 0);

__global__ void beyond(int* p) { p[blockIdx.x * blockDim.x + threadIdx.x] = 1; }
__global__ void read_one(const int* p, int* q) { *q = *p; }
__global__ void misaligned(char* p) { *reinterpret_cast<int*>(p + 2 * threadIdx.x) = 1; }
__global__ void asserts(int n) { assert(n > static_cast<int>(threadIdx.x)); }
__global__ void traps() {
  if (threadIdx.x == 2) __trap();
}
__global__ void missing_thread(int* p) {
  if (threadIdx.x == 40)
    while (*static_cast<volatile int*>(p) != 1) __syncwarp(1u << 9);
  __syncthreads();
}
__global__ void named_barrier() {
  if (threadIdx.x < 32) asm volatile("bar.sync 1, 128;");
}
__device__ __noinline__ int endless(int n) { return n == 1 << 30 ? n : endless(n + 1) * 3 + n; }
__global__ void overflows(int* p) { *p = endless(*p & 1); }
__host__ __device__ __noinline__ unsigned deep(unsigned n) { return n == 0 ? 1 : deep(n - 1) * 3 + n; }
__global__ void calls_deep(unsigned n, int* p) { *p = static_cast<int>(deep(n)); }

// With EMULATED_GPU_CHECK=1
__global__ void race_of_lanes(int* p) {
  __shared__ int s[32];
  s[threadIdx.x] = p[threadIdx.x];
  p[threadIdx.x] = s[31 - threadIdx.x];
}
__global__ void no_race(int* p) {
  __shared__ int s[64], sum;
  if (threadIdx.x == 0) sum = 0;
  s[threadIdx.x] = threadIdx.x;
  __syncwarp();
  int v = s[threadIdx.x ^ 1];
  __syncthreads();
  atomicAdd(&sum, v);
  __syncthreads();
  s[threadIdx.x] = sum;
  __syncwarp();
  p[threadIdx.x] = s[threadIdx.x ^ 3];
}
__global__ void one_flag(int* p, bool same) {
  __shared__ int found;
  if (threadIdx.x == 0) found = 0;
  __syncthreads();
  if (threadIdx.x % 3 == 0) found = same ? 1 : threadIdx.x;
  __syncthreads();
  p[threadIdx.x] = found;
}
__global__ void tile_of_two_warps(int* p) {
  __shared__ cooperative_groups::block_tile_memory<64> memory;
  const auto tile = cooperative_groups::tiled_partition<64>(cooperative_groups::this_thread_block(memory));
  p[threadIdx.x] = cooperative_groups::reduce(tile, int(threadIdx.x), cooperative_groups::plus<int>());
}
int* memory(std::size_t count) {
  int* p = nullptr;
  cudaMalloc(&p, count * sizeof(int));
  cudaMemset(p, 0, count * sizeof(int));
  return p;
}

// Runs `launch` in another process, which must say `wanted` and get `code` from now on.
template <class F>
void expect_fault(F launch, cudaError_t code, const std::string& wanted, bool check = false) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto child = [&] {
    if (check) setenv("EMULATED_GPU_CHECK", "1", 1);
    launch();
    const cudaError_t first = cudaDeviceSynchronize(), second = cudaGetLastError(),
                      later = cudaStreamSynchronize(nullptr);
    std::fprintf(stderr, "errors %d %d %d\n", first, second, later);
    std::_Exit(first == code && second == code && later == code ? 0 : 1);
  };
  EXPECT_EXIT(child(), testing::ExitedWithCode(0), wanted);
}
const std::string line = ".*faults_test.cu:[0-9]+\\)";

}  // namespace

TEST(Faults, HaveTheErrorsOfCuda) {
  expect_fault([] { beyond<<<4, 32>>>(memory(100)); }, cudaErrorIllegalAddress,
               "kernel .*beyond\\(int\\*\\), block \\(3,0,0\\), thread \\(4,0,0\\): access of 4 bytes at .* the first "
               "byte after a buffer of 400 bytes: st.global.*" +
                   line);
  expect_fault([] { misaligned<<<1, 4>>>(reinterpret_cast<char*>(memory(10))); }, cudaErrorMisalignedAddress,
               "thread \\(1,0,0\\): misaligned access of 4 bytes" + line);
  expect_fault([] { asserts<<<1, 4>>>(3); }, cudaErrorAssert, "thread \\(3,0,0\\): .*Assertion `n > ");
  expect_fault([] { traps<<<1, 4>>>(); }, cudaErrorLaunchFailure, "thread \\(2,0,0\\): trap" + line);
  expect_fault([] { named_barrier<<<1, 64>>>(); }, cudaErrorLaunchTimeout, "waits forever.*bar.sync" + line);
}
TEST(Faults, MissingThread) {
  expect_fault([] { missing_thread<<<1, 64>>>(memory(1)); }, cudaErrorLaunchFailure,
               "thread \\(40,0,0\\): the thread is not in its member mask: bar.warp.sync 512");
}
TEST(Faults, StackOverflow) {
  expect_fault([] { overflows<<<1, 1>>>(memory(1)); }, cudaErrorHardwareStackError, "stack overflow");
  expect_fault([] { calls_deep<<<1, 1>>>(10000, memory(1)); }, cudaErrorHardwareStackError, "cudaLimitStackSize");
}
TEST(Faults, TheStackHasItsLimit) {
  std::size_t bytes = 0;
  ASSERT_EQ(cudaDeviceGetLimit(&bytes, cudaLimitStackSize), cudaSuccess);
  EXPECT_EQ(bytes, 1024u);
  ASSERT_EQ(cudaDeviceSetLimit(cudaLimitStackSize, 512 << 10), cudaSuccess);
  int result = 0, *const p = memory(1);
  calls_deep<<<1, 1>>>(10000, p);
  EXPECT_EQ(cudaMemcpy(&result, p, sizeof result, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(result, static_cast<int>(deep(10000)));
  EXPECT_EQ(cudaFree(p), cudaSuccess);
  EXPECT_EQ(cudaDeviceSetLimit(cudaLimitStackSize, 1 << 20), cudaErrorInvalidValue);
  EXPECT_EQ(cudaDeviceSetLimit(cudaLimitDevRuntimeSyncDepth, 2), cudaErrorUnsupportedLimit);
}

// It continues with the old values, as a GPU would.
TEST(Faults, ABufferBeforeItsCopyHasArrived) {
  static const auto copy_and_use = [](bool wait) {
    cudaStream_t stream;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    int *const p = memory(1), *const q = memory(1), value = 7;
    cudaMemcpy(p, &value, sizeof value, cudaMemcpyHostToDevice);
    if (wait) cudaStreamSynchronize(nullptr);
    read_one<<<1, 1, 0, stream>>>(p, q);
    cudaMemcpyAsync(&value, q, sizeof value, cudaMemcpyDeviceToHost, stream);
    cudaStreamSynchronize(stream);
    std::fprintf(stderr, "value %s\n", value == 7 ? "new" : "old");
  };
  expect_fault([] { copy_and_use(false); }, cudaSuccess,
               "cudaMemcpy from pageable memory may still be copying, .*ld.global" + line + "\nvalue old");
  expect_fault([] { copy_and_use(true); }, cudaSuccess, "^value new");
}

TEST(Check, FindsARaceOfLanesAndAcceptsBarriers) {
  expect_fault([] { race_of_lanes<<<1, 32>>>(memory(32)); }, cudaErrorLaunchFailure, "race on shared memory", true);
  expect_fault([] { no_race<<<1, 64>>>(memory(64)); }, cudaSuccess, "", true);
}
TEST(Check, AcceptsThreadsThatWriteTheSameValue) {
  expect_fault([] { one_flag<<<1, 64>>>(memory(64), true); }, cudaSuccess, "", true);
  expect_fault([] { one_flag<<<1, 64>>>(memory(64), false); }, cudaErrorLaunchFailure, "race on shared memory", true);
}
TEST(Check, AcceptsReleaseAndAcquire) {
  expect_fault([] { tile_of_two_warps<<<1, 64>>>(memory(64)); }, cudaSuccess, "", true);
}
TEST(Check, IsOffByDefault) {
  expect_fault([] { race_of_lanes<<<1, 32>>>(memory(32)); }, cudaSuccess, "");
}
