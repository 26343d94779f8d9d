// cluster: a head and nodes that run the processes of jobs: start, status, run, stop.
// Exit status: run has the job's; else 0 done, 1 failed, 2 bad command line or state folder.
#include "channel.hpp"
#include "head_node_keeper.hpp"
#include "lease.hpp"

#include <multinode/base/files.hpp>
#include <multinode/base/json.hpp>
#include <multinode/base/options.hpp>
#include <multinode/base/output.hpp>
#include <multinode/base/program_options.hpp>
#include <multinode/net/address.hpp>
#include <multinode/node/limits.hpp>
#include <multinode/process/child_process.hpp>
#include <multinode/store/rendezvous_file.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <thread>

namespace cluster {
namespace {

namespace fs = std::filesystem;
namespace po = boost::program_options;
using namespace std::chrono_literals;
using nlohmann::json;

// A command's options, and which cluster it is for: the file `head` in the state folder has the head's endpoint and the
// token, which its owner alone reads.
struct Options {
  explicit Options(const std::string& usage) : known(usage + "\nOptions") {
    const char* const home = std::getenv("HOME");
    add()("state", po::value(&state)->default_value(fs::path(home ? home : "") / ".multinode-cluster"),
          "folder in which 'cluster start --head' leaves the head's address and the token, in the file 'head'");
  }
  po::options_description_easy_init add() { return known.add_options(); }
  bool parse(int argc, const char* const* argv) const { return multinode::parse_command_line(argc, argv, known, true); }
  multinode::StorePlace head() const {
    if (!fs::exists(state + "/head"))
      throw multinode::UsageError("there is no " + state +
                                  "/head, which 'cluster start --head' writes; --state DIR names another folder");
    return multinode::read_place(state + "/head", "cluster", {});
  }
  multinode::TcpStore connect() const {
    const auto place = head();
    return {place, 5s, {.token = place.token}};
  }

  po::options_description known;
  std::string state;
};

// Returns when the head or the node has ended.
int start(int argc, const char* const* argv) {
  Options options("cluster start [OPTIONS]\nRuns a head, or a node, until it is stopped.");
  bool is_head = false;
  int port = 6379, cpus = multinode::usable_cpus();
  std::string host = "127.0.0.1";
  options.add()("head", po::bool_switch(&is_head),
                "start a head, and a node beside it; else a node that joins the head")(
      "host", po::value(&host)->default_value(host),
      "with --head: the name or address to listen on, by which others reach this host")(
      "port", po::value(&port)->default_value(port), "with --head; 0: any free one")(
      "num-cpus", po::value(&cpus)->default_value(cpus), "maximum number of job processes on this host");
  if (!options.parse(argc, argv)) return multinode::exit_right;
  multinode::require_range("--num-cpus", cpus, 0, 1 << 16);
  multinode::require_range("--port", port, 0, 65535);
  host = multinode::parse_host(host, "--host");
  const multinode::Signals signals{SIGTERM, SIGINT, SIGHUP};
  if (!is_head) return run_node(options.head(), cpus, signals), multinode::exit_right;

  multinode::make_folders(options.state);
  if (const auto why = multinode::why_not_own(options.state); !why.empty())
    throw multinode::UsageError("--state " + options.state + ": " + why);
  std::optional<multinode::ChildProcess> node;
  run_head({{host, static_cast<std::uint16_t>(port)}, multinode::random_token()}, signals, [&](const auto& place) {
    multinode::write_place(options.state + "/head", "cluster", place);
    log("the head listens on " + to_string(place) +
        (multinode::is_loopback(place.host) ? ", for this host only; --host names an address for others" : ""));
    node.emplace(multinode::ChildCommand{
        .arguments = {"cluster", "start", "--state", options.state, "--num-cpus", std::to_string(cpus)},
        .file = "/proc/self/exe",
        .own_group = true,
        .when_parent_dies = SIGKILL});
  });
  return multinode::exit_right;
}

int status(int argc, const char* const* argv) {
  int wanted = 0;
  Options options("cluster status [OPTIONS]\nPrints the nodes and the jobs of a cluster.");
  options.add()("wait-for-nodes", po::value(&wanted)->default_value(wanted),
                "wait until this many nodes have joined, for at most 60 s");
  if (!options.parse(argc, argv)) return multinode::exit_right;
  multinode::require_range("--wait-for-nodes", wanted, 0, 1 << 16);
  for (multinode::Deadline deadline(60s);; std::this_thread::sleep_for(50ms)) {
    try {
      const json status = multinode::from_msgpack(options.connect().get("status", 5s));
      if (const int count = status.at("nodes"); count < wanted)
        throw std::runtime_error(fmt::format("{} of {} nodes came within 60 s", count, wanted));
      std::cout << multinode::without_controls(status.at("text").get<std::string>()) << std::flush;
      return multinode::exit_right;
    } catch (const std::exception&) {  // also: no head yet
      if (wanted == 0 || deadline.passed()) throw;
    }
  }
}

int run(int argc, const char* const* argv) {
  const char *const *const end = argv + argc, *const *const dashes = std::find(argv, end, std::string_view("--"));
  int workers = 1, failures = 0;
  Options options(
      "cluster run [OPTIONS] -- PROGRAM ARGUMENTS\n"
      "Runs the program on the cluster, prints its output, and exits with its status. When this command ends, the "
      "processes end.");
  options.add()("num-workers", po::value(&workers)->default_value(workers), "number of processes; each takes one CPU")(
      "max-failures", po::value(&failures)->default_value(failures), "maximum number of restarts; -1: unlimited");
  if (!options.parse(static_cast<int>(dashes - argv), argv)) return multinode::exit_right;
  multinode::require_range("--num-workers", workers, 1, 1'000);
  multinode::require_range("--max-failures", failures, -1, 1'000'000);
  if (end - dashes < 2)
    throw multinode::UsageError(
        "put -- and the program behind the options: cluster run --num-workers 4 -- PROGRAM ARGUMENTS");
  std::vector<std::string> command(dashes + 1, end);
  const char* const path = std::getenv("PATH");
  command[0] = fs::absolute(multinode::find_program(command[0], path ? path : ""));  // the same on all nodes

  // The store of the job, in which its ranks meet and its keepers leave the output. The nodes reach this host by the
  // address by which it reaches the head; on one host that is loopback.
  multinode::TcpStore store = options.connect();
  multinode::StorePlace place{{multinode::address_towards(options.head())}, multinode::random_token()};
  const multinode::TcpStoreServer server(place.host, 0, {.token = place.token});
  place.port = server.port();
  multinode::TcpStore job_store(place, 5s, {.token = place.token});
  const std::string name = "job/" + std::to_string(store.add("job", 1));
  const json environment = {{"PWD", fs::current_path().string()}, {"CLUSTER_STORE", with_token(place)}};
  const json job = {
      {"command", command}, {"environment", environment}, {"workers", workers}, {"max_failures", failures}};
  Sender(store, name + "/from").send_with_will(multinode::to_msgpack(job));
  Receiver in(store, name + "/to");
  for (std::vector<Receiver> outputs;;) {
    const auto text = in.receive(turn);
    for (Receiver& output : outputs)  // what the processes have printed before the head says something about them
      for (; const auto lines = output.receive(); output.acknowledge()) std::cout << *lines << std::flush;
    const json message = text ? multinode::from_msgpack(*text) : json::object();
    if (message.contains("attempt")) {
      outputs.clear();
      for (int rank = 0; rank < workers; ++rank)
        outputs.emplace_back(job_store, fmt::format("output/{}/{}", message["attempt"].get<int>(), rank));
    }
    if (message.contains("say"))
      std::cout << multinode::one_line(message["say"].get<std::string>()) + "\n" << std::flush;
    if (!std::cout) return multinode::exit_right;  // main() says why
    if (message.contains("end")) return message["end"];
  }
}

int stop(int argc, const char* const* argv) {
  const Options options("cluster stop [OPTIONS]\nEnds the cluster and its jobs.");
  if (!options.parse(argc, argv)) return multinode::exit_right;
  multinode::TcpStore store = options.connect();
  store.set_for_readers("stop", "'cluster stop' was called", 1);
  try {
    store.get("never", 20s);
  } catch (const multinode::StoreLost&) {
    std::cout << "the cluster has ended\n";
    return multinode::exit_right;
  }
  return multinode::exit_wrong;
}

constexpr const char* usage =
    "usage: cluster start --head [--host ADDRESS] [--port 6379]   a head, and a node beside it, on this host\n"
    "       cluster start                                         a node that joins it\n"
    "       cluster status                                        nodes and jobs\n"
    "       cluster run [--num-workers N] -- PROGRAM ARGUMENTS    runs a program\n"
    "       cluster stop                                          ends the cluster\n"
    "start stays in the foreground: put & behind it, or use ssh, srun or systemd-run. Each has --help.\n";

int command(int argc, const char* const* argv) {
  for (const auto& [name, function] :
       {std::pair{"start", &start}, {"status", &status}, {"run", &run}, {"stop", &stop}, {"keep", &keep}})
    if (argc > 1 && argv[1] == std::string_view(name)) return function(argc - 1, argv + 1);
  if (!multinode::parse_command_line(argc, argv, po::options_description(usage), true)) return multinode::exit_right;
  throw multinode::UsageError("say start, status, run or stop; see --help");
}

}  // namespace
}  // namespace cluster

int main(int argc, char** argv) {
  try {
    return multinode::flush_output("cluster", cluster::command(argc, argv));
  } catch (const std::exception& e) {
    const bool lost = dynamic_cast<const multinode::StoreLost*>(&e);
    const bool late = dynamic_cast<const multinode::StoreTimeout*>(&e);
    const bool refused = dynamic_cast<const multinode::StoreRefused*>(&e);
    multinode::say("cluster", fmt::format("{}{}{}", lost ? "the head is gone: " : "", e.what(),
                                          refused ? "; the token is in the file 'head' of the head's state folder"
                                          : late  ? "; if the head is on another host, start it with --host ADDRESS"
                                                  : ""));
    if (const auto* const start_error = dynamic_cast<const multinode::StartError*>(&e)) return start_error->status;
    return dynamic_cast<const multinode::UsageError*>(&e) ? multinode::exit_usage : multinode::exit_wrong;
  }
}
