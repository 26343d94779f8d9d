#include "rates.hpp"

#include <multinode/base/seconds.hpp>
#include <multinode/node/limits.hpp>

#include <fmt/core.h>

#include <dlfcn.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <limits>
#include <memory>
#include <thread>

#ifdef HAVE_BLAS
#if __has_include(<cblas.h>)
#include <cblas.h>
#else
#include <mkl_cblas.h>
#endif
#endif

namespace node_check {
namespace {

// Where every element differs from its neighbours, and the triad is exact.
constexpr double factor = 3;
double b_at(std::size_t i) { return static_cast<double>(i % 1021); }
double c_at(std::size_t i) { return static_cast<double>(i / 1021 % 4096); }

const char* const what_slows = ": look at the CPU governor, huge pages and the cgroup's cpu.max";

void bind_to(int cpu) {  // so that a thread's memory stays near it; where that is refused, the rate is what it is
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  pthread_setaffinity_np(pthread_self(), sizeof one, &one);
}

double cpu_seconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

}  // namespace

std::string why_slow_memory(double rate) {
  if (rate >= 1e9) return "";
  return fmt::format("one core moves {:.2g} GB/s, and any server's moves 10{}", rate / 1e9, what_slows);
}

Finding measure_memory_bandwidth(double seconds, bool corrupt) {
  const std::vector<int> cpus = multinode::allowed_cpus();
  const auto workers = static_cast<std::size_t>(multinode::usable_cpus());
  // Each array is four times the last-level cache (STREAM's rule) and 64 MiB at least. But all three together take no
  // more than an eighth of the memory, and what a slow core gets through in time.
  const double cache = static_cast<double>(std::max(sysconf(_SC_LEVEL2_CACHE_SIZE), sysconf(_SC_LEVEL3_CACHE_SIZE))),
               passable = std::max(0x1p26, seconds * 4e9 * static_cast<double>(workers)),
               most = std::min(static_cast<double>(multinode::usable_memory()) / 8, passable) / 3;
  const auto length = static_cast<std::size_t>(std::min(std::max(4 * cache, 0x1p26), most) / sizeof(double));
  const auto memory = std::make_unique_for_overwrite<double[]>(3 * length);
  double *const a = memory.get(), *const b = a + length, *const c = b + length;
  constexpr double never = std::numeric_limits<double>::infinity();
  double triad = never, of_a_core = never;
  bool more = true;
  std::atomic<std::size_t> wrong{0};
  std::barrier together(static_cast<std::ptrdiff_t>(workers));

  const auto work = [&](std::size_t worker) {
    bind_to(cpus[worker]);
    const std::size_t first = length * worker / workers, last = length * (worker + 1) / workers;
    double* const __restrict to = a;
    const double* const __restrict from = b, * const __restrict scaled = c;
    for (std::size_t i = first; i < last; ++i) {  // the first to touch a page decides where it lies
      a[i] = -1;
      b[i] = b_at(i);
      c[i] = c_at(i);
    }
    const auto start = std::chrono::steady_clock::now();
    do {
      together.arrive_and_wait();
      const auto round = std::chrono::steady_clock::now();
      const double used = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
      for (std::size_t i = first; i < last; ++i) to[i] = from[i] + factor * scaled[i];
      if (worker == 0) of_a_core = std::min(of_a_core, cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - used);
      together.arrive_and_wait();
      if (worker == 0) triad = std::min(triad, multinode::seconds_since(round));
      if (worker == 0) more = multinode::seconds_since(start) < seconds;
      together.arrive_and_wait();
    } while (more);
    if (corrupt && worker == 0) to[first] += 1;
    std::size_t mine = 0;
    for (std::size_t i = first; i < last; ++i) mine += to[i] != b_at(i) + factor * c_at(i);
    wrong += mine;
  };
  {
    std::vector<std::jthread> threads;
    for (std::size_t worker = 0; worker < workers; ++worker) threads.emplace_back(work, worker);
  }

  const double bytes = static_cast<double>(length * sizeof(double));
  Finding finding{"memory_bandwidth",
                  3 * bytes / triad / 1e9,
                  "GB/s",
                  "more",
                  true,
                  fmt::format("triad, {} threads, 3 arrays of {} MiB", workers, length >> 17)};
  const double rate = 3 * bytes / static_cast<double>(workers) / of_a_core;
  finding.blame(why_slow_memory(rate));
  if (wrong != 0)
    finding.blame(std::to_string(wrong) + " of " + std::to_string(length) +
                  " elements are wrong: do not use this node; look at its memory (mcelog, rasdaemon, memtest)");
  return finding;
}

std::string why_slow(double rate, double multiply_adds, const std::string& library) {
  if (rate >= multiply_adds / 2) return "";
  auto text =
      fmt::format("one core does {:.2g} GFLOP/s in matrix products, and {:.2g} in its own multiply-adds: ", rate / 1e9,
                  multiply_adds / 1e9);
  for (const char* optimised : {"openblas", "mkl", "blis", "atlas", "aocl", "nvpl"})
    if (library.find(optimised) != std::string::npos)
      return text + library + " uses kernels of an older CPU: unset OPENBLAS_CORETYPE, MKL_CBWR, BLIS_ARCH_TYPE ...";
  return text + (library.empty() ? "the BLAS" : library) +
         " is probably the reference BLAS; install OpenBLAS (apt install libopenblas0-pthread), BLIS or MKL, and see "
         "ldd";
}

#ifdef HAVE_BLAS

namespace {

#ifdef __x86_64__
// Two multiply-adds of AVX2 per cycle, as the registers allow: 12 sums, because each takes 4 to 5 cycles.
__attribute__((target("avx2,fma"))) double multiply_adds(double factor) {
  constexpr int rounds = 20'000, sums = 12;
  __m256d all[sums], x = _mm256_set1_pd(factor);
  for (int i = 0; i < sums; ++i) all[i] = _mm256_set1_pd(i);  // of equal sums, the compiler would compute one
  const double before = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
  for (int round = 0; round < rounds; ++round)
#pragma GCC unroll 12
    for (auto& sum : all) sum = _mm256_fmadd_pd(sum, x, x);
  const double seconds = cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - before;
  for (auto& sum : all) all[0] = _mm256_max_pd(all[0], sum);
  return all[0][0] > 0 ? 8.0 * sums * rounds / seconds : 0;  // uses the sums
}
// How many operations per second this core does now, in registers; 0: unknown.
double multiply_adds() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? multiply_adds(0.5) : 0;
}
#else
double multiply_adds() { return 0; }
#endif

std::string library_of_products() {
  Dl_info info{};
  const void* const symbol = dlsym(RTLD_DEFAULT, "cblas_dgemm");
  return symbol && dladdr(symbol, &info) && info.dli_fname ? info.dli_fname : "";
}

}  // namespace

Finding measure_matrix_rate(double seconds, bool corrupt) {
#ifdef HAVE_OPENBLAS_SET_NUM_THREADS
  openblas_set_num_threads(1);
#endif
  constexpr int n = 512;  // whole numbers, so that all sums are exact
  std::vector<double> a(n * n), b(n * n), c(n * n, -1);
  for (std::size_t i = 0; i < n * n; ++i) {
    a[i] = static_cast<double>(i % 127);
    b[i] = static_cast<double>(i % 131);
  }
  double best = std::numeric_limits<double>::infinity();  // CPU seconds, of all threads that the library has
  double of_registers = 0;
  const auto start = std::chrono::steady_clock::now();
  for (int product = 0; product < 4 || multinode::seconds_since(start) < seconds; ++product) {
    const double before = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1, a.data(), n, b.data(), n, 0, c.data(), n);
    best = std::min(best, cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - before);
    of_registers = std::max(of_registers, multiply_adds());
  }
  const double rate = 2.0 * n * n * n / best;
  Finding finding{"matrix_rate", rate / 1e9, "GFLOP/s", "more", true, "dgemm, n = 512, by the CPU time of one core"};
  finding.blame(why_slow(rate, of_registers, library_of_products()));
  if (corrupt) c[0] += 1;
  for (std::size_t place = 0; place < n * n; place += 4097) {  // in each row another column
    double sum = 0;
    for (std::size_t k = 0; k < n; ++k) sum += a[place / n * n + k] * b[k * n + place % n];
    if (c[place] == sum) continue;
    finding.blame(fmt::format(
        "element ({}, {}) of a product is {}, not {}: do not use this node; look at its memory and CPUs, and at its "
        "BLAS library",
        place / n, place % n, c[place], sum));
    break;
  }
  return finding;
}

#else

Finding measure_matrix_rate(double, bool) {
  return absent("matrix_rate", "built without BLAS; to get it: apt install libopenblas-dev");
}

#endif

}  // namespace node_check
