#include "daemon.hpp"

#include "head.hpp"
#include "node.hpp"
#include "process.hpp"
#include "state_folder.hpp"
#include "token.hpp"

#include <multinode/address.hpp>
#include <multinode/options.hpp>
#include <multinode/program_options.hpp>
#include <multinode/signals.hpp>

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <mutex>
#include <optional>
#include <sstream>
#include <thread>

namespace cluster {

namespace {

namespace fs = std::filesystem;
namespace po = boost::program_options;
using multinode::Descriptor;
using multinode::UsageError;

constexpr std::uint16_t default_port = 6379;
constexpr int most_slots = 100'000;

struct Options {
  bool head = false;
  std::string address;
  std::string host = "127.0.0.1";
  std::uint16_t port = default_port;
  int cpus = 0;
  int gpus = 0;
  fs::path jobs;
  fs::path state;
  std::chrono::milliseconds timeout{60'000};
  bool block = false;
};

// Files /dev/nvidia0, /dev/nvidia1 ..., or those of them that this process was given.
int count_gpus() {
  if (const char* const given = std::getenv("CUDA_VISIBLE_DEVICES"); given && *given)
    return 1 + static_cast<int>(std::count(given, given + std::char_traits<char>::length(given), ','));
  int count = 0;
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
  options.cpus = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  options.gpus = count_gpus();
  std::string jobs = (fs::read_symlink("/proc/self/exe").parent_path() / "jobs").string(), state;
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
       "folder for token, address and logs (default: ~/.multinode-cluster)")                                  //
      ("timeout", po::value(&timeout)->default_value(timeout), "seconds that the head may take to be there")  //
      ("block", po::bool_switch(&options.block), "stay in the foreground");
  if (!multinode::parse_command_line(argc, argv, known, true)) return std::nullopt;
  if (options.head == !options.address.empty())
    throw UsageError("say either --head or --address HOST:PORT; see cluster start --help");
  multinode::require_range("--num-cpus", options.cpus, 0, most_slots);
  multinode::require_range("--num-gpus", options.gpus, 0, most_slots);
  multinode::require_range("--timeout", timeout, 0.001, 31'536'000.0);
  options.timeout = std::chrono::milliseconds(std::llround(std::ceil(timeout * 1000)));
  options.jobs = fs::absolute(jobs);
  if (!fs::is_directory(options.jobs)) throw UsageError("--jobs: " + options.jobs.string() + " is no folder");
  options.state = state.empty() ? StateFolder::default_path() : fs::path(state);
  return options;
}

class Log {
 public:
  explicit Log(fs::path path) : path_(std::move(path)), file_(path_, std::ios::app) {
    if (!file_) throw UsageError("cannot write " + path_.string());
  }
  ~Log() {
    std::error_code ignored;
    if (fs::file_size(path_, ignored) == 0) fs::remove(path_, ignored);
  }
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  void operator()(const std::string& line) {
    std::array<char, 32> time{};
    const std::time_t now = std::time(nullptr);
    std::tm utc{};
    std::strftime(time.data(), time.size(), "%FT%TZ ", gmtime_r(&now, &utc));
    const std::lock_guard lock(mutex_);
    file_ << time.data() << line << std::endl;
  }

 private:
  fs::path path_;
  std::mutex mutex_;
  std::ofstream file_;
};

// Tells whoever waits for the daemon to be there: the exit status, a byte, and what to print.
class WaitingCommand {
 public:
  WaitingCommand() = default;  // nobody does: the text goes to this process's own stdout
  explicit WaitingCommand(Descriptor pipe) : pipe_(std::move(pipe)) {}

  void ready(const std::string& text) {
    if (!pipe_)
      std::cout << text << std::flush;
    else if (!tell(multinode::exit_right, text))  // what nobody knows of is not to stay
      throw std::runtime_error("'cluster start' was ended before this was ready");
  }
  int failed(const std::exception& e) {
    const int status = dynamic_cast<const UsageError*>(&e) ? multinode::exit_usage : multinode::exit_wrong;
    tell(status, std::string("cluster: ") + e.what() + "\n");
    return status;
  }

 private:
  bool tell(int status, const std::string& text) {
    const std::string message = static_cast<char>(status) + text;
    const Descriptor pipe = std::move(pipe_);
    return write(pipe.get(), message.data(), message.size()) > 0;
  }

  Descriptor pipe_;
};

std::string what_next(const Options& options, const StateFolder& folder, const multinode::Endpoint& head) {
  std::ostringstream text;
  const std::string state = options.state == StateFolder::default_path() ? "" : " --state " + options.state.string();
  const std::string slots = std::to_string(options.cpus) + " CPUs and " + std::to_string(options.gpus) + " GPUs";
  if (!options.head) {
    text << "This node has joined the cluster of " << to_string(head) << " with " << slots << ".\n";
    return text.str();
  }
  text << "The head listens on " << to_string(head) << "; its node has " << slots << ".\n\n";
  if (options.host == "127.0.0.1" || options.host == "localhost")
    text << "  from this host alone: 'cluster start --head --host ADDRESS' lets others join\n";
  else
    text << "  to add a host:    cluster start" << state << " --address " << to_string(head) << "\n"
         << "                    (the same " << folder.token().string() << " has to be there)\n";
  text << "  to run a job:     cluster submit" << state << " --num-workers 2 -- JOB ARGUMENTS\n"
       << "  to look at it:    cluster status" << state << "\n"
       << "  to end all:       cluster stop" << state << "\n";
  return text.str();
}

// The daemon; returns its exit status when it is over. Throws what keeps it from starting, or ended it.
int serve(const Options& options, WaitingCommand& waiting) {
  const StateFolder folder(options.state);
  PidFile pid_file(folder, options.head ? Role::head : Role::node);
  Log log(pid_file.log());
  if (!options.block) {
    const Descriptor nothing(open("/dev/null", O_RDWR | O_CLOEXEC));
    const Descriptor to_log(open(pid_file.log().c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
    dup2(nothing.get(), 0);
    for (const int fd : {1, 2}) dup2(to_log.get(), fd);
  }
  ::signal(SIGPIPE, SIG_IGN);
  Guard guard(pid_file.descriptor());
  const auto say = [&](const std::string& line) { log(line); };
  std::optional<Head> head;
  std::atomic<Node*> ready = nullptr;
  const multinode::Signals signals{SIGTERM, SIGINT, SIGHUP};  // before there are threads: they block them too
  std::jthread waiter = signals.call([&, ended = false](int number) mutable {
    if (std::exchange(ended, true)) return;
    const std::string signal = strsignal(number);
    if (!ready) {
      log("ended before it was ready: " + signal);
      pid_file.remove();
      _exit(multinode::exit_wrong);
    }
    if (head) head->leave("the head was stopped (" + signal + ")");
    ready.load()->stop();
  });
  multinode::Endpoint endpoint;
  std::string token;
  if (options.head) {
    token = make_token();
    head.emplace(HeadOptions{options.host, options.port, token, say});
    const bool anywhere = options.host == "0.0.0.0" || options.host == "::";
    endpoint = {anywhere ? multinode::host_name() : options.host, head->port()};
    write_token(folder.token(), token);
  } else {
    endpoint = multinode::parse_endpoint(options.address, "--address");
    token = read_token(folder.token());
  }
  Node node({endpoint, token, options.jobs, options.cpus, options.gpus, options.timeout, say, &guard});
  if (options.head) folder.write_address(endpoint);
  waiting.ready(what_next(options, folder, endpoint));
  ready = &node;
  int status = multinode::exit_right;
  try {
    log("left: " + node.run());
  } catch (const std::exception& e) {
    log(std::string("left: ") + e.what());
    if (options.block) std::cerr << std::string("cluster: ") + e.what() + "\n" << std::flush;
    status = multinode::exit_wrong;
  }
  waiter = {};
  return status;
}

}  // namespace

int start(int argc, const char* const* argv) {
  const std::optional<Options> options = parse(argc, argv);
  if (!options) return multinode::exit_right;
  WaitingCommand nobody;
  if (options->block) return serve(*options, nobody);

  auto [from, to] = multinode::make_pipe();
  if (multinode::check_errno(fork(), "fork") == 0) {
    from.reset();
    setsid();
    WaitingCommand waiting(std::move(to));
    try {
      return serve(*options, waiting);
    } catch (const std::exception& e) {
      return waiting.failed(e);
    }
  }
  to.reset();
  std::string said;
  std::array<char, 4096> bytes;
  for (ssize_t count; (count = read(from.get(), bytes.data(), bytes.size())) > 0;)
    said.append(bytes.data(), static_cast<std::size_t>(count));
  if (said.empty()) throw std::runtime_error("the daemon was killed before it was ready");
  (said[0] == multinode::exit_right ? std::cout : std::cerr) << said.substr(1) << std::flush;
  return said[0];
}

int stop(int argc, const char* const* argv) {
  std::string state;
  bool force = false;
  po::options_description known("Options of cluster stop");
  known.add_options()                                                                        //
      ("force,f", po::bool_switch(&force), "kill immediately; do not wait for jobs to end")  //
      ("state", po::value(&state)->value_name("DIR"), "as with cluster start (default: ~/.multinode-cluster)");
  if (!multinode::parse_command_line(argc, argv, known, true)) return multinode::exit_right;
  const StateFolder folder(state.empty() ? StateFolder::default_path() : fs::path(state));
  const std::vector<std::string> said = stop_daemons(folder, force);
  for (const std::string& line : said) std::cout << line << '\n';
  if (said.empty()) std::cout << "nothing of the cluster in " << folder.path().string() << " runs on this host\n";
  return multinode::exit_right;
}

}  // namespace cluster
