// kernel_benchmark: the kernels of the perceptron on a GPU, beside what its memory allows: the bytes that a kernel
// reads and writes, over its time, as a part of what a copy within the GPU moves in the same run. Exit status: 0
// measured; 1 a kernel that only moves memory reaches less than --least of the copy, or failed; 2 bad command line; 77
// no GPU.
#include "model/kernels.cuh"

#include <multinode/program.hpp>
#include <multinode/program_options.hpp>
#include <multinode/report.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <limits>
#include <utility>

namespace {

struct Options {
  multinode::CommonOptions common;
  double least = 0;
};

// Milliseconds, the best of some.
class Timer {
 public:
  explicit Timer(cudaStream_t stream) : stream_(stream) {
    multinode::check(cudaEventCreate(&start_));
    multinode::check(cudaEventCreate(&end_));
  }
  ~Timer() {
    cudaEventDestroy(start_);
    cudaEventDestroy(end_);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  template <class Work>
  double seconds(Work work) {
    float best = std::numeric_limits<float>::infinity();
    for (int round = 0; round < 20; ++round) {
      float milliseconds = 0;
      multinode::check(cudaEventRecord(start_, stream_));
      work();
      multinode::check(cudaEventRecord(end_, stream_));
      multinode::check(cudaEventSynchronize(end_));
      multinode::check(cudaEventElapsedTime(&milliseconds, start_, end_));
      best = std::min(best, milliseconds);
    }
    return best / 1e3;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t start_{}, end_{};
};

int run(multinode::World& world, const Options& options) {
  if (world.size() != 1) throw multinode::UsageError("kernel_benchmark measures one GPU: run it without a launcher");
  if (multinode::stand_in() || multinode::device_count() == 0)
    throw multinode::HardwareAbsent("kernels need a GPU, and there is none here");
  model::Cuda cuda;
  const cudaStream_t stream = cuda.stream();
  Timer timer(stream);
  constexpr std::size_t batch = 131'072, size = 512, count = batch * size;  // 256 MiB as float: more than a cache holds
  using U = __nv_bfloat16;
  model::Cuda::Buffer<float> a(count), b(count), c(count);
  model::Cuda::Buffer<U> units(count), errors(count);
  model::Cuda::Buffer<std::uint8_t> small(batch);
  model::Cuda::Buffer<std::uint32_t> samples(batch);
  model::Cuda::Buffer<model::StepSettings<float>> settings(1);
  model::Cuda::Buffer<model::Totals> totals(1);
  model::Cuda::Buffer<model::AdamFactors<float>> factors(1);
  cudaDeviceProp gpu{};
  multinode::check(cudaGetDeviceProperties(&gpu, 0));

  const double copy = 2.0 * count * sizeof(float) / timer.seconds([&] {
    multinode::check(cudaMemcpyAsync(b.data(), a.data(), count * sizeof(float), cudaMemcpyDeviceToDevice, stream));
  });
  multinode::JsonLines json(options.common.json);
  json.write(multinode::fingerprint(world));
  std::printf("# %s: a copy within it moves %.0f GB/s, read and written\n", gpu.name, copy / 1e9);
  multinode::Table table({"kernel", "bytes", "us", "GB/s", "of copy", "verdict"});
  bool fast = true;
  const auto measure = [&](const char* name, std::size_t bytes, bool only_moves, auto work) {
    const double seconds = timer.seconds(work);
    const double rate = static_cast<double>(bytes) / seconds, ratio = rate / copy;
    const bool slow = only_moves && ratio < options.least;
    fast = fast && !slow;
    const auto text = [](const char* format, double value) {
      char line[32];
      std::snprintf(line, sizeof line, format, value);
      return std::string(line);
    };
    table.add({name, std::to_string(bytes), text("%.1f", seconds * 1e6), text("%.0f", rate / 1e9), text("%.2f", ratio),
               slow         ? "TOO SLOW"
               : only_moves ? "memory-bound"
                            : "computes, too"});
    json.write(
        {{"kernel", name}, {"bytes", bytes}, {"seconds", seconds}, {"ratio", ratio}, {"memory_bound", only_moves}});
  };

  using namespace model;
  measure("Scale", 2 * count * sizeof(float), true, [&] { cuda.each(count, Scale<float>{a.data(), 1.0f}); });
  measure("Convert", count * (sizeof(float) + sizeof(U)), true, [&] {
    cuda.each(count, Convert<float, U>{a.data(), units.data()});
  });
  measure("ThroughHidden", count * (sizeof(float) + 2 * sizeof(U)), true, [&] {
    cuda.each(count, ThroughHidden<float, U>{a.data(), units.data(), errors.data(), true, settings.data()});
  });
  measure("Descend", count * (5 * sizeof(float) + sizeof(U)), true, [&] {
    cuda.each(count, Descend<float, U>{a.data(), b.data(), c.data(), units.data(), 0.9f, 0.0f, settings.data()});
  });
  measure("FinishHidden", count * (sizeof(float) + sizeof(U)), false, [&] {
    cuda.each(count / 4,
              FinishHidden<float, U>{a.data(), b.data(), units.data(), size, true, samples.data(), 1, settings.data()});
  });
  measure("DescendByAdam", count * (7 * sizeof(float) + sizeof(U)), true, [&] {
    cuda.each(count, DescendByAdam<float, U>{a.data(), b.data(), c.data(), c.data(), units.data(), factors.data()});
  });
  measure("FinishOutputs", count * (2 * sizeof(float) + sizeof(U)), false, [&] {
    cuda.rows(batch, FinishOutputs<float, U>{Loss::cross_entropy, false, size, a.data(), b.data(), nullptr,
                                             small.data(), errors.data(), c.data(), small.data()});
  });
  measure("AddUp", batch * (sizeof(float) + 1), false, [&] {
    cuda.rows(1, AddUp<float>{batch, c.data(), small.data(), settings.data(), totals.data()});
  });
  table.print(std::cout);
  return fast ? multinode::exit_right : multinode::exit_wrong;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  boost::program_options::options_description known("kernel_benchmark: the perceptron's kernels beside a copy");
  known.add_options()("least", boost::program_options::value(&options.least)->value_name("RATIO"),
                      "fail if a kernel that only moves memory reaches less of the copy's rate than this");
  const multinode::Program program{"kernel_benchmark", known, options.common,
                                   [&] { multinode::require_range("--least", options.least, 0.0, 1.0); }};
  return multinode::run(program, argc, argv, [&](multinode::World& world) { return run(world, options); });
}
