#include <mnrun/messages.hpp>
#include <mnrun/options.hpp>

#include <multinode/base/options.hpp>
#include <multinode/base/program_options.hpp>
#include <multinode/base/text.hpp>
#include <multinode/communicator/device.hpp>
#include <multinode/node/limits.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace mnrun {

using multinode::number_of;
using multinode::UsageError;
namespace po = boost::program_options;

namespace {

constexpr std::uint16_t default_port = 29500;  // torchrun's

std::chrono::milliseconds seconds(double value, std::string_view option) {
  multinode::require_range(option, value, 0.0, 31'536'000.0);
  return std::chrono::milliseconds(std::llround(value * 1000));
}

multinode::Endpoint read_endpoint(const std::string& text) {
  if (text.ends_with(":0")) {  // any free port: people write localhost:0
    multinode::Endpoint endpoint = multinode::parse_endpoint(text.substr(0, text.size() - 1) + "1", "--rdzv-endpoint");
    endpoint.port = 0;
    return endpoint;
  }
  const bool has_port = text.find(':') != text.npos && text.back() != ']';
  return multinode::parse_endpoint(has_port ? text : text + ":" + std::to_string(default_port), "--rdzv-endpoint");
}

void require_name(const std::string& text, std::string_view option) {
  if (!is_run_id(text))
    throw UsageError(std::string(option) + " must be letters, digits and . _ - : @, not '" + text + "'");
}

bool takes_value(const po::options_description& known, const std::string& word) {
  const bool is_long = word.starts_with("--");
  const po::option_description* const option = known.find_nothrow(is_long ? word.substr(2) : word.substr(0, 2), false);
  return option && option->semantic()->max_tokens() > 0 && (is_long || word.size() == 2);
}

}  // namespace

std::optional<Options> parse(int argc, const char* const* argv, const multinode::Environment& environment) {
  Options options;
  options.secret = multinode::read_secret_source(environment);
  bool standalone = false, no_python = false;
  std::string secret_file;
  std::string nnodes, backend = "static", endpoint, master_address;
  int node_rank = 0, master_port = 0;
  double monitor_interval = 0, timeout = 600, shutdown = 30;
  std::vector<std::string> settings;

  po::options_description known(
      "mnrun [options] PROGRAM [ARGUMENTS...]: starts and supervises the processes of one node; start one mnrun per "
      "node");
  auto add = known.add_options();
  add("standalone", po::bool_switch(&standalone), "one node, on loopback; ignores the variables of the batch system");
  add("nnodes", po::value(&nnodes)->value_name("N"), "number of nodes (default: from the batch system, else 1)");
  add("nproc-per-node", po::value(&options.processes)->value_name("N"),
      "number of processes on this node: a number, gpu, cpu or auto (default: from the batch system, else 1)");
  add("node-rank", po::value(&node_rank)->value_name("R"), "rank of this node (default: from the batch system)");
  add("rdzv-backend", po::value(&backend)->value_name("NAME"),
      "where the nodes' store runs: static: on node 0; c10d: on the node that has the address of the endpoint");
  add("rdzv-endpoint", po::value(&endpoint)->value_name("HOST:PORT"), "address of the store, where the nodes meet");
  add("rdzv-id", po::value(&options.run_id)->value_name("ID"),
      "name of this run, the same on all nodes (default: node 0 chooses one)");
  add("secret-file", po::value(&secret_file)->value_name("FILE"),
      "several nodes: a file that only you can read and all nodes see, with the secret that keeps strangers out; mnrun "
      "makes it if it does not exist (default: ~/.multinode/secret)");
  add("master-addr", po::value(&master_address)->value_name("HOST"), "host of node 0 (default: from the batch system)");
  add("master-port", po::value(&master_port)->value_name("PORT"),
      "several nodes: port of the store on node 0; one node: MASTER_PORT of the processes");
  add("max-restarts", po::value(&options.max_restarts)->value_name("K"),
      "after a failure, make at most K more attempts, each with new processes on all nodes (default: 0)");
  add("monitor-interval", po::value(&monitor_interval)->value_name("SECONDS"),
      "accepted and ignored: mnrun notices at once when a process ends");
  add("role", po::value(&options.role)->value_name("NAME"), "ROLE_NAME of the processes (default: default)");
  add("log-dir", po::value(&options.log_dir)->value_name("DIR"), "folder of the log files of --redirects and --tee");
  add("redirects,r", po::value(&options.redirects)->value_name("N"),
      "redirect to log files: 1 stdout, 2 stderr, 3 both");
  add("tee,t", po::value(&options.tee)->value_name("N"), "copy to log files: values as for --redirects");
  add("env,e", po::value(&settings)->value_name("K=V"),
      "set an environment variable of the processes; can be repeated");
  add("workdir,w", po::value(&options.workdir)->value_name("DIR"), "working directory of the processes");
  add("timeout", po::value(&timeout)->value_name("SECONDS"),
      "how long to wait until all nodes have joined (default: 600)");
  add("shutdown-timeout", po::value(&shutdown)->value_name("SECONDS"),
      "how long the processes may take to end after SIGINT, SIGTERM, SIGHUP or SIGQUIT to mnrun; then it kills them "
      "(default: 30)");
  add("no-prefix", po::bool_switch(&options.no_prefix), "do not prefix the output lines with [rank R]");
  add("no-python", po::bool_switch(&no_python), "accepted and ignored: mnrun always executes PROGRAM directly");

  // The words after PROGRAM are its arguments. Underscores in option names are accepted, as torchrun spells them.
  std::vector<std::string> words{argc > 0 ? argv[0] : "mnrun"};
  int i = 1;
  for (; i < argc; ++i) {
    std::string word = argv[i];
    if (word == "--") {
      ++i;
      break;
    }
    if (!word.starts_with("-") || word == "-") break;
    if (word.starts_with("--"))
      std::replace(word.begin(), word.begin() + std::ptrdiff_t(std::min(word.find('='), word.size())), '_', '-');
    words.push_back(word);
    if (word.find('=') == word.npos && takes_value(known, word) && i + 1 < argc) words.push_back(argv[++i]);
  }
  options.command.assign(argv + std::min(i, argc), argv + argc);
  std::vector<const char*> pointers;
  for (const auto& word : words) pointers.push_back(word.c_str());
  if (!multinode::parse_command_line(static_cast<int>(pointers.size()), pointers.data(), known, true))
    return std::nullopt;
  const auto given = [&](std::string_view name) {
    return std::any_of(words.begin(), words.end(),
                       [&](const std::string& w) { return w.substr(0, w.find('=')) == name; });
  };

  if (options.command.empty() || options.command[0].empty())
    throw UsageError("no program given: mnrun [options] PROGRAM [ARGUMENTS...]; see --help");
  if (backend != "static" && backend != "c10d")
    throw UsageError("--rdzv-backend must be static or c10d, not '" + backend + "'");
  const multinode::Nodes nodes = standalone ? multinode::Nodes() : multinode::read_nodes(environment);
  if (!given("--nproc-per-node") && nodes.processes_per_node)
    options.processes = std::to_string(nodes.processes_per_node->value);
  if (!nnodes.empty()) {
    const auto colon = nnodes.find(':');
    if (colon != nnodes.npos && nnodes.substr(0, colon) != nnodes.substr(colon + 1))
      throw UsageError("--nnodes " + nnodes + ": mnrun needs a fixed number of nodes: give one number");
    const auto value = number_of<int>(nnodes.substr(0, colon));
    if (!value) throw UsageError("--nnodes must be a number, not '" + nnodes + "'");
    options.nodes = *value;
  } else if (nodes.node_count) {
    options.nodes = nodes.node_count->value;
  }
  if (standalone) options.nodes = 1;
  if (!secret_file.empty()) options.secret = {"", secret_file, false};
  multinode::require_range("--nnodes", options.nodes, 1, 65'536);
  multinode::require_range("--max-restarts", options.max_restarts, 0, 1'000'000);
  multinode::require_range("--master-port", master_port, 0, 65'535);
  options.join_timeout = seconds(timeout, "--timeout");
  options.shutdown_timeout = seconds(shutdown, "--shutdown-timeout");
  if (!options.run_id.empty() || given("--rdzv-id")) require_name(options.run_id, "--rdzv-id");
  multinode::require_range("--redirects", options.redirects, 0, 3);
  multinode::require_range("--tee", options.tee, 0, 3);
  for (const auto& setting : settings) {
    const auto equals = setting.find('=');
    if (equals == 0 || equals == setting.npos) throw UsageError("--env must be NAME=VALUE, not '" + setting + "'");
    options.environment[setting.substr(0, equals)] = setting.substr(equals + 1);
  }

  if (options.nodes == 1) {
    if (given("--node-rank") && !standalone && node_rank != 0)
      throw UsageError("--node-rank " + std::to_string(node_rank) +
                       ": the only node has rank 0: leave out --node-rank, or give --nnodes");
    options.node_rank = 0;
    if (!master_address.empty()) options.master_address = master_address;
    options.master_port = static_cast<std::uint16_t>(master_port);
    if (!standalone && !endpoint.empty()) options.endpoint = read_endpoint(endpoint);
    return options;
  }

  if (given("--node-rank")) {
    multinode::require_range("--node-rank", node_rank, 0, options.nodes - 1);
    options.node_rank = node_rank;
  } else if (nodes.node_rank) {
    if (nodes.node_rank->value >= options.nodes)
      throw UsageError(fmt::format("{}={} must be less than the number of nodes, {}: give --node-rank and --nnodes",
                                   nodes.node_rank->variable, nodes.node_rank->value, options.nodes));
    options.node_rank = nodes.node_rank->value;
  } else if (backend == "static") {
    throw UsageError("with --nnodes " + std::to_string(options.nodes) +
                     " each node needs its --node-rank, or --rdzv-backend c10d --rdzv-endpoint HOST:PORT");
  }
  options.host_is_node_0 = backend == "static";
  if (!endpoint.empty()) {
    options.endpoint = read_endpoint(endpoint);
  } else {
    const std::string host = !master_address.empty() ? master_address : nodes.master_address.value;
    if (host.empty())
      throw UsageError("with --nnodes " + std::to_string(options.nodes) +
                       " the nodes need a place to meet: --rdzv-endpoint HOST:PORT or --master-addr HOST");
    const int port = master_port != 0 ? master_port : nodes.master_port.value;
    options.endpoint = {host, port != 0 ? static_cast<std::uint16_t>(port) : default_port};
  }
  if (options.endpoint->port == 0)
    throw UsageError("port 0 is for one node only: give " + std::to_string(options.nodes) +
                     " nodes the same port number");
  return options;
}

int count_processes(const std::string& text) {
  if (text == "gpu" || text == "auto") {
    const int gpus = multinode::device_count();
    if (gpus > 0) return gpus;
    if (text == "gpu") throw multinode::HardwareAbsent("--nproc-per-node gpu: this node has no GPU that can be used");
  }
  if (text == "cpu" || text == "auto") return static_cast<int>(multinode::allowed_cpus().size());
  const auto value = number_of<int>(text);
  if (!value || *value < 1 || *value > 4096)
    throw UsageError("--nproc-per-node must be a number from 1 to 4096, gpu, cpu or auto, not '" + text + "'");
  return *value;
}

}  // namespace mnrun
