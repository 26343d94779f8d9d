// task_rate: empty tasks a second, from one client: each awaited before the next is submitted, and 10,000 in flight,
// each awaited on its own; then 100,000 queued at once, the sum of their results checked, and the peaks of memory.
// Prints a JSON object. Exit status: 0 every result was right, 1 one was not, 2 bad command line.
#include "cluster/access.hpp"
#include "tasks/pool.hpp"

#include <multinode/options.hpp>
#include <multinode/program_options.hpp>

#include <nlohmann/json.hpp>

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  cluster::AccessOptions access;
  int num_workers = 1;
  double seconds = 2;
  std::int64_t in_flight = 10'000, queued = 100'000;
};

// Calls `round`, which returns how many tasks it ran, for at least `seconds`; returns tasks a second.
template <class Round>
double rate(double seconds, Round round) {
  std::int64_t tasks = 0;
  const auto start = Clock::now();
  std::chrono::duration<double> taken{};
  do {
    tasks += round();
    taken = Clock::now() - start;
  } while (taken.count() < seconds);
  return static_cast<double>(tasks) / taken.count();
}

std::int64_t peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

int measure(const Options& options) {
  const auto [head, token] = options.access.read();
  tasks::Pool pool({.head = head,
                    .token = token,
                    .library = "libtask_rate_library.so",
                    .num_workers = options.num_workers,
                    .log = [](const std::string& line) { std::cerr << line + "\n"; }});
  const auto one = [&] {
    pool.submit<void>("empty").get();
    return 1;
  };
  const auto many = [&] {
    std::vector<tasks::Future<void>> futures;
    for (std::int64_t i = 0; i < options.in_flight; ++i) futures.push_back(pool.submit<void>("empty"));
    for (const auto& future : futures) future.get();
    return options.in_flight;
  };
  rate(options.seconds / 10, one);  // warm-up
  const double synchronous = rate(options.seconds, one);
  rate(options.seconds / 10, many);
  const double asynchronous = rate(options.seconds, many);

  const std::int64_t before = peak_memory();
  std::vector<tasks::Future<std::int64_t>> futures;
  for (std::int64_t i = 0; i < options.queued; ++i) futures.push_back(pool.submit<std::int64_t>("square", i));
  std::int64_t sum = 0;
  bool right = true;
  for (std::int64_t i = 0; i < options.queued; ++i) {
    const std::int64_t value = futures[static_cast<std::size_t>(i)].get();
    right = right && value == i * i;
    sum += value;
  }
  const std::int64_t last = options.queued - 1;
  right = right && sum == last * (last + 1) / 2 * (2 * last + 1) / 3;
  const std::int64_t client = peak_memory();

  // As many as runners, and some more: none is left out.
  std::vector<tasks::Future<std::int64_t>> peaks;
  for (int i = 0; i < 8 * options.num_workers; ++i) peaks.push_back(pool.submit<std::int64_t>("peak_memory"));
  std::int64_t runner = 0;
  for (const auto& peak : peaks) runner = std::max(runner, peak.get());

  std::cout << nlohmann::json({{"num_workers", options.num_workers},
                               {"synchronous", synchronous},
                               {"asynchronous", asynchronous},
                               {"in_flight", options.in_flight},
                               {"queued", options.queued},
                               {"right", right},
                               {"sum", sum},
                               {"client_peak_bytes", client},
                               {"client_peak_bytes_before", before},
                               {"runner_peak_bytes", runner}})
            << std::endl;
  return right ? multinode::exit_right : multinode::exit_wrong;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Options options;
    namespace po = boost::program_options;
    po::options_description known("task_rate");
    known.add_options()("num-workers", po::value(&options.num_workers)->default_value(options.num_workers),
                        "processes that run tasks")(
        "seconds", po::value(&options.seconds)->default_value(options.seconds, "2"), "for each of the two rates")(
        "in-flight", po::value(&options.in_flight)->default_value(options.in_flight),
        "tasks submitted before the first is awaited")(
        "queued", po::value(&options.queued)->default_value(options.queued), "tasks queued at once, for the memory");
    known.add(options.access.description());
    if (!multinode::parse_command_line(argc, argv, known, true)) return multinode::exit_right;
    multinode::require_range("--num-workers", options.num_workers, 1, 10'000);
    multinode::require_range("--seconds", options.seconds, 0.01, 3600.0);
    multinode::require_range<std::int64_t>("--in-flight", options.in_flight, 1, 10'000'000);
    multinode::require_range<std::int64_t>("--queued", options.queued, 1, 1'000'000);
    return measure(options);
  } catch (const multinode::UsageError& e) {
    std::cerr << "task_rate: " << e.what() << "\n";
    return multinode::exit_usage;
  } catch (const std::exception& e) {
    std::cerr << "task_rate: " << e.what() << "\n";
    return multinode::exit_wrong;
  }
}
