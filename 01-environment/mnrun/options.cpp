#include <mnrun/messages.hpp>
#include <mnrun/options.hpp>

#include <multinode/base/options.hpp>
#include <multinode/base/program_options.hpp>
#include <multinode/base/text.hpp>
#include <multinode/communicator/device.hpp>
#include <multinode/node/limits.hpp>

#include <arpa/inet.h>
#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <sstream>

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
  const std::string option = "--rdzv-endpoint";
  const auto colon = text.rfind(':');
  const bool is_address = text.find(':') != colon && text.front() != '[';  // IPv6, if it is right
  if (colon == text.npos || is_address || text.back() == ']') {
    const multinode::Endpoint endpoint{multinode::parse_host(text, option), default_port};
    in6_addr unused{};
    const bool ends_like_a_port = text.size() - colon > 4 && number_of<int>(text.substr(colon + 1));
    if (is_address && ends_like_a_port && inet_pton(AF_INET6, text.substr(0, colon).c_str(), &unused) == 1)
      throw UsageError(option + " " + text + ": write an IPv6 address in brackets: [ADDRESS]:PORT");
    return endpoint;
  }
  if (!text.ends_with(":0")) return multinode::parse_endpoint(text, option);
  multinode::Endpoint endpoint = multinode::parse_endpoint(text.substr(0, colon) + ":1", option);
  endpoint.port = 0;  // any free port: people write localhost:0
  return endpoint;
}

// torchrun's options that mnrun refuses, and what does it here.
constexpr std::pair<std::string_view, std::string_view> refused[] = {
    {"module", "mnrun does not start Python: mnrun [options] python3 -m MODULE"},
    {"run-path", "mnrun does not start Python: mnrun [options] python3 SCRIPT"},
    {"event-log-handler", "mnrun writes no events of torchelastic; leave it out, and read the lines of mnrun"},
    {"log-line-prefix-template", "mnrun writes [rank R] before a line, and with --no-prefix nothing"},
    {"duplicate-stdout-filters", "search the log files of --tee 1 with grep"},
    {"duplicate-stderr-filters", "search the log files of --tee 2 with grep"},
    {"logs-specs", "use --log-dir, --redirects and --tee"},
    {"numa-binding", "write numactl or taskset before the program, or use mpirun --bind-to numa"},
    {"virtual-local-rank", "mnrun [options] sh -c 'CUDA_VISIBLE_DEVICES=$LOCAL_RANK exec PROGRAM'"},
    {"print-completion", "mnrun has none; --help lists the options"},
};

// The words of the command line, and those that torchrun's variables PET_X stand for.
struct CommandLine {
  std::vector<std::string> options, command;
  std::set<std::string> given;                   // the long names of the options that are no variable's
  std::map<std::string, std::string> variables;  // "PET_X=value" by the long name of its option
};

void read_command_line(int argc, const char* const* argv, const po::options_description& known,
                       const multinode::Environment& environment, CommandLine& line) {
  const auto find = [&](const std::string& name) {
    for (const auto& [option, instead] : refused)
      if (name == option) throw UsageError(fmt::format("--{} is refused: {}", option, instead));
    return known.find_nothrow(name, false);
  };
  int i = 1;
  for (; i < argc && argv[i][0] == '-' && argv[i][1] != '\0'; ++i) {
    std::string word = argv[i];
    if (word == "--") {
      ++i;
      break;
    }
    const bool is_long = word.starts_with("--");
    const auto equals = std::min(word.find('='), word.size());
    if (is_long) std::replace(word.begin(), word.begin() + std::ptrdiff_t(equals), '_', '-');
    const std::string name = is_long ? word.substr(2, equals - 2) : word.substr(0, 2);
    const po::option_description* const option = find(name == "-m" ? "module" : name);
    line.given.insert(option ? option->long_name() : name);
    line.options.push_back(word);
    const bool complete = is_long ? equals < word.size() : word.size() > 2;
    if (!complete && option && option->semantic()->max_tokens() > 0 && i + 1 < argc) line.options.push_back(argv[++i]);
  }
  line.command.assign(argv + std::min(i, argc), argv + argc);
  if (line.given.contains("standalone")) return;
  for (const auto& [variable, value] : environment) {
    if (!variable.starts_with("PET_") || value.empty()) continue;
    std::string name = variable.substr(4);
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return c == '_' ? '-' : char(std::tolower(c)); });
    if (line.given.contains(name)) continue;
    line.variables[name] = multinode::printable(variable + "=" + value);
    const po::option_description* const option = value == "0" ? known.find_nothrow(name, false) : find(name);
    const bool is_flag = option && option->semantic()->max_tokens() == 0;
    if (!option || (is_flag && value == "0")) continue;
    line.options.push_back("--" + name + (is_flag ? "" : "=" + value));
  }
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> items;
  std::istringstream in(list);
  for (std::string item; std::getline(in, item, ',');) items.push_back(item);
  return items;
}

int read_number(const std::string& text, int least, int most, std::string_view option, const char* form) {
  const auto value = number_of<int>(text);
  if (value && *value >= least && *value <= most) return *value;
  throw UsageError(fmt::format("{} must be {}, not '{}'", option, form, multinode::printable(text)));
}

// "3" or "0:1,1:2".
std::map<int, int> read_streams(const std::string& text, std::string_view option) {
  constexpr const char* form = "from 0 to 3, or LOCAL_RANK:0..3, ...";
  std::map<int, int> streams;
  for (const std::string& item : split(text)) {
    const auto colon = item.find(':');
    const int rank = colon == item.npos ? -1 : read_number(item.substr(0, colon), 0, 4095, option, form);
    const int which = read_number(colon == item.npos ? text : item.substr(colon + 1), 0, 3, option, form);
    if (which != 0) streams[rank] = which;
  }
  return streams;
}

// "join_timeout=60" or "timeout=60". torchrun's other settings have no meaning here.
double read_join_timeout(const std::string& conf, double otherwise) {
  if (conf.empty()) return otherwise;
  const auto at = conf.find("timeout=");
  const auto value =
      at == 0 || conf.starts_with("join_timeout=") ? number_of<double>(conf.substr(at + 8)) : std::nullopt;
  if (!value)
    throw UsageError("--rdzv-conf takes join_timeout=SECONDS (as --timeout), not '" + conf + "': leave it out");
  return *value;
}

void require_ending_signals(const std::string& list) {
  const std::set<std::string> ending = {"SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"};
  for (const std::string& name : split(list))
    if (!ending.contains(name))
      throw UsageError("--signals-to-handle " + name +
                       " is refused: leave it out: mnrun ends the run at SIGINT, SIGTERM, "
                       "SIGHUP and SIGQUIT, and passes other signals, such as SIGUSR1, on to the processes");
}

std::optional<Options> parse(int argc, const char* const* argv, const multinode::Environment& environment,
                             CommandLine& line) {
  Options options;
  options.secret = multinode::read_secret_source(environment);
  bool standalone = false, no_python = false;
  std::string secret_file;
  std::string nnodes, backend = "static", endpoint, master_address, conf, redirects, tee, shown, ignored, handled;
  int node_rank = 0, master_port = 0;
  double timeout = 600, shutdown = 30;
  std::vector<std::string> settings;

  po::options_description known(
      "mnrun [options] PROGRAM [ARGUMENTS...]: starts and supervises the processes of one node; start one mnrun per "
      "node");
  auto add = known.add_options();
  add("standalone", po::bool_switch(&standalone), "one node, on loopback; ignores the variables of the batch system");
  add("nnodes", po::value(&nnodes)->value_name("N"), "number of nodes (default: from the batch system, else 1)");
  add("nproc-per-node", po::value(&options.processes)->value_name("N"), "processes of this node, or gpu, cpu, auto");
  add("node-rank", po::value(&node_rank)->value_name("R"), "rank of this node (default: from the batch system)");
  add("rdzv-backend", po::value(&backend)->value_name("NAME"),
      "where the nodes' store runs: static: on node 0; c10d: on the node that has the address of the endpoint");
  add("rdzv-endpoint", po::value(&endpoint)->value_name("HOST:PORT"), "address of the store, where the nodes meet");
  add("rdzv-id", po::value(&options.run_id)->value_name("ID"),
      "name of this run, the same on all nodes (default: node 0 chooses one)");
  add("rdzv-conf", po::value(&conf)->value_name("join_timeout=S"), "as --timeout");
  add("secret-file", po::value(&secret_file)->value_name("FILE"),
      "several nodes: has the secret that keeps strangers out; made if missing (default: ~/.multinode/secret)");
  add("master-addr", po::value(&master_address)->value_name("HOST"), "host of node 0 (default: from the batch system)");
  add("master-port", po::value(&master_port)->value_name("PORT"),
      "of the store on node 0; if there is one node, MASTER_PORT of the processes");
  add("local-addr", po::value(&options.local_address)->value_name("HOST"), "where the others reach this node");
  add("max-restarts", po::value(&options.max_restarts)->value_name("K"), "at most K more attempts after a failure");
  add("monitor-interval", po::value(&ignored)->value_name("SECONDS"), "ignored: mnrun notices at once");
  add("start-method", po::value(&ignored)->value_name("NAME"), "ignored, as by torchrun for a script");
  add("signals-to-handle", po::value(&handled)->value_name("LIST"), "SIGINT, SIGTERM, SIGHUP or SIGQUIT: end the run");
  add("role", po::value(&options.role)->value_name("NAME"), "ROLE_NAME of the processes (default: default)");
  add("log-dir", po::value(&options.log_dir)->value_name("DIR"), "folder of the log files of --redirects and --tee");
  add("redirects,r", po::value(&redirects)->value_name("N"),
      "redirect to log files: 1 stdout, 2 stderr, 3 both; for some local ranks: 0:1,1:3");
  add("tee,t", po::value(&tee)->value_name("N"), "copy to log files: values as for --redirects");
  add("local-ranks-filter", po::value(&shown)->value_name("LIST"), "print the output of these local ranks only: 0,1");
  add("env,e", po::value(&settings)->value_name("K=V"), "environment variable of the processes; can be repeated");
  add("workdir,w", po::value(&options.workdir)->value_name("DIR"), "working directory of the processes");
  add("timeout", po::value(&timeout)->value_name("SECONDS"), "until all nodes must have joined (default: 600)");
  add("shutdown-timeout", po::value(&shutdown)->value_name("SECONDS"),
      "from a signal that ends the run until mnrun kills the processes (default: 30)");
  add("no-prefix", po::bool_switch(&options.no_prefix), "do not prefix the output lines with [rank R]");
  add("no-python", po::bool_switch(&no_python), "ignored: mnrun always executes PROGRAM directly");

  read_command_line(argc, argv, known, environment, line);
  options.command = line.command;
  std::vector<const char*> pointers{"mnrun"};
  for (const auto& word : line.options) pointers.push_back(word.c_str());
  if (!multinode::parse_command_line(static_cast<int>(pointers.size()), pointers.data(), known, true))
    return std::nullopt;
  const auto given = [&](const std::string& name) {
    return line.given.contains(name) || line.variables.contains(name);
  };

  if (options.command.empty() || options.command[0].empty())
    throw UsageError("no program given: mnrun [options] PROGRAM [ARGUMENTS...]; see --help");
  if (backend != "static" && backend != "c10d")
    throw UsageError("--rdzv-backend must be static or c10d, not '" + backend + "'");
  if (!nnodes.empty()) {
    const auto colon = nnodes.find(':');
    if (colon != nnodes.npos && nnodes.substr(0, colon) != nnodes.substr(colon + 1))
      throw UsageError("--nnodes " + nnodes + ": mnrun needs a fixed number of nodes: give one number");
    options.nodes = read_number(nnodes.substr(0, colon), 1, 65'536, "--nnodes", "a number from 1 to 65536");
  }
  if (standalone && options.nodes > 1)
    throw UsageError("--standalone is for one node, but --nnodes is " + nnodes + ": leave out one of them");
  multinode::Nodes nodes;
  if (!standalone) try {
      nodes = multinode::read_nodes(environment);
    } catch (const UsageError&) {  // they do not matter if the command line has it all
      const bool has_place = !endpoint.empty() || !master_address.empty();
      if (nnodes.empty() || (options.nodes > 1 && !((given("node-rank") || backend == "c10d") && has_place))) throw;
    }
  if (!given("nproc-per-node") && nodes.processes_per_node)
    options.processes = std::to_string(nodes.processes_per_node->value);
  if (nnodes.empty() && nodes.node_count) options.nodes = nodes.node_count->value;
  if (nnodes.empty() && nodes.node_rank && !nodes.node_count)
    throw UsageError(fmt::format("{}={}, but the number of nodes is not known: give --nnodes",
                                 nodes.node_rank->variable, nodes.node_rank->value));
  if (!secret_file.empty()) options.secret = {"", secret_file, false};
  multinode::require_range("--max-restarts", options.max_restarts, 0, 1'000'000);
  multinode::require_range("--master-port", master_port, 0, 65'535);
  options.join_timeout = seconds(given("timeout") ? timeout : read_join_timeout(conf, timeout), "--timeout");
  options.shutdown_timeout = seconds(shutdown, "--shutdown-timeout");
  if ((!options.run_id.empty() || given("rdzv-id")) && !is_run_id(options.run_id))
    throw UsageError("--rdzv-id must be letters, digits and . _ - : @, not '" + options.run_id + "'");
  options.redirects = read_streams(redirects, "--redirects");
  options.tee = read_streams(tee, "--tee");
  for (const std::string& rank : split(shown))
    options.shown.insert(read_number(rank, 0, 4095, "--local-ranks-filter", "local ranks, like 0,1"));
  require_ending_signals(handled);
  for (auto& [option, host] : {std::pair("--master-addr", &master_address), {"--local-addr", &options.local_address}})
    if (!host->empty()) *host = multinode::parse_host(*host, option);
  for (const auto& setting : settings) {
    const auto equals = setting.find('=');
    if (equals == 0 || equals == setting.npos) throw UsageError("--env must be NAME=VALUE, not '" + setting + "'");
    options.environment[setting.substr(0, equals)] = setting.substr(equals + 1);
  }

  if (options.nodes == 1) {
    if (given("node-rank") && !standalone && node_rank != 0 && (line.given.contains("node-rank") || nnodes.empty()))
      throw UsageError("--node-rank " + std::to_string(node_rank) +
                       ": the only node has rank 0: leave out --node-rank, or give --nnodes");
    options.node_rank = 0;
    options.master_address = master_address;
    options.master_port = static_cast<std::uint16_t>(master_port);
    if (!standalone && !endpoint.empty()) options.endpoint = read_endpoint(endpoint);
    return options;
  }

  if (given("node-rank")) {
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

}  // namespace

std::optional<Options> parse(int argc, const char* const* argv, const multinode::Environment& environment) {
  CommandLine line;
  try {
    return parse(argc, argv, environment, line);
  } catch (const UsageError& e) {
    std::string what = e.what();
    for (const auto& [name, variable] : line.variables)
      if (what.find("--" + name) != what.npos) what += " (" + variable + ")";
    throw UsageError(what);
  }
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
