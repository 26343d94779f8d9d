// explore: what does every process see, and is it the same everywhere?
// Exit status, the same on all ranks: 0 all requirements are met, or there are none; 1 an item of --require-equal
// differs, or a required file, command or library is missing; 2 bad command line or environment.
#include "explore/comparison.hpp"
#include "explore/probes.hpp"

#include <multinode/base/json.hpp>
#include <multinode/base/program_options.hpp>
#include <multinode/base/seconds.hpp>
#include <multinode/communicator/libraries.hpp>
#include <multinode/net/address.hpp>
#include <multinode/node/limits.hpp>
#include <multinode/world/program.hpp>
#include <multinode/world/report.hpp>

#include <fmt/core.h>

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <iostream>

namespace explore {
namespace {

using multinode::Environment, multinode::Launch, multinode::World;
using nlohmann::json;
namespace po = boost::program_options;

struct Options {
  multinode::CommonOptions common;
  std::vector<std::string> require_equal;
  bool require_cpus = false;
  double require_start = 0;  // seconds; 0: not required
  Required required;
};

// The name of the variable that gave each value. Values that were computed from others have none.
json variables(const Launch& launch) {
  json all = json::object();
  const auto add = [&](const char* name, const std::string& variable) {
    if (!variable.empty()) all[name] = variable;
  };
  add("rank", launch.rank.variable);
  add("world_size", launch.world_size.variable);
  add("local_rank", launch.local_rank.variable);
  if (launch.local_size) add("local_size", launch.local_size->variable);
  if (launch.node_rank) add("node_rank", launch.node_rank->variable);
  if (launch.node_count) add("node_count", launch.node_count->variable);
  add("master_address", launch.master_address.variable);
  add("master_port", launch.master_port.variable);
  if (launch.launcher_store) add("store", launch.launcher_store->variable);
  return all;
}

// How this process is scheduled: "normal, nice 0".
std::string priority() {
  const int policy = sched_getscheduler(0);
  const char* const name = policy == SCHED_OTHER   ? "normal"
                           : policy == SCHED_BATCH ? "batch"
                           : policy == SCHED_IDLE  ? "idle"
                                                   : "real-time";
  return fmt::format("{}, nice {}", name, getpriority(PRIO_PROCESS, 0));
}

json probe_this_process(const World& world, const Required& required, double waited) {
  const Environment environment = multinode::current_environment();
  const auto path = environment.find("PATH");
  std::error_code error;
  json process = read_node(environment);
  process.update({{"rank", world.rank()},
                  {"world_size", world.size()},
                  {"local_rank", world.local_rank()},
                  {"node", world.node_rank()},
                  {"host", multinode::host_name()},
                  {"pid", getpid()},
                  {"priority", priority()},
                  {"waited_seconds", waited},
                  {"cpu_wait_seconds", multinode::seconds_without_a_cpu()},
                  {"folder", std::filesystem::current_path(error).string()},
                  {"launcher", world.launch().launcher},
                  {"variables", variables(world.launch())},
                  {"required", find_required(required, path == environment.end() ? "/usr/bin:/bin" : path->second)}});
  return process;
}

// Prints the differences. Returns whether all requirements are met.
bool report_verdict(const Processes& processes, const Options& options, multinode::JsonLines& json_lines) {
  const json differing = differences(processes);
  if (processes.size() > 1) std::cout << '\n';
  for (const Item& item : items())
    if (groups(processes, item).size() > 1) std::cout << "differs: " << describe(processes, item) << '\n';
  if (differing.empty() && processes.size() > 1) std::cout << "no difference between the ranks\n";
  for (const std::string& line : oversubscribed(processes)) std::cout << "note: " << line << '\n';

  std::vector<std::string> failures = missing(processes);
  if (options.require_cpus) std::ranges::move(crowded(processes), std::back_inserter(failures));
  if (options.require_start > 0)
    std::ranges::move(late(processes, options.require_start), std::back_inserter(failures));
  for (const std::string& list : options.require_equal)
    for (const Item& item : parse_items(list)) {
      const std::string line = describe(processes, item);
      if (groups(processes, item).size() > 1)
        failures.push_back("not equal: " + line);
      else
        std::cout << "equal: " << line << '\n';
    }
  std::cout << std::flush;
  for (const std::string& failure : failures) std::cerr << "explore: " + failure + "\n" << std::flush;
  json_lines.write({{"differences", differing}, {"failures", failures}});
  return failures.empty();
}

int explore_world(World& world, const Options& options, double waited) {
  const std::string this_process = multinode::to_msgpack(probe_this_process(world, options.required, waited));
  Processes processes;
  for (const std::string& text : world.gather_on_rank_0("what the processes see", this_process))
    processes.push_back(multinode::from_msgpack(text));
  if (world.rank() != 0) return multinode::exit_right;  // all ranks exit with the worst status

  multinode::JsonLines json_lines(options.common.json);
  json_lines.write(multinode::fingerprint(world));
  for (const json& process : processes) json_lines.write(process);
  print(processes, std::cout);
  return report_verdict(processes, options, json_lines) ? multinode::exit_right : multinode::exit_wrong;
}

}  // namespace
}  // namespace explore

int main(int argc, char** argv) {
  using namespace explore;
  const auto start = std::chrono::steady_clock::now();
  Options options;
  multinode::Program program{"explore", po::options_description("explore: what every process sees"), options.common};
  // clang-format off
  program.options.add_options()
    ("require-equal", po::value(&options.require_equal)->value_name("ITEM,..."),
     "fail if an item differs between ranks: kernel, driver, memlock ... (an unknown name lists all items)")
    ("require-file", po::value(&options.required.files)->value_name("PATH"),
     "fail if a process cannot read this file; can be repeated, like the next two")
    ("require-command", po::value(&options.required.commands)->value_name("NAME"),
     "fail if a process does not find this command on its PATH")
    ("require-library", po::value(&options.required.libraries)->value_name("NAME"),
     "fail if a process cannot load this library, such as libnccl.so.2")
    ("require-cpus", po::bool_switch(&options.require_cpus),
     "fail if the processes of a node may use less than a CPU each, and it has more")
    ("require-start", po::value(&options.require_start)->value_name("SECONDS"),
     "fail if a process starts so much later than the first, apart from its wait for a CPU");
  // clang-format on
  program.validate = [&] {
    for (const std::string& list : options.require_equal) explore::parse_items(list);
    multinode::require_range("--require-start", options.require_start, 0.0, 3600.0);
  };
  program.same_versions = false;  // versions may differ: explore reports it
  return multinode::run(program, argc, argv, [&](World& world) {
    return explore_world(world, options, multinode::seconds_since(start));  // all have met
  });
}
