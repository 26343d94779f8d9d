#include "cluster/submit.hpp"

#include "cluster/client.hpp"
#include "cluster/placement.hpp"

#include <multinode/options.hpp>
#include <multinode/program_options.hpp>
#include <multinode/report.hpp>
#include <multinode/signals.hpp>

#include <nlohmann/json.hpp>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <set>
#include <span>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>

namespace cluster {

namespace {

namespace po = boost::program_options;

constexpr int interrupted = 130;

nlohmann::json parsed(const std::string& text) {
  auto json = nlohmann::json::parse(text, nullptr, false);
  return json.is_discarded() ? nlohmann::json(text) : json;
}

// Shows people on the terminal, and programs in a file, what comes of a job.
class Display {
 public:
  explicit Display(const std::string& json) : json_(json) {}

  void show(const ToClient& message) {
    switch (message.what_case()) {
      case ToClient::kAccepted:
        name_ = "cluster: job " + std::to_string(message.accepted().job());
        return write("accepted", {{"job", message.accepted().job()}});
      case ToClient::kWaiting:
        say(" waits: " + message.waiting().reason());
        return write("waiting", {{"reason", message.waiting().reason()}});
      case ToClient::kRunning:
        return show(message.running());
      case ToClient::kOutput:
        return show(message.output());
      case ToClient::kReport:
        print(std::cout, "(worker " + std::to_string(message.report().which().rank()) + ") ", message.report().json());
        return write("report", {{"attempt", message.report().which().attempt()},
                                {"rank", message.report().which().rank()},
                                {"report", parsed(message.report().json())}});
      case ToClient::kFailure:
        say(" failed and will start again: " + message.failure().what());
        return write("failure", {{"attempt", message.failure().attempt()}, {"what", message.failure().what()}});
      case ToClient::kResult:
        return show(message.result());
      case ToClient::WHAT_NOT_SET:
        return;
    }
  }

 private:
  using Clock = std::chrono::steady_clock;

  void show(const Running& running) {
    std::set<std::int64_t> nodes;
    nlohmann::json processes = nlohmann::json::array();
    for (const Process& process : running.processes()) {
      nodes.insert(process.node());
      processes.push_back({{"node", process.node()}, {"host", process.host()}, {"pid", process.pid()}});
    }
    say(": " + counted(running.processes_size(), "worker") + " on " +
        counted(static_cast<std::int64_t>(nodes.size()), "node"));
    write("running", {{"attempt", running.attempt()}, {"processes", processes}});
  }

  void show(const Output& output) {
    if (output.lost() > 0) say(": this client is too slow, " + counted(output.lost(), "line") + " of output lost here");
    const Process& process = output.process();
    print(output.stream() == 1 ? std::cout : std::cerr,
          "(worker " + std::to_string(process.rank()) + ", " + process.host() + ", " + std::to_string(process.pid()) +
              ") ",
          output.text());
  }

  void show(const Result& result) {
    const std::string failures =
        result.failures() > 0 ? " after " + counted(result.failures(), "failure") : std::string();
    const bool cancelled = result.status() == interrupted && result.what() == "cancelled";
    say((result.status() == 0 ? " has ended"
         : cancelled          ? " was cancelled"
                              : " failed with status " + std::to_string(result.status())) +
        failures + (result.what().empty() || cancelled ? "" : ": " + result.what()));
    if (!result.last_report().empty()) say(": last report: " + result.last_report());
    write("result", {{"status", result.status()},
                     {"what", result.what()},
                     {"failures", result.failures()},
                     {"last_report", parsed(result.last_report())},
                     {"checkpoint", result.checkpoint()}});
  }

  void say(const std::string& what) { std::cerr << name_ + what + "\n" << std::flush; }

  // Puts `before` before each line.
  static void print(std::ostream& out, const std::string& before, std::string_view text) {
    std::string all;
    while (!text.empty()) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      all.append(before).append(text.substr(0, end)).append("\n");
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    if (!(out << all << std::flush)) throw std::runtime_error("what the job says cannot be written");
  }

  void write(const char* event, nlohmann::json what) {
    what["event"] = event;
    what["seconds"] = std::chrono::duration<double>(Clock::now() - start_).count();
    json_.write(what);
  }

  multinode::JsonLines json_;
  const Clock::time_point start_ = Clock::now();
  std::string name_ = "cluster: job";
};

}  // namespace

int run_job(const Access& access, const Job& job, const std::string& json) {
  Display display(json);
  const multinode::Signals signals{SIGINT, SIGTERM};  // first: threads have the mask of those that start them
  Client client(access.head, access.token, std::chrono::seconds(10));
  const std::jthread waiter = signals.call([&client, count = 0](int) mutable {
    if (++count > 1) _exit(interrupted);
    std::cerr << "cluster: the job is being ended; Ctrl-C again leaves at once\n" << std::flush;
    client.cancel();
  });
  return client.submit(job, [&](const ToClient& message) { display.show(message); }).status();
}

int submit(int argc, const char* const* argv) {
  const std::span<const char* const> words(argv, static_cast<std::size_t>(argc));
  const auto dashes = std::find(words.begin(), words.end(), std::string_view("--"));
  Job job;
  job.set_cpus_per_worker(1);
  std::string json, placement = "pack";
  AccessOptions access;
  po::options_description known(
      "cluster submit [OPTIONS] -- JOB ARGUMENTS\n"
      "Runs JOB, a program in the nodes' job folder, and ends with its status.\nOptions");
  const auto number = [](auto set) { return po::value<int>()->notifier(set); };
  known.add_options()("num-workers", number([&](int n) {
                                       multinode::require_range("--num-workers", n, 1, 10'000);
                                       job.set_num_workers(n);
                                     })->default_value(1),
                      "processes, each on a CPU of its own")(
      "gpus-per-worker", number([&](int n) {
                           multinode::require_range("--gpus-per-worker", n, 0, 1024);
                           job.set_gpus_per_worker(n);
                         })->default_value(0),
      "GPUs for each of them")("placement", po::value(&placement)->default_value(placement),
                               "pack: on few nodes; spread: evenly over all")(
      "max-failures", number([&](int n) {
                        multinode::require_range("--max-failures", n, -1, 1'000'000);
                        job.set_max_failures(n);
                      })->default_value(0),
      "maximum number of restarts; -1: unlimited")("json", po::value(&json),
                                                   "file for all events, one JSON object per line");
  known.add(access.description());
  const auto asks = [&](std::string_view word) { return std::find(words.begin(), dashes, word) != dashes; };
  if (words.end() - dashes < 2 && !asks("--help") && !asks("-h"))
    throw multinode::UsageError(
        "put -- and the job behind the options: cluster submit --num-workers 4 -- JOB ARGUMENTS");
  if (!multinode::parse_command_line(static_cast<int>(dashes - words.begin()), argv, known, true)) return 0;
  if (placement != "pack" && placement != "spread")
    throw multinode::UsageError("--placement must be pack or spread, not '" + placement + "'");
  job.set_placement(placement == "pack" ? PACK : SPREAD);
  job.set_program(dashes[1]);
  std::for_each(dashes + 2, words.end(), [&](const char* argument) { job.add_arguments(argument); });
  return run_job(access.read(), job, json);
}

}  // namespace cluster
