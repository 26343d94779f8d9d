// pi_tasks: pi by the midpoint rule, as tasks on a cluster, the same bits whatever the number of workers.
// Exit status: 0 the answer is pi to within the bound, 1 it is not, or the cluster failed, 2 bad command line.
#include "cluster/access.hpp"
#include "tasks/pool.hpp"

#include <multinode/options.hpp>
#include <multinode/program_options.hpp>
#include <multinode/report.hpp>

#include <fmt/core.h>
#include <boost/program_options.hpp>
#include <nlohmann/json.hpp>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

namespace {

struct Options {
  cluster::AccessOptions access;
  std::int64_t tasks = 1000, intervals = 10'000'000;
  int num_workers = 2, max_failures = 0;
  double timeout = 60;
  std::string json;
};

// Error of the rule: |f''| <= 8, hence at most 8 / (24 n^2). Rounding, each a relative 2^-53 of the sum, for all terms
// are positive: 5 in a term, count - 1 in adding those of a task, tasks - 1 in adding the tasks, 1 for the division.
double bound(const Options& options) {
  const auto n = static_cast<double>(options.intervals);
  const double count = std::ceil(n / static_cast<double>(options.tasks));
  return 1 / (3 * n * n) +
         4 * (count + static_cast<double>(options.tasks) + 4) * std::numeric_limits<double>::epsilon() / 2;
}

int compute(const Options& options) {
  multinode::JsonLines json(options.json);
  const auto [head, token] = options.access.read();
  tasks::Pool pool({.head = head,
                    .token = token,
                    .library = "libpi_task_library.so",
                    .num_workers = options.num_workers,
                    .max_failures = options.max_failures,
                    .timeout = std::chrono::milliseconds(std::llround(options.timeout * 1000)),
                    .log = [](const std::string& line) { std::cerr << "pi_tasks: " + line + "\n"; }});

  const auto start = std::chrono::steady_clock::now();
  std::vector<tasks::Future<double>> parts;
  const auto begin = [&](std::int64_t task) {
    return task * (options.intervals / options.tasks) + std::min(task, options.intervals % options.tasks);
  };
  for (std::int64_t task = 0; task < options.tasks; ++task)
    parts.push_back(pool.submit<double>("sum_part", begin(task), begin(task + 1) - begin(task), options.intervals));
  double sum = 0;
  for (const auto& part : parts) sum += part.get();  // in the tasks' order, whoever is first
  const double answer = sum / static_cast<double>(options.intervals);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;

  const double error = std::abs(answer - std::numbers::pi);
  const bool right = error <= bound(options);
  std::cout << fmt::format("pi = {:.17g} = {:a}\n|pi - answer| = {:.1e}, at most {:.1e}: {}\n", answer, answer, error,
                           bound(options), right ? "right" : "WRONG")
            << options.tasks << " tasks on " << options.num_workers
            << (options.num_workers == 1 ? " worker: " : " workers: ") << seconds.count() << " s\n"
            << std::flush;
  json.write({{"result", answer},
              {"error", error},
              {"bound", bound(options)},
              {"right", right},
              {"tasks", options.tasks},
              {"intervals", options.intervals},
              {"num_workers", options.num_workers},
              {"seconds", seconds.count()}});
  return right ? multinode::exit_right : multinode::exit_wrong;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Options options;
    namespace po = boost::program_options;
    po::options_description known("pi_tasks");
    known.add_options()("tasks", po::value(&options.tasks)->default_value(options.tasks), "number of tasks")(
        "intervals", po::value(&options.intervals)->default_value(options.intervals),
        "of the midpoint rule, all tasks'")(
        "num-workers", po::value(&options.num_workers)->default_value(options.num_workers), "processes that run tasks")(
        "max-failures", po::value(&options.max_failures)->default_value(options.max_failures),
        "maximum number of restarts of the workers; -1: unlimited")(
        "timeout", po::value(&options.timeout)->default_value(options.timeout, "60"),
        "seconds for the workers to start")("json", po::value(&options.json),
                                            "file to write the result to, as a JSON object");
    known.add(options.access.description());
    if (!multinode::parse_command_line(argc, argv, known, true)) return multinode::exit_right;
    multinode::require_range<std::int64_t>("--intervals", options.intervals, 1, 1LL << 50);
    multinode::require_range<std::int64_t>("--tasks", options.tasks, 1,
                                           std::min<std::int64_t>(options.intervals, 10'000'000));
    multinode::require_range("--num-workers", options.num_workers, 1, 10'000);
    multinode::require_range("--max-failures", options.max_failures, -1, 1'000'000);
    multinode::require_range("--timeout", options.timeout, 0.001, 31'536'000.0);
    return compute(options);
  } catch (const multinode::UsageError& e) {
    std::cerr << "pi_tasks: " << e.what() << "\n";
    return multinode::exit_usage;
  } catch (const std::exception& e) {
    std::cerr << "pi_tasks: " << e.what() << "\n";
    return multinode::exit_wrong;
  }
}
