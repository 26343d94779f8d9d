// Mistakes that people make with GPUs: `planted_mistakes NAME` makes one, `planted_mistakes NAME --corrected` runs the
// same program without it, `planted_mistakes --list` prints the names. planted_mistakes_test.py has the report of each.
// `mistake:` with its name, or the kernel's, is on the line that the report names.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_runtime.h>

#undef NDEBUG
#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

constexpr int n = 1000, threads = 256, blocks = (n + threads - 1) / threads;

void check(cudaError_t code, int line = __builtin_LINE()) {
  if (code != cudaSuccess)
    throw std::runtime_error("planted_mistakes.cu:" + std::to_string(line) + ": " + cudaGetErrorName(code) + ": " +
                             cudaGetErrorString(code));
}

template <class T>
struct Buffer {
  explicit Buffer(std::size_t count) { check(cudaMalloc(&data, count * sizeof(T))); }
  Buffer(std::size_t count, T value) : Buffer(std::vector<T>(count, value)) {}
  explicit Buffer(const std::vector<T>& from) : Buffer(from.size()) {
    check(cudaMemcpy(data, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
    check(cudaDeviceSynchronize());
  }
  Buffer(const Buffer&) = delete;
  ~Buffer() { cudaFree(data); }
  operator T*() const { return data; }
  T* data = nullptr;
};
Buffer<float> ones(int count = n) { return {static_cast<std::size_t>(count), 1}; }
Buffer<int> zeros(int count = n) { return {static_cast<std::size_t>(count), 0}; }

struct Stream {
  explicit Stream(unsigned flags = cudaStreamNonBlocking) { check(cudaStreamCreateWithFlags(&stream, flags)); }
  Stream(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(stream); }
  operator cudaStream_t() const { return stream; }
  cudaStream_t stream = nullptr;
};
// Kernels with a mistake, unless `right`

__device__ int index() { return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); }

__global__ void add(bool right, float* y, const float* x) {
  if (right ? index() < n : index() <= n) y[index()] += x[index()];  // mistake: less_or_equal
}
__global__ void stencil(bool right, float* out, const float* in) {
  for (int i = index(); i < n - 1; i += blockDim.x * gridDim.x)
    if (i > 0 || !right) out[i] = in[i - 1] + in[i] + in[i + 1];  // mistake: edge_of_stencil
}
__global__ void delay(bool right, int* out, const int* values) {
  int last[4] = {};
  for (int k = 0; k < 8; ++k) {
    out[k] = last[right ? (values[k] + 3) % 4 : values[k] % 4 - 1];  // mistake: negative_index
    last[values[k] % 4] = k;
  }
}
__global__ void move4(bool right, float* to, const float* from) {
  const auto* const four = reinterpret_cast<const float4*>(from + 4 * index() + (right ? 0 : 1));
  if (4 * index() + 4 < n) reinterpret_cast<float4*>(to)[index()] = *four;  // mistake: float4_at_odd_index
}
__global__ void sum(bool right, float* out, const float* in) {
  __shared__ float part[threads];
  part[threadIdx.x] = in[threadIdx.x];
  for (int half = threads / 2; half > 0; half /= 2) {
    if (right || half == threads / 2) __syncthreads();
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];  // mistake: no_barrier_in_reduction
  }
  if (threadIdx.x == 0) *out = part[0];
}
__global__ void reverse(bool right, float* x) {
  __shared__ float shared_copy[threads];
  shared_copy[threadIdx.x] = index() < n ? x[index()] : 0;
  if (right) __syncthreads();
  if (index() < n) {
    if (!right) __syncthreads();  // mistake: barrier_in_branch
    x[index()] = shared_copy[threads - 1 - threadIdx.x];
  }
  __syncthreads();
}
__global__ void rotate(float* x) {
  extern __shared__ float shared_copy[];
  shared_copy[threadIdx.x] = x[threadIdx.x];  // mistake: dynamic_shared_too_small
  __syncthreads();
  x[threadIdx.x] = shared_copy[(threadIdx.x + 1) % blockDim.x];
}
__global__ void first_of_warps(bool right, float* out, const float* in) {
  __shared__ float first[32];
  if (right && threadIdx.x < 32) first[threadIdx.x] = 0;
  __syncthreads();
  if (threadIdx.x % 32 == 0) first[threadIdx.x / 32] = in[threadIdx.x];
  __syncthreads();
  if (threadIdx.x < 32) out[threadIdx.x] = first[threadIdx.x];  // mistake: shared_not_set
}
__global__ void sum_of_lanes(bool right, float* out, const float* in, int count) {
  float value = threadIdx.x < count ? in[threadIdx.x] : 0;
  if (right || threadIdx.x < count)
    for (int apart = 16; apart > 0; apart /= 2) value += __shfl_down_sync(~0u, value, apart);  // mistake: lanes_missing
  __syncthreads();
  if (threadIdx.x == 0) *out = value;
}
__global__ void require_positive(const float* x) {
  assert(x[threadIdx.x] > 0);  // mistake: assertion
}
__global__ void traps(bool right) {
  if (threadIdx.x == 2 && !right) __trap();  // mistake: trap
}
__global__ void wait_without_member(bool right) {
  if (threadIdx.x == 40) __syncwarp(right ? 1u << 8 : 1u << 9);  // mistake: not_in_mask
}
__device__ __noinline__ int endless(int k) { return k == 50 ? k : endless(k + 1) * 3 + k; }  // mistake: stack_overflow
__global__ void recurse(bool right, int* out) { *out = endless(right ? 40 : 60); }
// The corrected kernel also has barriers, atomic operations and releases that order its accesses.
__global__ void exchange_in_warp(bool right, int* out) {
  namespace groups = cooperative_groups;
  __shared__ int values[64], total;
  __shared__ groups::block_tile_memory<64> memory;
  const unsigned t = threadIdx.x;
  values[t] = out[t];
  if (right) __syncwarp();
  int sum = values[t ^ 1];  // mistake: no_syncwarp
  if (t == 0) total = 0;
  __syncthreads();
  atomicAdd(&total, sum);
  sum += groups::reduce(groups::tiled_partition<64>(groups::this_thread_block(memory)), sum, groups::plus<int>());
  __syncthreads();
  out[t] = sum + total;
}
__global__ void set_flag(bool right, int* out) {
  __shared__ int found;
  if (threadIdx.x == 0) found = 0;
  __syncthreads();
  if (threadIdx.x % 3 == 0) found = right ? 1 : threadIdx.x;  // mistake: flag_of_different_values
  __syncthreads();
  out[threadIdx.x] = found;
}
__global__ void add_of_warps(bool right, int* total) {
  const int warp = __popc(__ballot_sync(~0u, true));
  if (threadIdx.x % 32 == 0 && right) atomicAdd(total, warp);
  if (threadIdx.x % 32 == 0 && !right) *total += warp;  // mistake: no_atomic no_atomic_in_block
}
// The corrected kernel takes its place in the chain when it starts, waits for the one before, and has fences.
__global__ void chain(bool right, int* ticket, volatile int* flags, int* values) {
  const int at = right ? atomicAdd(ticket, 1) : static_cast<int>(blockIdx.x);
  while (right && at > 0 && flags[at - 1] == 0) {
  }
  __threadfence();
  values[at] = at > 0 ? values[at - 1] + 1 : 1;  // mistake: blocks_in_order
  if (right) __threadfence();
  flags[at] = 1;
}
__global__ void sum_by_last_block(bool right, int* ticket, int* parts, int* total) {
  __shared__ bool last;
  if (threadIdx.x == 0) parts[blockIdx.x] = 1;
  if (right) __threadfence();
  if (threadIdx.x == 0) last = atomicAdd(ticket, 1) == static_cast<int>(gridDim.x) - 1;
  __syncthreads();
  if (last && threadIdx.x < gridDim.x) atomicAdd(total, parts[threadIdx.x]);  // mistake: no_fence
}
__global__ void sum_of_some(bool right, int* out) {
  if (!right && threadIdx.x >= 20) return;
  int value = threadIdx.x < 20 ? 1 : 0;
  for (int apart = 16; apart > 0; apart /= 2) value += __shfl_down_sync(~0u, value, apart);  // mistake: lanes_ended
  if (threadIdx.x == 0) *out = value;
}
__global__ void reverse_all(int* out) {
  __shared__ int fixed[11000];
  fixed[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = fixed[31 - threadIdx.x];
}
__global__ void count_twice(bool right, int* out) {
  __shared__ int once[32], twice[32];
  once[threadIdx.x] = threadIdx.x;
  twice[threadIdx.x] = 2 * threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = twice[threadIdx.x] - once[threadIdx.x + (right ? 0 : 32)];  // mistake: next_shared_array
}
__global__ void number_lanes(bool right, int* next, int* lanes) {
  lanes[right ? threadIdx.x : atomicAdd(next, 1)] = threadIdx.x;
}
__global__ void meet(volatile int* arrived) {
  atomicAdd(const_cast<int*>(arrived), 1);
  while (*arrived < gridDim.x) {  // mistake: too_many_blocks
  }
}
// Sets x, tells the host so with the flag, and runs until the host has changed the flag.
__global__ void set_and_tell(bool right, float* x, volatile int* flag) {
  *x = 1;
  if (right) __threadfence_system();
  *flag = 1;
  while (*flag == 1) {
  }
}
__global__ void scale(float* x) {
  if (index() < n) x[index()] *= 2;  // mistake: scale
}
__global__ void set_all(float* x) {
  if (index() < n) x[index()] = 1;
}

// A kernel that leaves its result in the last element of a buffer
template <class Launch>
void expect(int wanted, Launch launch) {
  const Buffer<int> p = zeros();
  launch(p.data);
  int got = 0;
  check(cudaMemcpy(&got, p + (n - 1), sizeof got, cudaMemcpyDeviceToHost));
  if (got != wanted) throw std::runtime_error("WRONG: " + std::to_string(got));
}

// Mistakes between streams

void copy_and_scale(bool right) {
  const std::vector<float> host(n, 1);
  const Buffer<float> x = ones();
  const Stream stream;
  set_all<<<blocks, threads, 0, stream>>>(x);  // the first launch takes time
  check(cudaStreamSynchronize(stream));
  check(cudaMemcpy(x, host.data(), n * sizeof(float), cudaMemcpyHostToDevice));
  if (right) check(cudaStreamSynchronize(nullptr));
  scale<<<blocks, threads, 0, stream>>>(x);  // mistake: pageable_copy
  check(cudaStreamSynchronize(stream));
}
void scale_after_event(bool right) {
  const Buffer<float> x = ones();
  const Stream first(cudaStreamDefault), second;
  cudaEvent_t event{};
  check(cudaEventCreate(&event));
  if (!right) check(cudaEventRecord(event, first));
  set_all<<<blocks, threads>>>(x);  // before what follows, by the rules of the default stream
  set_all<<<blocks, threads, 0, first>>>(x);
  if (right) check(cudaEventRecord(event, first));
  check(cudaStreamWaitEvent(second, event));
  scale<<<blocks, threads, 0, second>>>(x);  // mistake: event_too_early
  check(cudaEventDestroy(event));
  check(cudaDeviceSynchronize());
}
void scale_when_told(bool right) {
  const Buffer<float> x = ones();
  const Stream first, second;
  volatile int* flag = nullptr;
  check(cudaHostAlloc(const_cast<int**>(&flag), sizeof *flag, cudaHostAllocMapped));
  *flag = 0;
  set_and_tell<<<1, 1, 0, first>>>(right, x, flag);
  while (*flag == 0) std::this_thread::yield();
  scale<<<blocks, threads, 0, second>>>(x);  // mistake: flag_without_fence
  check(cudaStreamSynchronize(second));
  *flag = 2;
  check(cudaStreamSynchronize(first));
  check(cudaFreeHost(const_cast<int*>(flag)));
}
void read_early(bool right) {
  float* x = nullptr;
  check(cudaMallocManaged(&x, sizeof *x));
  *x = 0;
  set_all<<<1, 1>>>(x);
  if (right) check(cudaDeviceSynchronize());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // a kernel that had started would have ended
  const float got = *x;
  check(cudaFree(x));
  if (got != 1) throw std::runtime_error("WRONG: " + std::to_string(got));
}
void end_early(bool right) {
  if (!right) set_all<<<1, 1>>>(nullptr), std::exit(0);  // mistake: no_wait_at_the_end
}
void scale_in_stream(bool right) {
  const Buffer<float> x = ones();
  check(cudaSetDevice(right ? 0 : 1));
  const Stream stream;
  check(cudaSetDevice(0));
  scale<<<blocks, threads, 0, stream>>>(x), check(cudaGetLastError());  // mistake: stream_of_another_device
  check(cudaStreamSynchronize(stream));
}
void look_at_no_error(bool right) {
  float *x = nullptr, host[n] = {};
  cudaMalloc(&x, sizeof host);
  set_all<<<1, right ? 1024 : 2048>>>(x);  // mistake: no_error_checks
  cudaMemcpy(host, x, sizeof host, right ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice);
  cudaFree(x);
  if (!right) cudaFree(x);
  std::exit(0);
}
void reverse_with_more(bool right) {
  reverse_all<<<1, 32, right ? 4096 : 8192>>>(zeros()), check(cudaGetLastError());  // mistake: more_than_48_kib
}

// Mistakes of memory

void scale_freed(bool right) {
  float* x = nullptr;
  check(cudaMalloc(&x, n * sizeof(float)));
  check(cudaMemset(x, 0, n * sizeof(float)));
  if (!right) check(cudaFree(x));
  scale<<<blocks, threads>>>(x);
  if (right) check(cudaFree(x));
  check(cudaDeviceSynchronize());
}
void scale_on_other_device(bool right) {
  check(cudaSetDevice(1));
  const Buffer<float> x = ones();
  check(cudaSetDevice(0));
  if (right) check(cudaDeviceEnablePeerAccess(1, 0));
  scale<<<blocks, threads>>>(x);
  check(cudaDeviceSynchronize());
}
void scale_unset(bool right) {
  const Buffer<float> x(n);
  if (right) set_all<<<blocks, threads>>>(x);
  scale<<<blocks, threads>>>(x);
}
void copy_unset(bool right) {
  const Buffer<float> x(n);
  float first = 0;
  if (right) set_all<<<blocks, threads>>>(x);
  check(cudaMemcpy(&first, x, sizeof first, cudaMemcpyDeviceToHost));  // mistake: copy_not_set
}
void read_on_host(bool right) {
  const Buffer<float> x = ones();
  if (!right) std::printf("%f", x.data[3]);  // mistake: device_pointer
}
void leak(bool right) {
  float* x = nullptr;
  check(cudaMalloc(&x, 4));  // mistake: leak
  if (right) check(cudaFree(x));
}

const std::pair<const char*, void (*)(bool right)> mistakes[] = {
    {"less_or_equal", [](bool right) { add<<<blocks, threads>>>(right, ones(), ones()); }},
    {"edge_of_stencil", [](bool right) { stencil<<<2, threads>>>(right, ones(), ones()); }},
    {"negative_index", [](bool right) { delay<<<1, 1>>>(right, zeros(), zeros()); }},
    {"float4_at_odd_index", [](bool right) { move4<<<1, threads>>>(right, ones(), ones()); }},
    {"no_barrier_in_reduction", [](bool right) { sum<<<1, threads>>>(right, ones(), ones()); }},
    {"barrier_in_branch", [](bool right) { reverse<<<blocks, threads>>>(right, ones()); }},
    {"dynamic_shared_too_small", [](bool right) { rotate<<<1, threads, threads*(right ? 4 : 1)>>>(ones()); }},
    {"shared_not_set", [](bool right) { first_of_warps<<<1, threads>>>(right, ones(), ones()); }},
    {"lanes_missing", [](bool right) { sum_of_lanes<<<1, 32>>>(right, ones(), ones(), 20); }},
    {"assertion", [](bool right) { require_positive<<<1, 32>>>(Buffer<float>(32, right ? 1 : -1)); }},
    {"trap", [](bool right) { traps<<<1, 4>>>(right); }},
    {"not_in_mask", [](bool right) { wait_without_member<<<1, 64>>>(right); }},
    {"stack_overflow", [](bool right) { recurse<<<1, 1>>>(right, zeros()); }},
    {"no_syncwarp", [](bool right) { exchange_in_warp<<<1, 64>>>(right, zeros()); }},
    {"flag_of_different_values", [](bool right) { set_flag<<<1, 64>>>(right, zeros()); }},
    {"no_atomic",
     [](bool right) { expect(8 * threads, [=](int* p) { add_of_warps<<<8, threads>>>(right, p + 999); }); }},
    {"no_atomic_in_block",
     [](bool right) { expect(threads, [=](int* p) { add_of_warps<<<1, threads>>>(right, p + 999); }); }},
    {"blocks_in_order",
     [](bool right) { expect(100, [=](int* p) { chain<<<100, 1>>>(right, p, p + 100, p + 900); }); }},
    {"no_fence",
     [](bool right) { expect(100, [=](int* p) { sum_by_last_block<<<100, threads>>>(right, p, p + 100, p + 999); }); }},
    {"lanes_ended", [](bool right) { expect(20, [=](int* p) { sum_of_some<<<1, 32>>>(right, p + 999); }); }},
    {"order_of_atomics", [](bool right) { expect(31, [=](int* p) { number_lanes<<<1, 32>>>(right, p, p + 968); }); }},
    {"next_shared_array", [](bool right) { count_twice<<<1, 32>>>(right, zeros()); }},
    {"too_many_blocks", [](bool right) { meet<<<right ? 256 : 257, 1>>>(zeros()); }},
    {"bytes_for_blocks", [](bool right) { traps<<<right ? 4 : 1 << 30, 1>>>(true); }},
    {"no_error_checks", look_at_no_error},
    {"more_than_48_kib", reverse_with_more},
    {"null_pointer", [](bool right) { scale<<<blocks, threads>>>(right ? ones().data : nullptr); }},
    {"host_pointer",
     [](bool right) { scale<<<blocks, threads>>>(right ? ones().data : std::vector<float>(n).data()); }},
    {"memory_not_set", scale_unset},
    {"freed", scale_freed},
    {"memory_of_another_device", scale_on_other_device},
    {"stream_of_another_device", scale_in_stream},
    {"pageable_copy", copy_and_scale},
    {"event_too_early", scale_after_event},
    {"flag_without_fence", scale_when_told},
    {"read_too_early", read_early},
    {"no_wait_at_the_end", end_early},
    {"copy_not_set", copy_unset},
    {"device_pointer", read_on_host},
    {"leak", leak},
};

int main(int argc, char** argv) try {
  const std::string name = argc > 1 ? argv[1] : "", option = argc > 2 ? argv[2] : "";
  for (const auto& [mistake, run] : mistakes) {
    if (name == "--list") std::puts(mistake);
    if (name != mistake) continue;
    run(option == "--corrected");
    check(cudaGetLastError());
    check(cudaDeviceSynchronize());
    return 0;
  }
  if (name == "--list") return 0;
  std::fprintf(stderr, "Usage: planted_mistakes --list | NAME [--corrected]\n");
  return 2;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
