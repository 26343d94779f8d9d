#include "collective.hpp"
#include "options.hpp"
#include "ranks.hpp"
#include "statistics.hpp"
#include "values.hpp"

#include <multinode/base/program_options.hpp>
#include <multinode/base/text.hpp>
#include <multinode/communicator/device.hpp>
#include <multinode/world/program.hpp>
#include <multinode/world/report.hpp>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <random>
#include <sstream>

namespace perf {

namespace {

using multinode::UsageError;
using multinode::World;

std::string bytes_of(std::span<const double> numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size_bytes()};
}

// The numbers of all processes, one after the other.
std::vector<double> numbers_of(const std::vector<std::string>& processes) {
  const std::string bytes = multinode::join(processes, "");
  std::vector<double> numbers(bytes.size() / sizeof(double));
  std::ranges::copy(bytes, reinterpret_cast<char*>(numbers.data()));
  return numbers;
}

class Benchmark {
 public:
  Benchmark(World& world, const Collective& collective, const Options& options)
      : world_(world),
        collective_(collective),
        options_(options),
        ranks_(make_ranks(world, multinode::parse_backend(options.common.backend), options.ranks_per_process)),
        json_(world.rank() == 0 ? options.common.json : ""),
        random_(options.common.seed) {}

  int run() {
    refuse_what_does_not_fit();
    head();
    for (int cycle = 0; options_.cycles == 0 || cycle < options_.cycles; ++cycle) {
      if (options_.cycles == 0) results_.clear();  // an endless run needs only the last cycle
      for (const multinode::DataType type : options_.types)
        for (std::size_t last = 0; const std::size_t size : options_.sizes()) {
          const std::size_t count = count_of(size, type);
          if (count == last) continue;  // the same row again, or less than one element per rank
          rows(size, {type, last = count, false}, cycle);
        }
    }

    bool right = true;
    if (is_rank_0()) {
      print_foot(std::cout, results_);
      for (const Result& result : results_) right = right && result.wrong.value_or(0) == 0;
      if (options_.least_busbw)
        for (const std::string& line : too_slow(results_, *options_.least_busbw)) {
          right = false;
          std::cerr << fmt::format("{}_perf: {}\n", collective_.name, line);
        }
      std::cout << std::flush;
    }
    return right ? multinode::exit_right : multinode::exit_wrong;
  }

 private:
  bool is_rank_0() const { return world_.rank() == 0; }
  std::size_t count_of(std::size_t size, multinode::DataType type) const {
    return size / multinode::size_of(type) / number_of(collective_.larger(), ranks_->size());
  }

  void refuse_what_does_not_fit() {
    if (options_.corrupt) {
      multinode::require_range("--corrupt", *options_.corrupt, 0, ranks_->size() - 1);
      if (options_.check == 0) throw UsageError("--corrupt needs the check: leave out -c 0");
    }

    std::size_t largest = 0;
    for (const std::size_t size : options_.sizes())
      for (const multinode::DataType type : options_.types) {
        if (size / multinode::size_of(type) > ranks_->largest_count())  // all blocks: libraries add up their counts
          throw UsageError(fmt::format(
              "--maxbytes: {} bytes are more elements of type {} than the int counts of {} can hold: use a larger type",
              size, name_of(type), multinode::name_of(ranks_->backend())));
        largest = std::max(largest, count_of(size, type) * multinode::size_of(type));
      }
    if (largest == 0)
      throw UsageError(
          fmt::format("--maxbytes: too small, less than one element for each of {} ranks", ranks_->size()));

    // In and out of every rank here. What is left is for the library and the rest of the machine.
    const auto bytes = [&](Blocks blocks) { return number_of(blocks, ranks_->size()) * largest; };
    const std::size_t in = bytes(collective_.in), both = bytes(collective_.larger());
    const std::size_t needed_bytes = static_cast<std::size_t>(ranks_->local()) * (in + both);
    const double free = 0.9 * -maximum("free memory", -static_cast<double>(ranks_->available_memory()));
    if (const auto needed = static_cast<double>(needed_bytes); needed > free) {
      const auto fits = static_cast<std::size_t>(static_cast<double>(both) * free / needed);
      throw UsageError(fmt::format(
          "--maxbytes: the buffers of a process need {} MiB, but only {} MiB are free: the largest -e that fits is {}",
          needed_bytes >> 20, static_cast<std::size_t>(free) >> 20,
          fits >> 20 ? fmt::format("{}M", fits >> 20) : std::to_string(fits)));
    }
    ranks_->allocate(in, both);
  }

  void head() {
    std::string devices;
    for (int local = 0; local < ranks_->local(); ++local) devices += (local ? "\n" : "") + ranks_->device(local);
    const auto of_all = world_.gather_on_rank_0("devices", std::to_string(getpid()) + "\n" + devices);
    if (!is_rank_0()) return;
    const auto counted = [](int number, const char* one, const char* ending) {
      return fmt::format("{} {}{}", number, one, number == 1 ? "" : ending);
    };
    std::cout << fmt::format("# {}_perf over {}, {} in {} on {}\n", collective_.name,
                             multinode::name_of(ranks_->backend()), counted(ranks_->size(), "rank", "s"),
                             counted(world_.size(), "process", "es"), counted(world_.node_count(), "node", "s"));
    for (std::size_t process = 0; process < of_all.size(); ++process) {
      std::istringstream lines(of_all[process]);
      std::string pid, device;
      std::getline(lines, pid);
      for (std::size_t rank = process * static_cast<std::size_t>(ranks_->local()); std::getline(lines, device); ++rank)
        std::cout << fmt::format("#  Rank {} Pid {} on {} device {}\n", rank, pid,
                                 world_.host(static_cast<int>(process)), device);
    }
    const std::size_t least = options_.sizes().front();
    if (std::ranges::any_of(options_.types, [&](multinode::DataType type) { return count_of(least, type) == 0; }))
      std::cout << "# sizes of less than one element per rank are skipped\n";
    print_head(std::cout);
    json_.write(multinode::fingerprint(world_));
  }

  void rows(std::size_t asked_size, Operation operation, int cycle) {
    Result result;
    result.collective = collective_.name;
    result.backend = multinode::name_of(ranks_->backend());
    result.ranks = ranks_->size();
    result.asked_size = asked_size;
    result.count = operation.count;
    result.size = operation.block_bytes() * number_of(collective_.larger(), ranks_->size());
    result.type = name_of(operation.type);
    result.redop = collective_.sums ? "sum" : "none";
    result.cycle = cycle;

    std::vector<Result> places = {measure(operation, result)};
    if (ranks_->has_in_place(collective_)) {
      operation.in_place = result.in_place = true;
      places.push_back(measure(operation, result));
    }
    if (!is_rank_0()) return;
    print_row(std::cout, places);
    for (const Result& place : places) {
      json_.write(to_json(place));
      results_.push_back(place);
    }
  }

  // The result is rank 0's; the others have nothing to show.
  Result measure(const Operation& operation, Result result) {
    const Plan plan = warm_up(operation);
    const Samples samples = ranks_->measure(collective_, operation, plan.samples, plan.calls);
    result.calls_per_sample = plan.calls;
    result.iterations = plan.samples * plan.calls;
    name_late(operation, std::clamp(result.iterations / 4, 1, 3), result);

    auto wrong_here = static_cast<double>(count_wrong(operation)), wrong = 0.0;
    std::vector<double> numbers, means, medians, p99s;
    for (const std::vector<double>& rank : samples) {
      numbers.insert(numbers.end(), {mean(rank), median(rank), percentile(rank, 99), wrong_here});
      wrong_here = 0;  // with the first rank of the process
    }
    const std::vector<double> all = numbers_of(world_.gather_on_rank_0("result", bytes_of(numbers)));
    if (!is_rank_0()) return result;
    for (std::size_t at = 0; at < all.size(); at += 4) {
      means.push_back(all[at]);
      medians.push_back(all[at + 1]);
      p99s.push_back(all[at + 2]);
      wrong += all[at + 3];
    }
    result.time = mean(means);
    result.median = mean(medians);
    result.p99 = mean(p99s);
    if (options_.check > 0) result.wrong = static_cast<std::uint64_t>(wrong);
    if (ranks_->backend() == multinode::Backend::nccl && multinode::emulated_gpus()) return result;
    result.algbw = static_cast<double>(result.size) / result.time;
    if (result.ranks > 1) result.busbw = *result.algbw * collective_.bus_factor(result.ranks);
    return result;
  }

  // Wrong elements in the checks of one operation, over this process's ranks.
  std::uint64_t count_wrong(const Operation& operation) {
    const std::size_t block = operation.block_bytes();
    const auto blocks = [&](Blocks which) { return static_cast<int>(number_of(which, ranks_->size())); };
    const Ranks::Buffer in_buffer = operation.in_place ? Ranks::Buffer::both : Ranks::Buffer::in;
    std::uint64_t wrong = 0;
    for (int check = 0; check < options_.check; ++check) {
      const Values values({operation.type, collective_.sums, ranks_->size(), options_.common.seed, ++round_});
      for (int local = 0; local < ranks_->local(); ++local) {
        const Place place = ranks_->place(local);
        // A call that writes nothing must not find an old result in its buffer.
        ranks_->write(local, Ranks::Buffer::both, 0, block * number_of(collective_.larger(), place.size),
                      [](std::span<std::byte> bytes) { std::ranges::fill(bytes, std::byte{0xA5}); });
        const int first = operation.in_place ? collective_.first_in(place.rank) : 0;
        for (int b = 0; b < blocks(collective_.in); ++b)
          ranks_->write(local, in_buffer, static_cast<std::size_t>(first + b) * block, block,
                        [&](std::span<std::byte> bytes) { values.fill(bytes, place.rank, b); });
      }
      ranks_->measure(collective_, operation, 1, 1);
      for (int local = 0; local < ranks_->local(); ++local) {
        const Place place = ranks_->place(local);
        const int first = operation.in_place ? collective_.first_out(place.rank) : 0;
        std::optional<int> corrupted;  // block
        if (place.rank == options_.corrupt)
          corrupted = static_cast<int>(random_() % number_of(collective_.out, place.size));
        for (int b = 0; b < blocks(collective_.out); ++b) {
          const Source source = collective_.result(place, b);
          ranks_->read(local, Ranks::Buffer::both, static_cast<std::size_t>(first + b) * block, block,
                       [&](std::span<std::byte> bytes) {
                         if (b == corrupted) {
                           const std::size_t at = random_() % bytes.size();
                           bytes[at] ^= std::byte(1u << (random_() % 8));
                         }
                         std::string what;
                         const std::size_t found = values.count_wrong(bytes, source, &what);
                         if (found && wrong == 0)
                           std::cerr << fmt::format("rank {}: block {}: {}\n", place.rank, b, what);
                         wrong += found;
                       });
        }
      }
    }
    return wrong;
  }

  // A rank is late if it is so in two measurements: one call may be slow by chance.
  void name_late(const Operation& operation, int calls, Result& result) {
    const auto late = [](const std::vector<double>& times) {
      std::vector<int> found = outliers(times);
      std::erase_if(found, [&](int rank) { return times[static_cast<std::size_t>(rank)] < median(times) + 50e-6; });
      return found;
    };
    const bool suspected = after_barrier(operation, calls, [&](const std::vector<double>& times) {
      const auto [least, most] = std::ranges::minmax(times);
      result.rank_times = times;
      if (times.size() > 1) result.spread = (most - least) / median(times);
      result.late = late(times);
      return !result.late.empty();
    });
    if (!suspected) return;
    after_barrier(operation, calls, [&](const std::vector<double>& times) {
      const std::vector<int> again = late(times);
      std::erase_if(result.late, [&](int rank) { return std::ranges::find(again, rank) == again.end(); });
      return true;
    });
  }

  // Each rank's time until its call is done, after a barrier: its median over `calls` calls. Back to back, every rank
  // is as slow as the slowest. Returns what judge(times of all ranks), called on rank 0, returns.
  template <class Judge>
  bool after_barrier(const Operation& operation, int calls, Judge&& judge) {
    std::vector<std::vector<double>> times(static_cast<std::size_t>(ranks_->local()));
    for (int call = 0; call < calls; ++call) {
      const Samples one = ranks_->measure(collective_, operation, 1, 1);
      for (std::size_t local = 0; local < one.size(); ++local) times[local].push_back(one[local][0]);
    }
    std::vector<double> medians;
    for (const std::vector<double>& of_rank : times) medians.push_back(median(of_rank));
    return !world_
                .combine_on_rank_0("times after a barrier", bytes_of(medians),
                                   [&](const auto& processes) { return judge(numbers_of(processes)) ? "yes" : ""; })
                .empty();
  }

  struct Plan {
    int samples, calls;
  };
  Plan warm_up(const Operation& operation) {
    if (!options_.sweep) {
      if (options_.warmup == 0) return {options_.iterations, 1};
      const double seconds = estimate(operation, options_.warmup);
      const int calls = std::min(calls_a_sample(seconds), options_.iterations);
      return {(options_.iterations + calls - 1) / calls, calls};
    }
    // Batches of about 5 ms, until two in a row agree within 5 % or a tenth of a second has passed.
    double before = 0, spent = 0, seconds = slowest(ranks_->measure(collective_, operation, 1, 1));
    for (int batch = 0; batch < 2 || (std::abs(seconds - before) > 0.05 * before && spent < 0.1); ++batch) {
      const int calls = std::clamp(static_cast<int>(0.005 / seconds), 1, 5000);
      before = seconds;
      seconds = slowest(ranks_->measure(collective_, operation, 1, calls));
      spent += seconds * calls;
    }
    const int calls = calls_a_sample(seconds);
    return {std::clamp(static_cast<int>(0.12 / (seconds * calls)), 4, 2000), calls};
  }

  // Seconds per call, after `warmup` untimed calls. The first calls take several times as long as a short call does.
  double estimate(const Operation& operation, int warmup) {
    const double seconds = slowest(ranks_->measure(collective_, operation, 1, warmup));
    return seconds < 50e-6 ? slowest(ranks_->measure(collective_, operation, 5, 20)) : seconds;
  }

  // Each sample reads the clock once, which takes about 30 ns: 0.4 % of a sample of 8 us. A GPU needs a microsecond for
  // an event, and its events are half a microsecond apart: also 0.4 %, or less, of 200 us with longer calls.
  int calls_a_sample(double seconds) const {
    const auto [least, most] =
        ranks_->backend() == multinode::Backend::nccl ? std::pair(200e-6, 1000) : std::pair(8e-6, 40);
    return std::clamp(static_cast<int>(std::ceil(least / seconds)), 1, most);
  }

  // The slowest rank's median time, the same for all processes.
  double slowest(const Samples& samples) {
    double here = 0;
    for (const std::vector<double>& rank : samples) here = std::max(here, median(rank));
    return maximum("warm-up", here);
  }

  // The largest of all processes' numbers, the same for all of them.
  double maximum(const char* name, double value) {
    return numbers_of({world_.combine_on_rank_0(name, bytes_of({&value, 1}), [](const auto& processes) {
      const double all = std::ranges::max(numbers_of(processes));
      return bytes_of({&all, 1});
    })})[0];
  }

  World& world_;
  const Collective& collective_;
  const Options& options_;
  std::unique_ptr<Ranks> ranks_;
  multinode::JsonLines json_;
  std::mt19937_64 random_;  // where --corrupt strikes
  std::uint64_t round_ = 0;
  std::vector<Result> results_;
};

}  // namespace

int run(const Collective& collective, int argc, const char* const* argv) {
  Options options;
  const std::string name = std::string(collective.name) + "_perf";
  const multinode::Program program{name, options.description(name), options.common, [&] { options.validate(); }};
  return multinode::run(program, argc, argv, [&](World& world) { return Benchmark(world, collective, options).run(); });
}

}  // namespace perf
