// all_reduce_bench: the bandwidth of one large all-reduce, as one number.
// Exit status: 0 right, 1 wrong elements or timed out, 2 bad command line or environment, 77 no GPU.
#include "benchmark/ranks_host.hpp"
#include "benchmark/values.hpp"

#include <multinode/base/json.hpp>
#include <multinode/base/program_options.hpp>
#include <multinode/base/seconds.hpp>
#include <multinode/communicator/device.hpp>
#include <multinode/world/program.hpp>
#include <multinode/world/report.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>

namespace all_reduce_bench {

namespace po = boost::program_options;

struct Options {
  std::size_t rows = 500'000, columns = 2'000;
  int warmup = 2, trials = 10;
  std::optional<int> corrupt;
  multinode::CommonOptions common;
};

void require_memory(multinode::World& world, const Options& options) {
  const std::string free_memory = std::to_string(perf::available_host_memory(world) / 10 * 9);
  const std::size_t free = std::stoull(world.combine_on_rank_0("free memory", free_memory, [](const auto& all) {
    return *std::ranges::min_element(all, {}, [](const std::string& text) { return std::stoull(text); });
  }));
  const std::size_t row = options.columns * sizeof(float), rows = free / row;
  if (rows < options.rows)
    throw multinode::UsageError("--rows " + std::to_string(options.rows) + " does not fit into memory: use at most " +
                                std::to_string(rows));
}

// Seconds from a barrier to the sum, on this rank.
double time_all_reduce(multinode::Communicator& communicator, multinode::Block block) {
  communicator.barrier();
  const auto start = std::chrono::steady_clock::now();
  communicator.all_reduce(block);
  communicator.synchronize();
  return multinode::seconds_since(start);
}

int run(multinode::World& world, const Options& options) {
  if (options.corrupt) multinode::require_range("--corrupt", *options.corrupt, 0, world.size() - 1);
  require_memory(world, options);
  const auto communicator = multinode::make_communicator(world, multinode::parse_backend(options.common.backend));
  std::vector<float> block(options.rows * options.columns);
  std::function<double()> trial = [&] { return time_all_reduce(*communicator, std::span(block)); };
#ifdef MULTINODE_HAVE_NCCL
  std::unique_ptr<multinode::DeviceBuffer<float>> device;
  if (communicator->backend() == multinode::Backend::nccl) {
    device = std::make_unique<multinode::DeviceBuffer<float>>(block.size());
    trial = [&] {
      device->copy_from(block, nullptr);
      const double seconds = time_all_reduce(*communicator, device->span());
      device->copy_to(block, nullptr);
      communicator->synchronize();
      return seconds;
    };
  }
#endif

  double seconds = 0;
  std::size_t wrong = 0;
  for (int i = 0; i < options.warmup + options.trials; ++i) {
    const perf::Values values(
        {multinode::DataType::float32, true, world.size(), options.common.seed, static_cast<std::uint64_t>(i)});
    values.fill(std::as_writable_bytes(std::span(block)), world.rank(), 0);
    const double one = trial();
    if (i >= options.warmup) seconds += one / options.trials;
    if (world.rank() == options.corrupt) block[static_cast<std::size_t>(i) * 7919 % block.size()] += 1;
    wrong += values.count_wrong(std::as_bytes(std::span(block)), {perf::Source::all, 0});
  }

  double mean = 0;  // on rank 0
  const nlohmann::json result{seconds, wrong};
  const std::size_t all_wrong =
      std::stoull(world.combine_on_rank_0("result", multinode::json_text(result), [&](const auto& ranks) {
        std::size_t sum = 0;
        for (const std::string& text : ranks) {
          const auto rank = multinode::parse_json(text);
          mean += rank[0].template get<double>() / world.size();
          sum += rank[1].template get<std::size_t>();
        }
        return std::to_string(sum);
      }));
  if (world.rank() == 0) {
    const double payload = static_cast<double>(block.size() * sizeof(float)), algbw = payload / mean;
    const double busbw = algbw * 2 * (world.size() - 1) / world.size();
    const auto print = [](const char* name, double value) {
      fmt::print("  {}: {:.3f} GBps ({:.1f} Gbps)\n", name, value * 1e-9, value * 8e-9);
    };
    fmt::print("all_reduce of a {:.3g} GB payload over {}, {} ranks, mean of {} trials:\n", payload * 1e-9,
               multinode::name_of(communicator->backend()), world.size(), options.trials);
    const bool emulated = communicator->backend() == multinode::Backend::nccl && multinode::emulated_gpus();
    if (emulated) {
      fmt::print("  algbw, busbw: n/a on emulated GPUs\n");
    } else {
      print("algbw", algbw);
      if (world.size() > 1)
        print("busbw", busbw);
      else
        fmt::print("  busbw: n/a, one rank moves nothing\n");
    }
    fmt::print("{}: {} elements wrong\n", all_wrong ? "WRONG" : "RIGHT", all_wrong);
    std::fflush(stdout);
    multinode::JsonLines json(options.common.json);
    json.write(multinode::fingerprint(world));
    json.write({{"payload_bytes", block.size() * sizeof(float)},
                {"ranks", world.size()},
                {"backend", multinode::name_of(communicator->backend())},
                {"warmup", options.warmup},
                {"trials", options.trials},
                {"mean_seconds", mean},
                {"algbw_gb_per_s", emulated ? nlohmann::json() : nlohmann::json(algbw * 1e-9)},
                {"busbw_gb_per_s", world.size() > 1 && !emulated ? nlohmann::json(busbw * 1e-9) : nlohmann::json()},
                {"wrong", all_wrong}});
  }
  return all_wrong ? multinode::exit_wrong : multinode::exit_right;
}

}  // namespace all_reduce_bench

int main(int argc, char** argv) {
  using namespace all_reduce_bench;
  Options options;
  po::options_description known("Options of all_reduce_bench");
  known.add_options()("rows", po::value(&options.rows)->default_value(options.rows), "rows of the matrix of floats")(
      "columns", po::value(&options.columns)->default_value(options.columns), "columns of the matrix")(
      "warmup", po::value(&options.warmup)->default_value(options.warmup), "untimed all-reduces before the trials")(
      "trials", po::value(&options.trials)->default_value(options.trials), "timed all-reduces")(
      "corrupt", multinode::given(options.corrupt),
      "rank that corrupts an element of its result, to see the check fail");
  const auto validate = [&] {
    multinode::require_range<std::size_t>("--rows", options.rows, 1, 100'000'000);
    multinode::require_range<std::size_t>("--columns", options.columns, 1, 1'000'000);
    multinode::require_range("--warmup", options.warmup, 0, 1'000'000);
    multinode::require_range("--trials", options.trials, 1, 1'000'000);
  };
  return multinode::run({"all_reduce_bench", known, options.common, validate}, argc, argv,
                        [&](multinode::World& world) { return run(world, options); });
}
