// pi: the integral of 4 / (1 + x^2) over [0, 1] by the trapezoid rule, shared by all processes.
// Exit status, the same on all ranks: 0 the answer is pi to within the bound, 1 it is not, 2 bad command line, 77 no
// GPU.
#include "trapezoid.hpp"
#include "trapezoid_cuda.hpp"

#include <multinode/base/json.hpp>
#include <multinode/base/program_options.hpp>
#include <multinode/base/seconds.hpp>
#include <multinode/base/text.hpp>
#include <multinode/communicator.hpp>
#include <multinode/communicator/device.hpp>
#include <multinode/node/limits.hpp>
#include <multinode/world/program.hpp>
#include <multinode/world/report.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <iostream>
#include <limits>
#include <numeric>
#include <optional>

namespace trapezoid {
namespace {

namespace po = boost::program_options;
using multinode::Communicator, multinode::UsageError, multinode::World;
using Clock = std::chrono::steady_clock;

// The number in "1000", "1e9" or "64M" (a power of 1024). A double is exact far beyond largest_n.
std::int64_t parse_n(const std::string& text) {
  const int power = text.ends_with('K') ? 1 : text.ends_with('M') ? 2 : text.ends_with('G') ? 3 : 0;
  const std::string digits = text.substr(0, text.size() - (power > 0 ? 1 : 0));
  const double n = multinode::number_of<double>(digits).value_or(0) * std::pow(1024, power);
  if (!(n >= 1 && n <= double(largest_n)) || n != std::floor(n))
    throw UsageError(fmt::format("--n must be a whole number from 1 to {}, such as 1000000, 1e9 or 64M, not '{}'",
                                 static_cast<long long>(largest_n), text));
  return static_cast<std::int64_t>(n);
}

struct Options {
  std::int64_t n = 1'000'000'000;
  int warmup = 2, trials = 5, threads = 1;
  std::string device = "auto";
  std::optional<int> corrupt;  // rank that loses a block

  po::options_description description() {
    po::options_description known("Options of pi");
    auto add = known.add_options();
    add("n", po::value<std::string>()->default_value("1e9")->notifier([this](auto& text) { n = parse_n(text); }),
        "number of intervals, such as 1000000, 1e9 or 64M");
    add("warmup", po::value(&warmup)->default_value(warmup), "runs that are not timed");
    add("trials", po::value(&trials)->default_value(trials), "runs that are timed");
    add("threads", po::value(&threads)->default_value(threads), "threads of each process");
    add("device", po::value(&device)->default_value(device),
        "device that computes the sums: cpu, gpu, or auto (gpu with --backend nccl, else cpu)");
    add("corrupt", multinode::given(corrupt), "rank that loses one of its blocks, to show that the check can fail");
    return known;
  }

  void validate() const {  // throws UsageError
    multinode::require_range("--warmup", warmup, 0, 1'000'000);
    multinode::require_range("--trials", trials, 1, 1'000'000'000);
    multinode::require_range("--threads", threads, 1, 1024);
    if (device != "auto" && device != "cpu" && device != "gpu")
      throw UsageError("--device must be auto, cpu or gpu, not '" + device + "'");
  }
};

// Every block is 0 on all ranks but one, so no addition rounds, in whatever order the library adds.
void add_over_ranks(Communicator& communicator, std::span<double> sums) {
#ifdef MULTINODE_HAVE_NCCL
  if (communicator.backend() == multinode::Backend::nccl) {  // NCCL reduces device memory only
    multinode::DeviceBuffer<double> device(sums.size());
    device.copy_from(sums, nullptr);
    communicator.all_reduce(device.span());
    device.copy_to(sums, nullptr);
    communicator.synchronize();
    return;
  }
#endif
  communicator.all_reduce(sums);
}

bool use_gpu(const Options& options, const World& world, const Communicator& communicator) {
  if (options.device == "cpu") return false;
#ifdef MULTINODE_HAVE_KERNELS
  if (options.device == "auto" && communicator.backend() != multinode::Backend::nccl) return false;
  if (multinode::device_count() == 0) throw multinode::HardwareAbsent("--device gpu: there is no GPU here");
  multinode::check(cudaSetDevice(world.local_rank() % multinode::device_count()));
  return true;
#else
  (void)world, (void)communicator;
  if (options.device == "auto") return false;
  throw UsageError("--device gpu: this program was built without CUDA");
#endif
}

struct Trial {
  double own_seconds, seconds;  // until this rank had the sums of its blocks; until it had the answer
  double waited_seconds;        // of own_seconds, that this thread waited for a CPU
  double answer;
  std::uint64_t hash;  // of the bits of all block sums
};

using SumBlocks = std::function<void(Range blocks, std::span<double> sums)>;

Trial integrate(const Options& options, const World& world, Communicator& communicator, const SumBlocks& sum) {
  const Range blocks = share(block_count(options.n), world.rank(), world.size());
  std::vector<double> sums(static_cast<std::size_t>(block_count(options.n)));
  const auto sums_here =
      std::span(sums).subspan(static_cast<std::size_t>(blocks.first), static_cast<std::size_t>(blocks.size()));
  communicator.barrier();
  const double waited_before = multinode::seconds_without_a_cpu();
  const auto start = Clock::now();
  sum(blocks, sums_here);
  const double own_seconds = multinode::seconds_since(start);
  const double waited_seconds = multinode::seconds_without_a_cpu() - waited_before;
  if (world.rank() == options.corrupt) sums_here.front() = 0;
  add_over_ranks(communicator, sums);
  const double answer = integral(options.n, sums);
  const double seconds = multinode::seconds_since(start);
  return {own_seconds, seconds, waited_seconds, answer, hash_of_bits(sums)};
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / double(values.size());
}

int compute_pi(const Options& options, const multinode::CommonOptions& common, World& world) {
  const bool first = world.rank() == 0;
  const auto has_block = [&](int rank) { return share(block_count(options.n), rank, world.size()).size() > 0; };
  if (const auto rank = options.corrupt; rank && (*rank < 0 || *rank >= world.size() || !has_block(*rank)))
    throw UsageError(fmt::format("--corrupt {}: that rank has no block (processes: {}, blocks: {})", *rank,
                                 world.size(), static_cast<long long>(block_count(options.n))));
  multinode::JsonLines json(first ? common.json : "");
  const auto communicator = multinode::make_communicator(world, multinode::parse_backend(common.backend));
  const bool gpu = use_gpu(options, world, *communicator);
  const Isa isa = available_isas().back();
  SumBlocks sum = [&](Range blocks, std::span<double> sums) {
    sum_blocks(options.n, blocks, sums, isa, options.threads);
  };
#ifdef MULTINODE_HAVE_KERNELS
  std::optional<SumsOnGpu> on_gpu;
  if (gpu) {
    on_gpu.emplace(share(block_count(options.n), world.rank(), world.size()).size());
    sum = [&](Range blocks, std::span<double> sums) { on_gpu->sum_blocks(options.n, blocks, sums); };
  }
#endif

  Trial last{};
  double own_seconds = 0, waited_seconds = 0, seconds = 0;   // sums over this rank's trials
  double fastest = std::numeric_limits<double>::infinity();  // of the trials' own_seconds
  bool same = true;                                          // every run, and every rank, has the same bits
  for (int i = 0; i < options.warmup + options.trials; ++i) {
    const Trial before = last;
    last = integrate(options, world, *communicator, sum);
    same = same && (i == 0 || (last.answer == before.answer && last.hash == before.hash));
    const bool warmup = i < options.warmup;
    if (!warmup) {
      own_seconds += last.own_seconds;
      waited_seconds += last.waited_seconds;
      fastest = std::min(fastest, last.own_seconds);
      seconds += last.seconds;
    }
    if (first)
      std::cout << fmt::format("{} {} of {}: {:.6f} s\n", warmup ? "warm-up" : "trial",
                               warmup ? i + 1 : i + 1 - options.warmup, warmup ? options.warmup : options.trials,
                               last.seconds)
                << std::flush;
  }

  std::vector<double> all_own_seconds, all_waited, all_fastest, all_seconds;  // on rank 0
  const nlohmann::json result{own_seconds / options.trials,    fastest,     seconds / options.trials,
                              waited_seconds / options.trials, last.answer, same};
  same = world.combine_on_rank_0("result", multinode::json_text(result), [&](const auto& ranks) {
    bool all_same = true;
    for (const std::string& text : ranks) {
      const auto rank = multinode::parse_json(text);
      all_own_seconds.push_back(rank[0]);
      all_fastest.push_back(rank[1]);
      all_seconds.push_back(rank[2]);
      all_waited.push_back(rank[3]);
      all_same = all_same && rank[4] == last.answer && rank[5].template get<bool>();
    }
    return all_same ? "same" : "";
  }) == "same";
  const Accuracy accuracy = judge(options.n, last.answer);
  const bool right = accuracy.right && same;
  if (!first) return right ? multinode::exit_right : multinode::exit_wrong;

  const auto [min, max] = std::ranges::minmax(all_own_seconds);
  const double average = mean(all_seconds);
  std::cout << fmt::format("Total number of processes: {}\nAVG Time: {:.6f}\n", world.size(), average)
            << fmt::format(
                   "seconds that a process needed for its blocks on the {}: min {:.6f}, mean {:.6f}, max {:.6f}\n",
                   gpu ? "GPU" : "CPU", min, mean(all_own_seconds), max)
            << fmt::format("pi = {:.17g} = {:a} with n = {}, hash of all blocks {:016x}\n", last.answer, last.answer,
                           options.n, last.hash)
            << fmt::format("pi - T - h^2/6 + h^6/504 = {:.2e}, at most {:.2e} is rounding: {}\n", accuracy.error,
                           accuracy.bound, accuracy.right ? "right" : "WRONG");
  if (!same) std::cout << "the answer differs between runs or ranks: WRONG\n";
  std::cout << std::flush;
  json.write(multinode::fingerprint(world));
  auto ranks = nlohmann::json::array();
  for (std::size_t rank = 0; rank < all_own_seconds.size(); ++rank)
    ranks.push_back({{"rank", rank},
                     {"host", world.host(static_cast<int>(rank))},
                     {"seconds", all_own_seconds[rank]},
                     {"fastest_seconds", all_fastest[rank]},
                     {"waited_seconds", all_waited[rank]}});
  json.write({{"result", last.answer},
              {"bits", fmt::format("{:a}", last.answer)},
              {"blocks_hash", fmt::format("{:016x}", last.hash)},
              {"n", options.n},
              {"error", accuracy.error},
              {"bound", accuracy.bound},
              {"right", right},
              {"processes", world.size()},
              {"threads", options.threads},
              {"device", gpu ? "gpu" : "cpu"},
              {"isa", gpu ? "cuda" : name_of(isa)},
              {"backend", multinode::name_of(communicator->backend())},
              {"warmup", options.warmup},
              {"trials", options.trials},
              {"average_seconds", average},
              {"ranks", ranks}});
  return right ? multinode::exit_right : multinode::exit_wrong;
}

}  // namespace
}  // namespace trapezoid

int main(int argc, char** argv) {
  using namespace trapezoid;
  Options options;
  multinode::CommonOptions common;
  const multinode::Program program{"pi", options.description(), common, [&] {
                                     options.validate();
                                     multinode::parse_backend(common.backend);
                                   }};
  return multinode::run(program, argc, argv, [&](World& world) { return compute_pi(options, common, world); });
}
