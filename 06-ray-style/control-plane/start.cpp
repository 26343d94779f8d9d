#include "commands.hpp"
#include "head.hpp"
#include "log.hpp"
#include "node.hpp"
#include "security.hpp"
#include "state_folder.hpp"

#include <multinode/address.hpp>
#include <multinode/options.hpp>
#include <multinode/program_options.hpp>
#include <multinode/signals.hpp>

#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

namespace cluster {

namespace {

namespace fs = std::filesystem;
namespace po = boost::program_options;
using multinode::UsageError;

constexpr std::uint16_t default_port = 6379;
constexpr int most_slots = 100'000;

struct Options {
  bool head = false;
  std::string address;
  std::string host = "127.0.0.1";
  std::uint16_t port = default_port;
  int cpus = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  int gpus = 0;
  fs::path programs = fs::read_symlink("/proc/self/exe").parent_path(), jobs = programs / "jobs";
  fs::path state;
  std::chrono::milliseconds timeout{60'000};
};

// Those of CUDA_VISIBLE_DEVICES, as CUDA reads it: it ends at the first entry that is no device. Without the variable:
// the files /dev/nvidia0, /dev/nvidia1 ...
int count_gpus() {
  int count = 0;
  if (const char* const given = std::getenv("CUDA_VISIBLE_DEVICES")) {
    std::istringstream entries(given);
    for (std::string entry;
         std::getline(entries, entry, ',') && !entry.empty() && entry[0] != '-' && entry != "NoDevFiles";)
      ++count;
    return count;
  }
  for (const fs::directory_entry& entry : fs::directory_iterator("/dev")) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("nvidia") && name.size() > 6 &&
        std::all_of(name.begin() + 6, name.end(), [](unsigned char c) { return std::isdigit(c); }))
      ++count;
  }
  return count;
}

std::optional<Options> parse(int argc, const char* const* argv) {
  Options options;
  options.gpus = count_gpus();
  std::string jobs = options.jobs.string(), state;
  double timeout = 60;
  po::options_description known("Options of cluster start");
  known.add_options()                                                                                         //
      ("head", po::bool_switch(&options.head), "start a head, and a node beside it")                          //
      ("address", po::value(&options.address)->value_name("HOST:PORT"), "start a node that joins this head")  //
      ("host", po::value(&options.host)->default_value(options.host),
       "with --head: the name or address to listen on, by which others reach this host")               //
      ("port", po::value(&options.port)->default_value(options.port), "with --head; 0: any free one")  //
      ("num-cpus", po::value(&options.cpus)->default_value(options.cpus),
       "maximum number of job processes on this host")                                      //
      ("num-gpus", po::value(&options.gpus)->default_value(options.gpus), "GPUs for them")  //
      ("jobs", po::value(&jobs)->default_value(jobs)->value_name("DIR"),
       "the job folder: only its programs can run here")  //
      ("state", po::value(&state)->value_name("DIR"),
       "folder for the key, the address and what jobs write (default: ~/.multinode-cluster)")  //
      ("timeout", po::value(&timeout)->default_value(timeout), "seconds that the head may take to answer");
  if (!multinode::parse_command_line(argc, argv, known, true)) return std::nullopt;
  if (options.head == !options.address.empty())
    throw UsageError("say either --head or --address HOST:PORT; see cluster start --help");
  multinode::require_range("--num-cpus", options.cpus, 0, most_slots);
  multinode::require_range("--num-gpus", options.gpus, 0, most_slots);
  multinode::require_range("--timeout", timeout, 0.001, 31'536'000.0);
  options.timeout = std::chrono::milliseconds(std::llround(std::ceil(timeout * 1000)));
  options.jobs = fs::absolute(jobs);
  if (!fs::is_directory(options.jobs)) throw UsageError("--jobs: " + options.jobs.string() + " is not a folder");
  options.state = state.empty() ? StateFolder::default_path() : fs::path(state);
  return options;
}

std::string what_next(const Options& options, const multinode::Endpoint& head) {
  const std::string state = options.state == StateFolder::default_path() ? "" : " --state " + options.state.string();
  const std::string slots = std::to_string(options.cpus) + " CPUs and " + std::to_string(options.gpus) + " GPUs";
  if (!options.head) return "This node has joined the cluster of " + to_string(head) + " with " + slots + ".\n";
  std::string text = "The head listens on " + to_string(head) + "; its node has " + slots + ".\n";
  if (options.host == "127.0.0.1" || options.host == "localhost")
    return text + "Hosts can join after 'cluster start --head --host ADDRESS' only.\n";
  return text + "A host joins with 'cluster start" + state + " --address " + to_string(head) + "' and the same " +
         (options.state / "key.pem").string() + ".\n";
}

}  // namespace

int start(int argc, const char* const* argv) {
  const std::optional<Options> options = parse(argc, argv);
  if (!options) return multinode::exit_right;
  const StateFolder folder(options->state);
  const multinode::Descriptor lock = options->head ? folder.lock() : multinode::Descriptor();
  std::signal(SIGPIPE, SIG_IGN);
  std::atomic<Node*> ready = nullptr;
  std::optional<Head> head;
  const multinode::Signals signals{SIGTERM, SIGINT, SIGHUP};  // before there are threads: they block them too
  Log log(STDERR_FILENO);
  const auto say = [&](const std::string& line) { log(line); };
  std::jthread waiter = signals.call([&, ended = false](int number) mutable {
    if (std::exchange(ended, true)) return;
    const std::string signal = strsignal(number);
    if (!ready) _exit(multinode::exit_wrong);
    if (head) head->leave("the head was stopped (" + signal + ")");
    ready.load()->stop();
  });
  multinode::Endpoint endpoint;
  std::string key;
  if (options->head) {
    key = make_key();
    head.emplace(HeadOptions{options->host, options->port, key, folder.records(), say});
    const bool anywhere = options->host == "0.0.0.0" || options->host == "::";
    endpoint = {anywhere ? multinode::host_name() : options->host, head->port()};
    folder.write_key(key);
  } else {
    endpoint = multinode::parse_endpoint(options->address, "--address");
    key = folder.read_key();
  }
  Node node({endpoint, key, options->jobs, options->programs / "job_keeper", options->cpus, options->gpus,
             options->timeout, say});
  if (options->head) folder.write_address(endpoint);
  std::cout << what_next(*options, endpoint) << std::flush;
  ready = &node;
  int status = multinode::exit_right;
  try {
    log("left: " + node.run());
  } catch (const std::exception& e) {
    log(std::string("left: ") + e.what());
    status = multinode::exit_wrong;
  }
  waiter = {};
  return status;
}

}  // namespace cluster
