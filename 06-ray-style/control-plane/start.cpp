#include "start.hpp"

#include "head.hpp"
#include "log.hpp"
#include "node.hpp"
#include "state_folder.hpp"
#include "tls.hpp"

#include <multinode/address.hpp>
#include <multinode/options.hpp>
#include <multinode/program_options.hpp>
#include <multinode/signals.hpp>

#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <sstream>
#include <thread>

namespace cluster {

namespace {

namespace fs = std::filesystem;
namespace po = boost::program_options;

constexpr int most_slots = 100'000;

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

}  // namespace

int start(int argc, const char* const* argv) {
  const fs::path programs = fs::read_symlink("/proc/self/exe").parent_path();
  HeadOptions with_head;
  NodeOptions node;
  bool is_head = false;
  double timeout = 0;
  std::string address, jobs = programs / "jobs", state;
  po::options_description known("Options of cluster start");
  known.add_options()                                                                                 //
      ("head", po::bool_switch(&is_head), "start a head, and a node beside it")                       //
      ("address", po::value(&address)->value_name("HOST:PORT"), "start a node that joins this head")  //
      ("host", po::value(&with_head.host)->default_value(with_head.host),
       "with --head: the name or address to listen on, by which others reach this host")                   //
      ("port", po::value(&with_head.port)->default_value(with_head.port), "with --head; 0: any free one")  //
      ("num-cpus",
       po::value(&node.cpus)->default_value(static_cast<int>(std::max(1u, std::thread::hardware_concurrency()))),
       "maximum number of job processes on this host")                                   //
      ("num-gpus", po::value(&node.gpus)->default_value(count_gpus()), "GPUs for them")  //
      ("jobs", po::value(&jobs)->default_value(jobs)->value_name("DIR"),
       "the job folder: only its programs can run here")  //
      ("state", po::value(&state)->value_name("DIR"),
       "folder for the key, the address and what jobs write (default: ~/.multinode-cluster)")  //
      ("timeout", po::value(&timeout)->default_value(60, "60"), "seconds that the head may take to answer");
  if (!multinode::parse_command_line(argc, argv, known, true)) return multinode::exit_right;
  if (is_head == !address.empty())
    throw multinode::UsageError("say either --head or --address HOST:PORT; see cluster start --help");
  multinode::require_range("--num-cpus", node.cpus, 0, most_slots);
  multinode::require_range("--num-gpus", node.gpus, 0, most_slots);
  multinode::require_range("--timeout", timeout, 0.001, 31'536'000.0);
  node.timeout = std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(timeout));
  node.jobs = fs::absolute(jobs);
  if (!fs::is_directory(node.jobs)) throw multinode::UsageError("--jobs: " + node.jobs.string() + " is not a folder");
  node.keeper = programs / "job_keeper";

  const StateFolder folder(state.empty() ? StateFolder::default_path() : fs::path(state));
  const multinode::Descriptor lock = is_head ? folder.lock() : multinode::Descriptor();
  std::signal(SIGPIPE, SIG_IGN);
  const multinode::Signals signals{SIGTERM, SIGINT, SIGHUP};  // before there are threads: they block them too
  Log log(STDERR_FILENO);
  node.log = [&](const std::string& line) { log(line); };
  std::optional<Head> head;
  if (is_head) {
    with_head.key = node.key = make_key();
    with_head.records = folder.records();
    with_head.log = node.log;
    head.emplace(with_head);
    node.on_signal = [&](const std::string& signal) { head->leave("the head was stopped (" + signal + ")"); };
    const bool anywhere = with_head.host == "0.0.0.0" || with_head.host == "::";
    node.head = {anywhere ? multinode::host_name() : with_head.host, head->port()};
    folder.write_key(node.key);
    folder.write_address(node.head);
    log("the head listens on " + to_string(node.head) + "; nodes join with 'cluster start --address " +
        to_string(node.head) + "' and the key in " + folder.path().string());
  } else {
    node.head = multinode::parse_endpoint(address, "--address");
    node.key = folder.read_key();
  }
  log("left: " + run_node(node, signals));
  return multinode::exit_right;
}

}  // namespace cluster
