// Thread instructions per second and core of emulated GPUs, by kind of kernel, or of one kind: emulated_gpu_speed
// "int32". Not a test: for the interpreter's own development.
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <functional>
#include <string>

__global__ void fma_f32(float* p, int n) {
  float a = p[threadIdx.x], b = a * 0.5f, c = 1;
  for (int i = 0; i < n; ++i) a = a * b + c, b = b * a + c, c = c * b + a, a = a * c + b;
  p[threadIdx.x] = a + b + c;
}
__global__ void int32(unsigned* p, int n) {
  unsigned x = p[threadIdx.x] + threadIdx.x + 1;
  for (int i = 0; i < n; ++i) x ^= x << 13, x ^= x >> 17, x ^= x << 5, x = x * 1664525u + i;
  p[threadIdx.x] = x;
}
__global__ void divide_f64(double* p, int n) {
  double s = p[threadIdx.x];
  for (int i = 0; i < n; ++i) s += 4.0 / (1.0 + s * s);
  p[threadIdx.x] = s;
}
__global__ void stream(const float* a, float* b, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) b[i] = a[i] * 2 + 1;
}
__global__ void gather(const unsigned* a, unsigned* b, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) b[i] = a[(i * 40503u) % n];
}
__global__ void shared_product(const float* a, const float* b, float* c, int n) {
  __shared__ float as[16][16], bs[16][17];
  const int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 16 + y, column = blockIdx.x * 16 + x;
  float sum = 0;
  for (int k = 0; k < n; k += 16) {
    as[y][x] = a[row * n + k + x];
    bs[y][x] = b[(k + y) * n + column];
    __syncthreads();
    for (int j = 0; j < 16; ++j) sum = fmaf(as[y][j], bs[j][x], sum);
    __syncthreads();
  }
  c[row * n + column] = sum;
}
__global__ void shuffles(float* p, int n) {
  float v = p[threadIdx.x];
  for (int i = 0; i < n; ++i)
    for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(~0u, v, d) * 0.01f;
  p[threadIdx.x] = v;
}
__global__ void divergence(int* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned long long x = i + 1;
  int steps = 0;
  for (; x != 1; ++steps) x = x & 1 ? 3 * x + 1 : x / 2;
  out[i % 1024] = steps;
}
__global__ void atomics(unsigned* p, int n) {
  for (int i = 0; i < n; ++i) atomicAdd(p + (threadIdx.x * 7 + i) % 1024, 1);
}

int main(int argc, char** argv) {
  using Count = std::uint64_t();
  auto* const count = reinterpret_cast<Count*>(dlsym(RTLD_DEFAULT, "_ZN12emulated_gpu19thread_instructionsEv"));
  void *a = nullptr, *b = nullptr, *c = nullptr;
  for (void** memory : {&a, &b, &c})
    if (cudaMalloc(memory, 4 << 20) != cudaSuccess || cudaMemset(*memory, 0, 4 << 20) != cudaSuccess) return 1;
  auto *fa = static_cast<float*>(a), *fb = static_cast<float*>(b), *fc = static_cast<float*>(c);
  auto *ua = static_cast<unsigned*>(a), *ub = static_cast<unsigned*>(b);
  const auto measure = [&](const char* name, const std::function<void()>& launch) {
    if (argc > 1 && std::string(argv[1]) != name) return;
    double best = 1e9;
    std::uint64_t instructions = 0;
    for (int repeat = 0; repeat < (argc > 1 ? 100 : 3); ++repeat) {
      const std::uint64_t before = count ? count() : 0;
      const std::clock_t start = std::clock();  // processor time, because others may use the machine
      launch();
      if (cudaDeviceSynchronize() != cudaSuccess) return;
      best = std::min(best, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
      instructions = count ? count() - before : 0;
    }
    std::printf("%-16s %8.1f ms  %6.2f G thread instructions/s\n", name, best * 1e3,
                static_cast<double>(instructions) / best / 1e9);
  };
  measure("fma f32", [&] { fma_f32<<<8, 256>>>(fa, 5000); });
  measure("int32", [&] { int32<<<8, 256>>>(ua, 3000); });
  measure("divide f64", [&] { divide_f64<<<8, 256>>>(static_cast<double*>(a), 3000); });
  measure("stream", [&] { stream<<<16, 256>>>(fa, fb, 1 << 20); });
  measure("gather", [&] { gather<<<16, 256>>>(ua, ub, 1 << 20); });
  measure("shared product", [&] { shared_product<<<dim3(16, 16), dim3(16, 16)>>>(fa, fb, fc, 256); });
  measure("shuffles", [&] { shuffles<<<8, 256>>>(fa, 300); });
  measure("divergence", [&] { divergence<<<128, 128>>>(reinterpret_cast<int*>(b), 16000); });
  measure("atomics", [&] { atomics<<<8, 256>>>(ua, 300); });
  measure("one lane", [&] { fma_f32<<<1, 1>>>(fa, 200000); });
  measure("1000 launches", [&] {
    for (int n = 0; n < 1000; ++n) atomics<<<1, 32>>>(ua, 1);
  });
}
