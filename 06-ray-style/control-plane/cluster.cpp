// cluster: a head and nodes that run the processes of jobs: start, status, submit, logs, stop.
// Exit status: submit and logs have the job's; else 0 done, 1 failed, 2 bad command line or state folder.
#include "control-plane/cluster.grpc.pb.h"
#include "head.hpp"
#include "log.hpp"
#include "node.hpp"
#include "state_folder.hpp"
#include "tls.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/files.hpp>
#include <multinode/base/options.hpp>
#include <multinode/base/program_options.hpp>
#include <multinode/base/signals.hpp>
#include <multinode/net/address.hpp>
#include <multinode/net/socket.hpp>
#include <multinode/world/report.hpp>

#include <grpc/support/log.h>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <thread>

namespace {

using namespace cluster;
namespace fs = std::filesystem;
namespace po = boost::program_options;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr int interrupted = 130;
constexpr std::chrono::milliseconds to_answer = 10s;  // for the head to answer

// The head, as a command line names it.
class Client {
 public:
  po::options_description description() {
    po::options_description known("Which cluster");
    known.add_options()("address", po::value(&address_),
                        "HOST:PORT of the head; default: what 'cluster start --head' wrote into the state folder")(
        "state", po::value(&state_)->default_value(StateFolder::default_path()),
        "folder with the cluster's key and address");
    return known;
  }

  // Throws UsageError, or std::runtime_error if no head answers or the head refuses.
  template <class Request, class Answer>
  Answer call(grpc::Status (Cluster::Stub::*function)(grpc::ClientContext*, const Request&, Answer*),
              const Request& request, std::chrono::milliseconds timeout = to_answer) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    Answer answer;
    check((stub().*function)(&context, request, &answer));
    return answer;
  }

  // Prints the job's record until its end, and returns its status.
  int follow(std::int64_t job) {
    grpc::ClientContext context;
    JobNumber number;
    number.set_job(job);
    const auto stream = stub().Follow(&context, number);
    Record record;
    while (stream->Read(&record)) {
      if (!(std::cout << record.text() << std::flush)) throw std::runtime_error("standard output cannot be written");
      if (record.ended()) return record.status();
    }
    const grpc::Status status = stream->Finish();
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE || status.ok())
      throw std::runtime_error(name_ + " is gone");
    check(status);
    return multinode::exit_wrong;  // not reached
  }

 private:
  Cluster::Stub& stub() {
    if (stub_) return *stub_;
    const StateFolder folder(state_);
    const multinode::Endpoint head =
        address_.empty() ? folder.read_address() : multinode::parse_endpoint(address_, "--address");
    name_ = "the head at " + to_string(head);
    stub_ = Cluster::NewStub(make_channel(head, folder.read_key()));
    return *stub_;
  }

  void check(const grpc::Status& status) {
    switch (status.error_code()) {
      case grpc::StatusCode::OK:
        return;
      case grpc::StatusCode::INVALID_ARGUMENT:
      case grpc::StatusCode::NOT_FOUND:
        throw multinode::UsageError(status.error_message());
      case grpc::StatusCode::UNAVAILABLE:
      case grpc::StatusCode::DEADLINE_EXCEEDED:
        stub_.reset();  // the next call reads address and key again
        throw std::runtime_error(name_ + " does not answer, or has another key; 'cluster start --head' starts one (" +
                                 status.error_message() + ")");
      default:
        throw std::runtime_error(name_ + " refuses: " + status.error_message());
    }
  }

  std::string address_, state_, name_;
  std::unique_ptr<Cluster::Stub> stub_;
};

void print(const Status& status) {
  const auto of = [](int used, int all) { return std::to_string(used) + "/" + std::to_string(all); };
  multinode::Table nodes({"node", "host", "pid", "CPUs used", "GPUs used"});
  for (const NodeStatus& node : status.nodes())
    nodes.add({std::to_string(node.node()), node.host(), std::to_string(node.pid()), of(node.cpus_used(), node.cpus()),
               of(node.gpus_used(), node.gpus())});
  nodes.print(std::cout);
  if (status.jobs().empty()) {
    std::cout << "no jobs\n";
    return;
  }
  multinode::Table jobs({"job", "program", "workers", "failures", "state"});
  for (const JobStatus& job : status.jobs())
    jobs.add({std::to_string(job.job()), job.program(), std::to_string(job.num_workers()),
              std::to_string(job.failures()), job.waiting().empty() ? "running" : "waits: " + job.waiting()});
  std::cout << "\n";
  jobs.print(std::cout);
}

std::chrono::milliseconds timeout_of(double seconds) {
  multinode::require_range("--timeout", seconds, 0.001, 31'536'000.0);
  return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
}

// Parses `cluster logs JOB [OPTIONS]` and `cluster stop [JOB] [OPTIONS]`. Returns the job's number; 0: none is given;
// nullopt: --help was given.
std::optional<std::int64_t> parse_job(int argc, const char* const* argv, const std::string& title, Client& client) {
  po::options_description known(title + "\nOptions");
  known.add(client.description());
  std::int64_t job = 0;
  if (argc > 1 && argv[1][0] != '-') {
    const std::string text = *++argv;
    --argc;
    job = multinode::parse_decimal<std::int64_t>(text).value_or(0);
    if (job == 0) throw multinode::UsageError("'" + text + "' is not the number of a job; 'cluster status' shows them");
  }
  if (!multinode::parse_command_line(argc, argv, known, true)) return std::nullopt;
  return job;
}

// The number of GPUs in CUDA_VISIBLE_DEVICES. As in CUDA, the list ends at the first entry that is not a device.
// Without the variable: the number of files /dev/nvidia0, /dev/nvidia1 ...
int count_gpus() {
  int count = 0;
  if (const char* const given = std::getenv("CUDA_VISIBLE_DEVICES")) {
    std::istringstream entries(given);
    for (std::string entry;
         std::getline(entries, entry, ',') && !entry.empty() && entry[0] != '-' && entry != "NoDevFiles";)
      ++count;
    return count;
  }
  for (const std::string& name : multinode::names_in("/dev"))
    if (name.starts_with("nvidia") && multinode::parse_decimal<int>(name.substr(6))) ++count;
  return count;
}

// Returns when the head or the node has ended.
int start(int argc, const char* const* argv) {
  const fs::path programs = fs::read_symlink("/proc/self/exe").parent_path();
  HeadOptions with_head;
  NodeOptions node;
  bool is_head = false;
  double timeout = 0;
  std::string address, jobs = programs / "jobs", state;
  po::options_description known("Options of cluster start");
  auto add = known.add_options();
  add("head", po::bool_switch(&is_head), "start a head, and a node beside it");
  add("address", po::value(&address)->value_name("HOST:PORT"), "start a node that joins this head");
  add("host", po::value(&with_head.host)->default_value(with_head.host),
      "with --head: the name or address to listen on, by which others reach this host");
  add("port", po::value(&with_head.port)->default_value(with_head.port), "with --head; 0: any free one");
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  add("num-cpus", po::value(&node.cpus)->default_value(cores), "maximum number of job processes on this host");
  add("num-gpus", po::value(&node.gpus)->default_value(count_gpus()), "GPUs for them");
  add("jobs", po::value(&jobs)->default_value(jobs)->value_name("DIR"),
      "the job folder: only its programs can run here");
  add("state", po::value(&state)->value_name("DIR"),
      "folder for the key, the address and what jobs write (default: ~/.multinode-cluster)");
  add("timeout", po::value(&timeout)->default_value(60, "60"), "seconds that the head may take to answer");
  if (!multinode::parse_command_line(argc, argv, known, true)) return multinode::exit_right;
  if (is_head == !address.empty())
    throw multinode::UsageError("say either --head or --address HOST:PORT; see cluster start --help");
  multinode::require_range("--num-cpus", node.cpus, 0, Scheduler::most_cpus);
  multinode::require_range("--num-gpus", node.gpus, 0, Scheduler::most_gpus);
  node.timeout = timeout_of(timeout);
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

int status(int argc, const char* const* argv) {
  int wanted = 0;
  double timeout = 60;
  Client client;
  po::options_description known("cluster status [OPTIONS]\nPrints the nodes and the jobs of a cluster.\nOptions");
  auto add = known.add_options();
  add("wait-for-nodes", po::value(&wanted)->default_value(wanted),
      "wait until there is a head, and this many nodes have joined");
  add("timeout", po::value(&timeout)->default_value(timeout, "60"), "seconds to wait for them");
  known.add(client.description());
  if (!multinode::parse_command_line(argc, argv, known, true)) return multinode::exit_right;
  multinode::require_range("--wait-for-nodes", wanted, 0, 1000);
  const std::chrono::milliseconds limit = timeout_of(timeout);
  for (const auto end = Clock::now() + limit;; std::this_thread::sleep_for(50ms)) {
    const bool late = Clock::now() >= end;
    try {
      const Status status = client.call(&Cluster::Stub::GetStatus, Nothing());
      if (status.nodes_size() >= wanted) {
        print(status);
        return multinode::exit_right;
      }
      if (!late) continue;
      std::cerr << "cluster: " << status.nodes_size() << " of " << counted(wanted, "node") << " came within "
                << multinode::to_text(limit) << "\n";
      return multinode::exit_wrong;
    } catch (const std::exception&) {  // no head, or no address or key yet
      if (wanted == 0 || late) throw;
    }
  }
}

int submit(int argc, const char* const* argv) {
  const std::span<const char* const> words(argv, static_cast<std::size_t>(argc));
  const auto dashes = std::find(words.begin(), words.end(), std::string_view("--"));
  int workers = 0, gpus = 0, failures = 0;
  std::string placement;
  bool no_wait = false;
  Client client;
  po::options_description known(
      "cluster submit [OPTIONS] -- JOB ARGUMENTS\n"
      "Runs JOB, a program in the nodes' job folder, prints its output, and exits with its status. Ctrl-C stops the "
      "job.\n"
      "If this command ends in another way, the job continues: 'cluster logs' shows its output.\nOptions");
  auto add = known.add_options();
  add("num-workers", po::value(&workers)->default_value(1), "number of processes; each takes one CPU");
  add("gpus-per-worker", po::value(&gpus)->default_value(0), "GPUs for each of them");
  add("placement", po::value(&placement)->default_value("pack"), "pack: on few nodes; spread: evenly over all");
  add("max-failures", po::value(&failures)->default_value(0), "maximum number of restarts; -1: unlimited");
  add("no-wait", po::bool_switch(&no_wait), "print the job's number, and return at once");
  known.add(client.description());
  const auto asks = [&](std::string_view word) { return std::find(words.begin(), dashes, word) != dashes; };
  if (words.end() - dashes < 2 && !asks("--help") && !asks("-h"))
    throw multinode::UsageError(
        "put -- and the job behind the options: cluster submit --num-workers 4 -- JOB ARGUMENTS");
  if (!multinode::parse_command_line(static_cast<int>(dashes - words.begin()), argv, known, true)) return 0;
  if (placement != "pack" && placement != "spread")
    throw multinode::UsageError("--placement must be pack or spread, not '" + placement + "'");
  Job job;
  job.set_num_workers(workers);
  job.set_gpus_per_worker(gpus);
  job.set_max_failures(failures);
  job.set_placement(placement == "pack" ? PACK : SPREAD);
  job.set_program(dashes[1]);
  std::for_each(dashes + 2, words.end(), [&](const char* argument) { job.add_arguments(argument); });
  check_job(job);

  const multinode::Signals signals{SIGINT, SIGTERM};  // first: threads have the mask of those that start them
  const JobNumber accepted = client.call(&Cluster::Stub::Submit, job);
  if (no_wait) {
    std::cout << accepted.job() << std::endl;
    return multinode::exit_right;
  }
  const std::jthread waiter = signals.call([&, count = 0](int) mutable {
    if (++count > 1) _exit(interrupted);
    std::cerr << "cluster: stopping the job; Ctrl-C again leaves at once\n" << std::flush;
    try {
      client.call(&Cluster::Stub::StopJob, accepted);
    } catch (const std::exception& e) {
      std::cerr << std::string("cluster: ") + e.what() + "\n";
      _exit(interrupted);
    }
  });
  return client.follow(accepted.job());
}

int logs(int argc, const char* const* argv) {
  Client client;
  const auto job =
      parse_job(argc, argv, "cluster logs JOB [OPTIONS]\nPrints what a job has written, until it ends.", client);
  if (!job) return multinode::exit_right;
  if (*job == 0) throw multinode::UsageError("say which job: cluster logs JOB; 'cluster status' shows their numbers");
  return client.follow(*job);
}

int stop(int argc, const char* const* argv) {
  Client client;
  const auto job =
      parse_job(argc, argv, "cluster stop [JOB] [OPTIONS]\nEnds a job; without a number, the whole cluster.", client);
  if (!job) return multinode::exit_right;
  JobNumber number;
  number.set_job(*job);
  if (*job != 0) {
    client.call(&Cluster::Stub::StopJob, number);
    std::cout << "job " << *job << " is being stopped\n";
  } else {
    client.call(&Cluster::Stub::StopCluster, Nothing(), 2 * Scheduler::to_stop);
    std::cout << "the cluster has ended\n";
  }
  return multinode::exit_right;
}

constexpr std::string_view usage =
    "usage: cluster start --head [--host ADDRESS] [--port 6379]   a head, and a node beside it, on this host\n"
    "       cluster start --address HOST:PORT                     a node that joins it\n"
    "       cluster status                                        nodes and jobs\n"
    "       cluster submit [--num-workers N] -- JOB ARGUMENTS     runs a program of the job folder\n"
    "       cluster logs JOB                                      what a job has written, until its end\n"
    "       cluster stop [JOB]                                    ends a job, or the cluster\n"
    "start stays in the foreground: put & behind it, or use ssh, srun or systemd-run. Each has --help.\n";

int run(int argc, const char* const* argv) {
  const std::string_view command = argc > 1 ? argv[1] : "";
  for (const auto& [name, function] :
       {std::pair{"start", &start}, {"status", &status}, {"submit", &submit}, {"logs", &logs}, {"stop", &stop}})
    if (command == name) return function(argc - 1, argv + 1);
  if (command != "--help" && command != "-h")
    throw multinode::UsageError((argc > 1 ? "no command '" + std::string(command) + "'" : "no command") +
                                ": say start, status, submit, logs or stop; see --help");
  std::cout << usage << std::flush;
  return multinode::exit_right;
}

}  // namespace

int main(int argc, char** argv) {
  gpr_set_log_verbosity(static_cast<gpr_log_severity>(GPR_LOG_SEVERITY_ERROR + 1));  // exceptions say what matters
  setenv("GRPC_DNS_RESOLVER", "native", 0);  // /etc/hosts too, where gRPC's own resolver first waits for a name server
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    std::cerr << std::string("cluster: ") + e.what() + "\n";
    return dynamic_cast<const multinode::UsageError*>(&e) ? multinode::exit_usage : multinode::exit_wrong;
  }
}
