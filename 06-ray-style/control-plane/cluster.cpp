// cluster: a head and nodes that run the processes of jobs: start, status, run, stop.
// Exit status: run has the job's; else 0 done, 1 failed, 2 bad command line or state folder.
#include "channel.hpp"
#include "engine.hpp"
#include "keeper.hpp"
#include "placement.hpp"

#include <multinode/base/options.hpp>
#include <multinode/base/program_options.hpp>
#include <multinode/net/address.hpp>
#include <multinode/store/rendezvous_file.hpp>
#include <multinode/world/report.hpp>

#include <sys/file.h>
#include <sys/stat.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <list>
#include <mutex>
#include <span>
#include <thread>

namespace {

using namespace cluster;
namespace fs = std::filesystem;
namespace po = boost::program_options;
using namespace std::chrono_literals;
using nlohmann::json;

constexpr int interrupted = 130;
constexpr auto connection = 5s;  // for the store to answer

std::chrono::milliseconds timeout_of(double seconds) {
  multinode::require_range("--timeout", seconds, 0.001, 2'000'000.0);
  return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
}

// Which cluster: the state folder has the head's endpoint and the token in the file `head`, which its owner alone
// reads.
class Which {
 public:
  po::options_description description() {
    po::options_description known("Which cluster");
    const char* const home = std::getenv("HOME");
    auto add = known.add_options();
    add("state", po::value(&state_)->default_value(fs::path(home ? home : "") / ".multinode-cluster"),
        "folder in which 'cluster start --head' leaves the head's address and the token, in the file 'head'");
    add("address", po::value(&address_)->value_name("HOST:PORT"), "the head, if it is not at that address");
    return known;
  }
  bool has_address() const { return !address_.empty(); }
  // Makes the folder. Fails while another head uses it.
  multinode::Descriptor lock() const {
    if (mkdir(state_.c_str(), 0700) != 0 && errno != EEXIST)
      throw multinode::UsageError("--state: cannot make " + state_ + ": " + std::strerror(errno));
    multinode::Descriptor fd(open((state_ + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd) throw multinode::UsageError("--state: cannot write " + state_ + "/lock: " + std::strerror(errno));
    if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0)
      throw multinode::UsageError("a head that uses " + state_ +
                                  " is running: 'cluster stop' ends it; --state DIR keeps a second cluster apart");
    return fd;
  }
  void write(const multinode::StorePlace& place) const { multinode::write_place(state_ + "/head", "cluster", place); }
  multinode::StorePlace place() const {
    if (!fs::exists(state_ + "/head"))
      throw multinode::UsageError("there is no " + state_ +
                                  "/head, which 'cluster start --head' writes; --state DIR names another folder");
    multinode::StorePlace place = multinode::read_place(state_ + "/head", "cluster", {});
    if (has_address()) static_cast<multinode::Endpoint&>(place) = multinode::parse_endpoint(address_, "--address");
    return place;
  }
  std::unique_ptr<multinode::TcpStore> connect() const try {
    const multinode::StorePlace at = place();
    return std::make_unique<multinode::TcpStore>(at, connection, multinode::protocol::Hello{.token = at.token});
  } catch (const multinode::StoreTimeout& e) {
    throw std::runtime_error(std::string(e.what()) + "; 'cluster start --head' starts a head");
  }

 private:
  std::string address_, state_;
};

void log(const std::string& line) {
  std::array<char, 32> time{};
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  std::strftime(time.data(), time.size(), "%FT%TZ ", gmtime_r(&now, &utc));
  std::cerr << time.data() + line + "\n" << std::flush;
}

// Returns when the head or the node has ended.
int start(int argc, const char* const* argv) {
  Which which;
  NodeOptions node;
  node.log = log;
  bool is_head = false;
  int port = 6379;
  double timeout = 60;
  std::string host = "127.0.0.1";
  po::options_description known("Options of cluster start");
  auto add = known.add_options();
  add("head", po::bool_switch(&is_head), "start a head, and a node beside it; else a node that joins the head");
  add("host", po::value(&host)->default_value(host),
      "with --head: the name or address to listen on, by which others reach this host");
  add("port", po::value(&port)->default_value(port), "with --head; 0: any free one");
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  add("num-cpus", po::value(&node.cpus)->default_value(cores), "maximum number of job processes on this host");
  add("timeout", po::value(&timeout)->default_value(60, "60"), "seconds that the head may take to answer");
  known.add(which.description());
  if (!multinode::parse_command_line(argc, argv, known, true)) return multinode::exit_right;
  if (is_head && which.has_address())
    throw multinode::UsageError("--head starts a head, --address joins one: say one of them");
  multinode::require_range("--num-cpus", node.cpus, 0, 1 << 16);
  multinode::require_range("--port", port, 0, 65535);
  node.timeout = timeout_of(timeout);

  const multinode::Descriptor lock = is_head ? which.lock() : multinode::Descriptor();
  const multinode::Signals signals{SIGTERM, SIGINT, SIGHUP};  // before there are threads: they block them too
  std::optional<Head> head;
  if (is_head) {
    head.emplace(host, port, log);
    node.head = head->place();
    if (host == "0.0.0.0" || host == "::") node.head.host = multinode::host_name();
    which.write(node.head);
    log("the head listens on " + to_string(node.head));
  } else {
    node.head = which.place();
  }
  const std::string reason = run_node(node, signals);
  if (head) head->leave(reason);
  log("left: " + reason);
  return multinode::exit_right;
}

int status(int argc, const char* const* argv) {
  std::size_t wanted = 0;
  double timeout = 60;
  Which which;
  po::options_description known("cluster status [OPTIONS]\nPrints the nodes and the jobs of a cluster.\nOptions");
  auto add = known.add_options();
  add("wait-for-nodes", po::value(&wanted)->default_value(wanted),
      "wait until there is a head, and this many nodes have joined");
  add("timeout", po::value(&timeout)->default_value(timeout, "60"), "seconds to wait for them");
  known.add(which.description());
  if (!multinode::parse_command_line(argc, argv, known, true)) return multinode::exit_right;
  for (multinode::Deadline deadline(timeout_of(timeout));; std::this_thread::sleep_for(50ms)) {
    try {
      const json status = json::parse(which.connect()->get("status", connection));
      if (const std::size_t count = status.at("nodes").size(); count < wanted) {
        if (deadline.passed())
          throw std::runtime_error(counted(static_cast<std::int64_t>(count), "node") + " of " + std::to_string(wanted) +
                                   " came within " + multinode::to_text(timeout_of(timeout)));
        continue;
      }
      const auto print = [](std::vector<std::string> head, const json& rows) {
        multinode::Table table(std::move(head));
        for (const json& row : rows) table.add(row.get<std::vector<std::string>>());
        table.print(std::cout);
      };
      print({"node", "host", "pid", "CPUs used"}, status.at("nodes"));
      if (status.at("jobs").empty())
        std::cout << "no jobs\n";
      else
        print({"job", "program", "workers", "failures", "state"}, status.at("jobs"));
      return multinode::exit_right;
    } catch (const std::exception&) {  // no head yet
      if (wanted == 0 || deadline.passed()) throw;
    }
  }
}

int run(int argc, const char* const* argv) {
  const std::span<const char* const> words(argv, static_cast<std::size_t>(argc));
  const auto dashes = std::find(words.begin(), words.end(), std::string_view("--"));
  int workers = 0, failures = 0;
  double timeout = 60;
  std::string placement;
  Which which;
  po::options_description known(
      "cluster run [OPTIONS] -- PROGRAM ARGUMENTS\n"
      "Runs the program on the cluster, prints its output, and exits with its status. When this command ends, the "
      "processes end.\nOptions");
  auto add = known.add_options();
  add("num-workers", po::value(&workers)->default_value(1), "number of processes; each takes one CPU");
  add("placement", po::value(&placement)->default_value("pack"), "pack: on few nodes; spread: evenly over all");
  add("max-failures", po::value(&failures)->default_value(0), "maximum number of restarts; -1: unlimited");
  add("timeout", po::value(&timeout)->default_value(timeout, "60"), "seconds to wait until all fit, at each start");
  known.add(which.description());
  const auto asks = [&](std::string_view word) { return std::find(words.begin(), dashes, word) != dashes; };
  if (words.end() - dashes < 2 && !asks("--help") && !asks("-h"))
    throw multinode::UsageError(
        "put -- and the program behind the options: cluster run --num-workers 4 -- PROGRAM ARGUMENTS");
  if (!multinode::parse_command_line(static_cast<int>(dashes - words.begin()), argv, known, true)) return 0;
  if (placement != "pack" && placement != "spread")
    throw multinode::UsageError("--placement must be pack or spread, not '" + placement + "'");
  std::vector<std::string> command(dashes + 1, words.end());
  const char* const path = std::getenv("PATH");
  command[0] = fs::absolute(multinode::find_program(command[0], path ? path : ""));  // the same on all nodes

  const multinode::Signals signals{SIGINT, SIGTERM};  // first: threads have the mask of those that start them
  const auto sending = which.connect(), receiving = which.connect();
  const std::string name = "job/" + std::to_string(take_number(*sending, "job", connection));
  Sender out(*sending, name + "/from");
  out.send_with_will(json{{"command", command},
                          {"folder", fs::current_path()},
                          {"workers", workers},
                          {"max_failures", failures},
                          {"timeout_ms", timeout_of(timeout).count()},
                          {"spread", placement == "spread"}}
                         .dump());
  const std::jthread waiter = signals.call([&, count = 0](int) mutable {
    if (++count > 1) _exit(interrupted);
    std::cerr << "cluster: stopping the job; Ctrl-C again leaves at once\n" << std::flush;
    out.send_with_will("stop");
  });

  // The nodes send the output past the head. `ended`: all of it is in the store.
  std::mutex printing;
  const auto print = [&](const std::string& text) {
    const std::lock_guard lock(printing);
    if (!(std::cout << text << std::flush)) _exit(multinode::exit_wrong);
  };
  std::atomic<bool> ended = false;
  std::map<std::int64_t, std::jthread> readers;
  const auto read = [&](std::int64_t node) {
    try {
      const auto store = which.connect();
      Receiver in(*store, name + "/" + std::to_string(node), true);
      for (bool last = false; !last;) {
        last = ended;
        while (const auto text = in.receive(last ? 0ms : 50ms)) print(*text);
      }
    } catch (const std::runtime_error&) {  // the head is gone, as the main thread says
    }
  };
  Receiver in(*receiving, name + "/to", true);
  try {
    while (true) {
      const auto text = in.receive(1s);
      const json message = text ? json::parse(*text) : json::object();
      for (const std::int64_t node : message.value("nodes", json::array()))
        if (!readers.contains(node)) readers.emplace(node, std::jthread(read, node));
      if (message.contains("end")) {
        ended = true;
        readers.clear();  // joins them
      }
      if (message.contains("say")) print(message["say"].get<std::string>() + "\n");
      if (message.contains("end")) return message["end"];
    }
  } catch (const std::runtime_error& e) {
    ended = true;
    throw std::runtime_error("the head at " + to_string(which.place()) + " is gone: " + e.what());
  }
}

int stop(int argc, const char* const* argv) {
  Which which;
  po::options_description known("cluster stop [OPTIONS]\nEnds the cluster and its jobs.\nOptions");
  known.add(which.description());
  if (!multinode::parse_command_line(argc, argv, known, true)) return multinode::exit_right;
  const auto store = which.connect();
  store->set_for_readers("stop", "'cluster stop' was called", 1);
  try {
    store->get("never", 20s);
  } catch (const multinode::StoreLost&) {
    std::cout << "the cluster has ended\n";
    return multinode::exit_right;
  }
  return multinode::exit_wrong;
}

constexpr std::string_view usage =
    "usage: cluster start --head [--host ADDRESS] [--port 6379]   a head, and a node beside it, on this host\n"
    "       cluster start [--address HOST:PORT]                   a node that joins it\n"
    "       cluster status                                        nodes and jobs\n"
    "       cluster run [--num-workers N] -- PROGRAM ARGUMENTS    runs a program\n"
    "       cluster stop                                          ends the cluster\n"
    "start stays in the foreground: put & behind it, or use ssh, srun or systemd-run. Each has --help.\n";

int command(int argc, const char* const* argv) {
  const std::string_view command = argc > 1 ? argv[1] : "";
  for (const auto& [name, function] :
       {std::pair{"start", &start}, {"status", &status}, {"run", &run}, {"stop", &stop}, {"keep", &keep}})
    if (command == name) return function(argc - 1, argv + 1);
  if (command == "--version") {
    multinode::parse_command_line(argc, argv, {}, true);
    return multinode::exit_right;
  }
  if (command != "--help" && command != "-h")
    throw multinode::UsageError((argc > 1 ? "no command '" + std::string(command) + "'" : "no command") +
                                ": say start, status, run or stop; see --help");
  std::cout << usage << std::flush;
  return multinode::exit_right;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return command(argc, argv);
  } catch (const std::exception& e) {
    const bool refused = dynamic_cast<const multinode::StoreRefused*>(&e);
    std::cerr << std::string("cluster: ") + e.what() +
                     (refused ? "; the token is in the file 'head' of the head's state folder" : "") + "\n";
    if (const auto* const start_error = dynamic_cast<const multinode::StartError*>(&e)) return start_error->status;
    return dynamic_cast<const multinode::UsageError*>(&e) ? multinode::exit_usage : multinode::exit_wrong;
  }
}
