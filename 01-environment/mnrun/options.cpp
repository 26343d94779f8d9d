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

multinode::Endpoint read_endpoint(const std::string& text) {
  const std::string option = "--rdzv-endpoint";
  if (text.find(':') == text.npos || text.ends_with(']')) return {multinode::parse_host(text, option), default_port};
  if (!text.ends_with(":0")) return multinode::parse_endpoint(text, option);
  multinode::Endpoint endpoint = multinode::parse_endpoint(text.substr(0, text.size() - 1) + "1", option);
  endpoint.port = 0;  // any free port: people write localhost:0
  return endpoint;
}

// The options are the words up to the first that is neither an option nor an option's value. It is the program.
void split_command_line(int argc, const char* const* argv, const po::options_description& known,
                        std::vector<std::string>& options, std::vector<std::string>& command) {
  int i = 1;
  for (; i < argc && argv[i][0] == '-' && argv[i][1] != '\0'; ++i) {
    std::string word = argv[i];
    if (word == "--") {
      ++i;
      break;
    }
    const auto equals = std::min(word.find('='), word.size());
    std::replace(word.begin(), word.begin() + std::ptrdiff_t(equals), '_', '-');
    options.push_back(word);
    const auto* option = word.starts_with("--") ? known.find_nothrow(word.substr(2, equals - 2), false) : nullptr;
    const bool complete = !option || equals < word.size() || option->semantic()->max_tokens() == 0;
    if (!complete && i + 1 < argc) options.push_back(argv[++i]);
  }
  command.assign(argv + std::min(i, argc), argv + argc);
}

}  // namespace

std::optional<Options> parse(int argc, const char* const* argv, const multinode::Environment& environment) {
  Options options;
  options.secret = multinode::read_secret_source(environment);
  bool standalone = false, no_python = false;
  std::string secret_file, backend = "static", endpoint, master_address;
  std::optional<int> nodes_given, node_rank;
  int master_port = 0;
  double timeout = 600;

  po::options_description known(
      "mnrun [options] PROGRAM [ARGUMENTS...]: starts and supervises the processes of one node; start one mnrun per "
      "node");
  auto add = known.add_options();
  add("standalone", po::bool_switch(&standalone), "one node, on loopback; ignores the variables of the batch system");
  add("nnodes", multinode::given(nodes_given)->value_name("N"),
      "number of nodes (default: from the batch system, else 1)");
  add("nproc-per-node", po::value(&options.processes)->value_name("N"), "processes of this node, or gpu, cpu, auto");
  add("node-rank", multinode::given(node_rank)->value_name("R"), "rank of this node (default: from the batch system)");
  add("rdzv-backend", po::value(&backend)->value_name("NAME"),
      "where the nodes' store runs: static: on node 0; c10d: on the node that has the address of the endpoint");
  add("rdzv-endpoint", po::value(&endpoint)->value_name("HOST:PORT"), "address of the store, where the nodes meet");
  add("rdzv-id", po::value<std::string>()->value_name("ID")->notifier([&](const std::string& id) {
    if (!is_run_id(id)) throw UsageError("--rdzv-id must be letters, digits and . _ - : @, not '" + id + "'");
    options.run_id = id;
  }),
      "name of this run, the same on all nodes (default: node 0 chooses one)");
  add("secret-file", po::value(&secret_file)->value_name("FILE"),
      "several nodes: has the secret that keeps strangers out; made if missing (default: ~/.multinode/secret)");
  add("master-addr", po::value(&master_address)->value_name("HOST"), "host of node 0 (default: from the batch system)");
  add("master-port", po::value(&master_port)->value_name("PORT"),
      "of the store on node 0; if there is one node, MASTER_PORT of the processes");
  add("max-restarts", po::value(&options.max_restarts)->value_name("K"), "at most K more attempts after a failure");
  add("role", po::value(&options.role)->value_name("NAME"), "ROLE_NAME of the processes (default: default)");
  add("log-dir", po::value(&options.log_dir)->value_name("DIR"), "folder of the log files of --tee");
  add("tee", po::value(&options.tee)->value_name("N"), "copy the output to log files: 1 stdout, 2 stderr, 3 both");
  add("timeout", po::value(&timeout)->value_name("SECONDS"), "until all nodes must have joined (default: 600)");
  add("no-prefix", po::bool_switch(&options.no_prefix), "do not prefix the output lines with [rank R]");
  add("no-python", po::bool_switch(&no_python), "ignored: mnrun always executes PROGRAM directly");

  std::vector<std::string> words;
  split_command_line(argc, argv, known, words, options.command);
  std::vector<const char*> pointers{"mnrun"};
  for (const auto& word : words) pointers.push_back(word.c_str());
  if (!multinode::parse_command_line(static_cast<int>(pointers.size()), pointers.data(), known, true))
    return std::nullopt;

  multinode::require_range("--nnodes", nodes_given.value_or(1), 1, 65'536);
  multinode::require_range("--max-restarts", options.max_restarts, 0, 1'000'000);
  multinode::require_range("--master-port", master_port, 0, 65'535);
  multinode::require_range("--tee", options.tee, 0, 3);
  multinode::require_range("--timeout", timeout, 0.0, 31'536'000.0);
  if (options.command.empty() || options.command[0].empty())
    throw UsageError("no program given: mnrun [options] PROGRAM [ARGUMENTS...]; see --help");
  if (backend != "static" && backend != "c10d")
    throw UsageError("--rdzv-backend must be static or c10d, not '" + backend + "'");
  options.join_timeout = std::chrono::milliseconds(std::llround(timeout * 1000));
  if (standalone && nodes_given.value_or(1) > 1)
    throw UsageError(
        fmt::format("--standalone is for one node, but --nnodes is {}: leave out one of them", *nodes_given));
  multinode::Nodes nodes;
  if (!standalone) try {
      nodes = multinode::read_nodes(environment);
    } catch (const UsageError&) {  // they do not matter if the command line has it all
      const bool has_place = !endpoint.empty() || !master_address.empty();
      if (!nodes_given || (*nodes_given > 1 && !((node_rank || backend == "c10d") && has_place))) throw;
    }
  if (options.processes.empty()) options.processes = nodes.processes_per_node ? nodes.processes_per_node->value : "1";
  if (!nodes_given && nodes.node_rank && !nodes.node_count)
    throw UsageError(fmt::format("{}={}, but the number of nodes is not known: give --nnodes",
                                 nodes.node_rank->variable, nodes.node_rank->value));
  options.nodes = nodes_given ? *nodes_given : nodes.node_count ? nodes.node_count->value : 1;
  if (!secret_file.empty()) options.secret = {"", secret_file, false};
  if (!master_address.empty()) master_address = multinode::parse_host(master_address, "--master-addr");

  if (options.nodes == 1) {
    if (node_rank.value_or(0) != 0)
      throw UsageError(
          fmt::format("--node-rank {}: the only node has rank 0: leave out --node-rank, or give --nnodes", *node_rank));
    options.node_rank = 0;
    options.master_address = master_address;
    options.master_port = static_cast<std::uint16_t>(master_port);
    if (!standalone && !endpoint.empty()) options.endpoint = read_endpoint(endpoint);
    return options;
  }

  if (node_rank) {
    multinode::require_range("--node-rank", *node_rank, 0, options.nodes - 1);
    options.node_rank = node_rank;
  } else if (nodes.node_rank) {
    if (nodes.node_rank->value >= options.nodes)
      throw UsageError(fmt::format("{}={} must be less than the number of nodes, {}: give --node-rank and --nnodes",
                                   nodes.node_rank->variable, nodes.node_rank->value, options.nodes));
    options.node_rank = nodes.node_rank->value;
  } else if (backend == "static") {
    throw UsageError(
        fmt::format("with --nnodes {} each node needs its --node-rank, or --rdzv-backend c10d --rdzv-endpoint "
                    "HOST:PORT",
                    options.nodes));
  }
  options.host_is_node_0 = backend == "static";
  if (!endpoint.empty()) {
    options.endpoint = read_endpoint(endpoint);
  } else {
    const std::string host = !master_address.empty() ? master_address : nodes.master_address.value;
    if (host.empty())
      throw UsageError(fmt::format(
          "with --nnodes {} the nodes need a place to meet: --rdzv-endpoint HOST:PORT or --master-addr HOST",
          options.nodes));
    const int port = master_port != 0 ? master_port : nodes.master_port.value;
    options.endpoint = {host, port != 0 ? static_cast<std::uint16_t>(port) : default_port};
  }
  if (options.endpoint->port == 0)
    throw UsageError(fmt::format("port 0 is for one node only: give {} nodes the same port number", options.nodes));
  return options;
}

int count_processes(const std::string& text) {
  if (text == "gpu" || text == "auto") {
    const int gpus = multinode::device_count();
    if (gpus > 0) return gpus;
    if (text == "gpu") throw multinode::HardwareAbsent("--nproc-per-node gpu: this node has no GPU that can be used");
  }
  if (text == "cpu" || text == "auto") return multinode::usable_cpus();
  const auto value = number_of<int>(text);
  if (!value || *value < 1 || *value > 4096)
    throw UsageError("--nproc-per-node must be a number from 1 to 4096, gpu, cpu or auto, not '" + text + "'");
  return *value;
}

}  // namespace mnrun
