#include "checks.hpp"

#include "statistics.hpp"

#include <multinode/device.hpp>
#include <multinode/options.hpp>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <regex>
#include <sstream>

namespace image_check {
namespace {

using nlohmann::json;

Sample sample(std::string metric, std::string unit, std::string better, double value) {
  Sample sample;
  sample.metric = std::move(metric);
  sample.unit = std::move(unit);
  sample.better = std::move(better);
  sample.value = value;
  return sample;
}

// Chapter 02's lines: bus bandwidth over the size. Of the median time, which the machine's other work moves least.
Reader curve() {
  return [](const json& line) -> std::optional<Sample> {
    if (!line.contains("busbw_gb_per_s") || line.at("in_place").get<bool>() || line.contains("gpu"))
      return std::nullopt;
    auto found =
        sample(line.at("collective").get<std::string>() + " bus bandwidth, " + line.at("backend").get<std::string>(),
               "GB/s", "more",
               line.at("busbw_gb_per_s").get<double>() * line.at("time_us").get<double>() /
                   line.at("median_us").get<double>());
    found.band_bytes = line.at("size_bytes").get<double>();
    return found;
  };
}

Reader value(std::string key, std::string metric, std::string unit, std::string better) {
  return [=](const json& line) -> std::optional<Sample> {
    if (!line.contains(key) || !line.at(key).is_number()) return std::nullopt;
    return sample(metric, unit, better, line.at(key).get<double>());
  };
}

// node_check's lines.
Reader of_a_node() {
  return [](const json& line) -> std::optional<Sample> {
    if (!line.contains("what") || !line.at("value").is_number() || line.at("better") == "equal") return std::nullopt;
    auto found = sample(line.at("what"), line.at("unit"), line.at("better"), line.at("value"));
    found.node = line.at("host");
    return found;
  };
}

// Of pairs, the first round: it has each node in one.
Reader of_a_pair() {
  return [](const json& line) -> std::optional<Sample> {
    if (!line.contains("pair") || line.at("round") != 1 || !line.at("gb_per_s").is_number()) return std::nullopt;
    const std::string rail = line.at("rail");
    auto found = sample("bandwidth of a pair" + (rail.empty() ? "" : ", " + rail), "GB/s", "more", line.at("gb_per_s"));
    found.node = line.at("pair");
    return found;
  };
}

std::vector<Check> make_checks() {
  using enum Where;
  using enum Need;
  using enum Suite;
  const std::vector<std::string> common{"--timeout", "{timeout}", "--json", "{json}"};
  const auto with = [&common](std::vector<std::string> words) {
    words.insert(words.end(), common.begin(), common.end());
    return words;
  };
  std::vector<Check> checks{
      {.name = "wiring",
       .title = "every process is there, once, with the same program, C library and kernel",
       .program = "01-environment/explore",
       .arguments = with({"--require-equal", "program,libc,kernel,driver,memlock"}),
       .seconds = 1,
       .limit = 20,
       .action = Action::look,
       .says = {"no difference between the ranks"}},
      {.name = "node",
       .title = "limits, devices, memory, matrix products, clocks, names",
       .program = "image-check/node_check",
       .arguments = with({"--seconds", "0.2", "{skip ssh}"}),
       .where = one_each,
       .seconds = 4,
       .limit = 60,
       .action = Action::drain,
       .read = of_a_node()},
      {.name = "gpu memory",
       .title = "patterns in as much of each GPU's memory as two minutes allow",
       .from = deep,
       .program = "image-check/node_check",
       .arguments = with({"--only", "gpu", "--seconds", "120"}),
       .needs = {gpu},
       .seconds = 190,
       .limit = 400,
       .action = Action::replace_node},
      {.name = "transport",
       .title = "MPI uses shared memory within a node",
       .program = "03-message-passing/message_passing_mpi",
       .arguments = with({"--count", "10000"}),
       .needs = {mpi, several_processes},
       .seconds = 1,
       .limit = 20,
       .action = Action::look,
       .variables = {{"OMPI_MCA_btl_base_verbose", "100"},
                     {"OMPI_MCA_pml_base_verbose", "10"},
                     {"OMPI_MCA_mtl_base_verbose", "10"},
                     {"UCX_LOG_LEVEL", "info"},
                     {"MPIR_CVAR_DEBUG_SUMMARY", "1"},
                     {"I_MPI_DEBUG", "5"}},
       .transport = true},
      {.name = "transport, nccl",
       .title = "NCCL uses NVLink, PCIe or shared memory within a node, and RDMA between nodes where it is there",
       .program = "03-message-passing/message_passing_nccl",
       .arguments = with({"--count", "10000"}),
       .needs = {gpu, several_processes},
       .seconds = 5,
       .limit = 60,
       .action = Action::look,
       .variables = {{"NCCL_DEBUG", "INFO"}},
       .transport = true},
      {.name = "messages, mpi",
       .title = "rank 0 sends to every other rank, which checks each element",
       .program = "03-message-passing/message_passing_mpi",
       .arguments = with({"--count", "1M", "--rounds", "20"}),
       .needs = {mpi, several_processes},
       .seconds = 1,
       .action = Action::drain,
       .says = {"RIGHT: 0 of [0-9]+ elements wrong"}},
      {.name = "messages, gloo",
       .title = "the same over Gloo",
       .program = "03-message-passing/message_passing_gloo",
       .arguments = with({"--count", "1M", "--rounds", "20"}),
       .needs = {gloo, several_processes},
       .seconds = 1,
       .action = Action::drain,
       .says = {"RIGHT: 0 of [0-9]+ elements wrong"}},
      {.name = "messages, nccl",
       .title = "the same between GPUs",
       .program = "03-message-passing/message_passing_nccl",
       .arguments = with({"--count", "1M", "--rounds", "20"}),
       .needs = {gpu, several_processes},
       .seconds = 5,
       .action = Action::drain,
       .says = {"RIGHT: 0 of [0-9]+ elements wrong"}},
      {.name = "a silent rank is named",
       .title = "a rank that does not receive: the others end at the deadline, and say who it is",
       .program = "03-message-passing/message_passing_gloo",
       .arguments = {"--mute", "1", "--timeout", "2"},
       .needs = {gloo, several_processes},
       .seconds = 3,
       .action = Action::look,
       .exit_status = 1,
       .says = {"timed out after 2 s", "rank 1 "}},
      {.name = "worker death",
       .title = "a worker is killed: its cluster starts the job again, which ends right",
       .program = "image-check/worker_death",
       .arguments = {"{examples}", "{folder}"},
       .where = first_process,
       .needs = {gloo},
       .seconds = 4,
       .limit = 40,
       .action = Action::look,
       .says = {"RIGHT: killed once"}},
      {.name = "pi, bit for bit",
       .title = "the sum of 200 million trapezoids has the known bits",
       .program = "05-pi-trapezoid/pi",
       .arguments = with({"--n", "2e8", "--trials", "5", "--warmup", "1"}),
       .seconds = 3,
       .action = Action::replace_node,
       .answers = {{"bits", "0x1.921fb54442d19p+1"}, {"blocks_hash", "5798530c49f9f976"}},
       .read = value("average_seconds", "pi, 200 million intervals", "s", "less")},
      {.name = "training",
       .title = "Fashion-MNIST is learned, with the same parameters on every rank",
       .program = "04-ddp/fashion_mnist",
       .arguments = with({"--epochs", "1", "--min-accuracy", "80"}),
       .needs = {images},
       .seconds = 3,
       .limit = 60,
       .action = Action::drain,
       .says = {"RIGHT: test accuracy"},
       .read = value("samples_per_second", "training, Fashion-MNIST", "samples/s", "more")},
      {.name = "pairs",
       .title = "no node is slower than the others: nodes in pairs, in two rounds",
       .from = gate,
       .program = "image-check/image-check",
       .arguments = {"pairs", "--hosts", "{nodes}", "--launcher", "{launcher}", "--examples", "{examples}", "--json",
                     "{json}"},
       .where = first_process,
       .needs = {three_nodes},
       .seconds = 5,
       .limit = 120,
       .action = Action::replace_node,
       .says = {"every node is as fast as the others"},
       .read = of_a_pair()},
      {.name = "rdma",
       .title = "RDMA devices have a GID to use, and ranks agree on it",
       .program = "07-rdma-tuning/rdma_tune",
       .arguments = {"check"},
       .where = first_process,
       .needs = {rdma},
       .seconds = 1,
       .action = Action::drain},
      {.name = "rdma path",
       .title = "what MPI or NCCL sends between nodes goes over RDMA, by the devices' counters",
       .program = "07-rdma-tuning/rdma_tune",
       .arguments = {"verify", "--require", "rdma", "--", "{launch:02-mpi/all_reduce_perf -b 1M -e 16M -f 4}"},
       .where = first_process,
       .needs = {rdma, mpi, several_nodes},
       .seconds = 10,
       .limit = 60,
       .action = Action::drain},
  };

  // Collectives: every element checked, and the curve.
  struct Backend {
    std::string name;
    Need need;
  };
  const std::vector<Backend> backends{{"mpi", mpi}, {"gloo", gloo}, {"nccl", gpu}};
  for (const auto& [backend, need] : backends) {
    for (const std::string collective : {"all_reduce", "sendrecv", "all_gather", "reduce_scatter", "broadcast",
                                         "reduce", "alltoall", "gather", "scatter", "hypercube"}) {
      const bool first = collective == "all_reduce";
      Check check{.name = collective + ", " + backend,
                  .title = "every element right; bus bandwidth over the size",
                  .from = first || (collective == "sendrecv" && backend == "mpi") ? smoke : gate,
                  .program = "02-mpi/" + collective + "_perf",
                  .arguments = with({"--backend", backend, "--sweep", "-b", "16", "-e", "4M", "-f", "4"}),
                  .needs = {need, several_processes},
                  .seconds = backend == "gloo" ? 4.0 : 2.0,
                  .limit = 60,
                  .action = Action::drain,
                  .says = {"Out of bounds values : 0 OK"},
                  .read = curve()};
      checks.push_back(check);
      check.name += ", large";
      check.from = deep;
      const bool on_gpus = need == gpu;  // whose networks reach their full speed only with larger messages
      check.arguments = with({"--backend", backend, "--sweep", "-b", "8M", "-e", on_gpus ? "1G" : "64M", "-f", "2"});
      check.seconds *= on_gpus ? 15 : 4;
      check.limit = on_gpus ? 300 : 120;
      checks.push_back(check);
      if (on_gpus) check.seconds /= 4, check.limit = 120;
      check.name = collective + ", " + backend + ", every type";
      check.title = "every element right, for each type";
      check.arguments = with({"--backend", backend, "-b", "1", "-e", "1M", "-f", "32", "-d", "all", "-n", "2"});
      check.read = nullptr;
      checks.push_back(check);
    }
  }
  return checks;
}

bool rdma_device() {
  std::error_code ignored;
  return std::filesystem::directory_iterator("/sys/class/infiniband", ignored) != std::filesystem::directory_iterator();
}

std::string lines_that_say_why(const std::string& program, const std::string& output) {
  const std::string name = program.substr(program.rfind('/') + 1);
  const std::regex telling("^(\\[rank [0-9]+\\] )?" + name +
                           ": .*|.*WRONG.*|.* FAILED$|.*rank [0-9]+: .*|.*cannot run .*");
  std::vector<std::string> lines, all;
  std::istringstream stream(output);
  for (std::string line; std::getline(stream, line);) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (line.size() > 400) line.resize(400);
    if (line.empty()) continue;
    all.push_back(line);
    if (std::regex_match(line, telling) && std::find(lines.begin(), lines.end(), line) == lines.end())
      lines.push_back(line);
  }
  if (lines.empty()) lines = std::move(all);
  constexpr std::size_t most = 4;
  std::string text;
  for (std::size_t i = lines.size() > most ? lines.size() - most : 0; i < lines.size(); ++i)
    text += (text.empty() ? "" : "\n") + lines[i];
  return text;
}

// The host that a text names.
std::string node_in(const std::string& text, const Cluster& cluster) {
  for (const auto& node : cluster.nodes)
    if (std::regex_search(text, std::regex("(^|[^A-Za-z0-9.-])" + std::regex_replace(node, std::regex("[.]"), "[.]") +
                                           "($|[^A-Za-z0-9-])")))
      return node;
  return "";
}

struct Transport {
  std::vector<Finding> findings;
  std::string unknown;  // why nothing is known about the transport within a node; "": it is known
};

// Open MPI with ob1 prints over which of its transports a rank reaches another: "Using vader btl for send to [[1,1],0]
// on node a". UCX prints "intra-node" and "inter-node".
// NCCL with NCCL_DEBUG=INFO: "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", where ranks of a node follow each other.
// MPICH, Intel MPI and Open MPI over libfabric print at most the name of libfabric's provider, which does not show
// whether ranks of one node use shared memory.
Transport look_at_transport(const std::string& output, const Cluster& cluster) {
  Transport transport;
  auto& findings = transport.findings;
  const std::regex btl(R"(\[([^\]:]+):\d+\] mca: bml: Using (\S+) btl for send to \S+ on node (\S+))");
  bool seen = false;
  std::set<std::string> told;
  for (auto match = std::sregex_iterator(output.begin(), output.end(), btl); match != std::sregex_iterator(); ++match) {
    const std::string from = (*match)[1], over = (*match)[2], to = (*match)[3];
    if (over == "self") continue;
    seen = true;
    if (from == to && over != "vader" && over != "sm" && told.insert(from + over).second)
      findings.push_back({"transport",
                          "MPI sends over " + over + " between processes of " + from +
                              ", not through shared memory: look at OMPI_MCA_btl, openmpi-mca-params.conf and /dev/shm",
                          from});
  }
  const std::regex ucx(R"(UCX +INFO .*(intra-node|inter-node) .*)");
  for (auto match = std::sregex_iterator(output.begin(), output.end(), ucx); match != std::sregex_iterator(); ++match) {
    seen = true;
    const std::string line = match->str();
    if (line.find("intra-node") != std::string::npos && line.find("tcp") != std::string::npos &&
        line.find("posix") == std::string::npos && line.find("sysv") == std::string::npos && told.insert("ucx").second)
      findings.push_back({"transport", "UCX sends over TCP within a node: " + line, ""});
  }
  const std::regex channel(R"(Channel \d+/\d+ : (\d+)\[\S*\] -> (\d+)\[\S*\] (\[\w+\] )?via (\S+))");
  for (auto match = std::sregex_iterator(output.begin(), output.end(), channel); match != std::sregex_iterator();
       ++match) {
    seen = true;
    const std::string from = (*match)[1], to = (*match)[2], via = (*match)[4];
    const int node = std::stoi(from) / cluster.processes_per_node;
    const bool within = node == std::stoi(to) / cluster.processes_per_node, sockets = via.rfind("NET/Socket", 0) == 0;
    if ((within ? via.rfind("NET/", 0) != 0 : !(sockets && rdma_device())) || !told.insert(via).second) continue;
    findings.push_back({"transport",
                        "NCCL sends over " + via + " from rank " + from + " to rank " + to +
                            (within ? ", which are on one node" : ", past the RDMA devices") +
                            ": look at NCCL_P2P_DISABLE, NCCL_SHM_DISABLE, NCCL_IB_DISABLE and NCCL_NET",
                        cluster.nodes.at(std::min(static_cast<std::size_t>(node), cluster.nodes.size() - 1))});
  }
  if (seen) return transport;
  transport.unknown = "could not determine the transport within a node";
  std::smatch match;
  if (std::regex_search(output, match, std::regex(R"(libfabric provider: *([^\s]+))")))
    transport.unknown += ": the output names only libfabric's provider, " + match[1].str();
  else if (std::regex_search(output, match, std::regex(R"(mtl:ofi:prov(?:ider)?: *([^\s]+))")))
    transport.unknown += ": Open MPI uses libfabric's provider " + match[1].str();
  else if (std::regex_search(output, match, std::regex(R"(select: component (\w+) selected)")))
    transport.unknown += ": Open MPI uses '" + match[1].str() + "', which does not print it";
  else
    transport.unknown += ": no line of the output names it";
  return transport;
}

}  // namespace

Suite parse_suite(const std::string& name) {
  for (const Suite suite : {Suite::smoke, Suite::gate, Suite::deep})
    if (name == name_of(suite)) return suite;
  throw multinode::UsageError("--suite: '" + name + "' is none of smoke, gate, deep");
}
const char* name_of(Suite suite) { return suite == Suite::smoke ? "smoke" : suite == Suite::gate ? "gate" : "deep"; }
double budget_seconds(Suite suite) { return suite == Suite::smoke ? 60 : suite == Suite::gate ? 300 : 1800; }

const std::vector<Check>& all_checks() {
  static const std::vector<Check> checks = make_checks();
  return checks;
}

double seconds_on(const Check& check, const Cluster& cluster) {
  return check.seconds + 0.05 * static_cast<double>(cluster.nodes.size() - 1);
}
double limit_on(const Check& check, const Cluster& cluster) {
  return check.limit + 0.5 * static_cast<double>(cluster.nodes.size() - 1);
}

std::optional<std::string> cannot_run(const Check& check, const Cluster& cluster) {
  const auto there = [&](const std::string& program) { return std::filesystem::exists(cluster.path_of(program)); };
  for (const Need need : check.needs) {
    if (need == Need::mpi && cluster.launcher == "mnrun") return "MPI needs mpirun or srun, and the launcher is mnrun";
    if (need == Need::mpi && !there("03-message-passing/message_passing_mpi"))
      return "the examples are built without MPI";
    if (need == Need::gloo && !there("03-message-passing/message_passing_gloo"))
      return "the examples are built without Gloo";
    if (need == Need::gpu && multinode::device_count() == 0) return "no GPU";
    if (need == Need::rdma && !rdma_device()) return "no RDMA device";
    if (need == Need::images && !std::filesystem::exists("/usr/share/datasets/fashion-mnist"))
      return "no images in /usr/share/datasets/fashion-mnist: install dataset-fashion-mnist";
    if (need == Need::three_nodes && cluster.nodes.size() < 3) return "less than three nodes";
    if (need == Need::several_nodes && cluster.nodes.size() < 2) return "one node only";
    if (need == Need::several_processes &&
        cluster.nodes.size() * static_cast<std::size_t>(cluster.processes_per_node) < 2)
      return "one process only";
  }
  if (!there(check.program)) return check.program + " is not built";
  return std::nullopt;
}

Judged judge(const Check& check, const Cluster& cluster, const Outcome& outcome, const std::filesystem::path& log,
             const std::filesystem::path& json_path, const std::set<std::string>& disabled) {
  Judged judged;
  std::ostringstream text;
  text << std::ifstream(log).rdbuf();
  const std::string output = text.str();

  const auto find = [&](const std::string& detector, const std::string& said, const std::string& node = "") {
    if (!disabled.contains(detector))
      judged.findings.push_back({detector, said, node.empty() ? node_in(said, cluster) : node});
  };
  if (outcome.timed_out) {
    find("deadline", "did not end by itself, and was ended after " +
                         std::to_string(std::lround(outcome.seconds.count())) + " s. " +
                         (output.empty() ? "It had said nothing."
                                         : "Its last words:\n" + lines_that_say_why(check.program, output)));
  } else if (outcome.exit_status == 77) {
    judged.absent = true;
    judged.reason = lines_that_say_why(check.program, output);
    return judged;
  } else if (outcome.exit_status != check.exit_status) {
    find("exit status", "ended with status " + std::to_string(outcome.exit_status) + ":\n" +
                            lines_that_say_why(check.program, output));
  } else {
    for (const auto& wanted : check.says)
      if (!std::regex_search(output, std::regex(wanted))) find("output", "did not say '" + wanted + "'");
  }
  if (outcome.left_over > 0)
    find("left over", std::to_string(outcome.left_over) + " of its processes stayed behind, and were killed");
  if (outcome.stuck > 0)
    find("left over", std::to_string(outcome.stuck) +
                          " of its processes could not be killed: they wait in the kernel (state D of ps; look at "
                          "dmesg, at network file systems and at the drivers)");
  if (check.transport && outcome.exit_status == 0) {
    const auto transport = look_at_transport(output, cluster);
    for (const auto& finding : transport.findings) find(finding.detector, finding.text, finding.node);
    if (judged.findings.empty() && !transport.unknown.empty()) {
      judged.absent = true;
      judged.reason = transport.unknown;
    }
  }

  // Its JSON lines.
  std::map<std::string, bool> answered;
  struct Slowness {
    int rank;
    std::string host;
    double time, fastest;
  };
  std::map<std::string, std::vector<Slowness>> slowness;                      // by what
  std::map<std::string, std::map<std::string, std::set<std::string>>> equal;  // what, value, hosts
  std::ifstream lines(json_path);
  for (std::string line; std::getline(lines, line);) {
    const json object = json::parse(line, nullptr, false);
    if (!object.is_object()) {
      find("results", "a line of results is no JSON: " + line.substr(0, 200));
      continue;
    }
    for (const auto& [key, wanted] : check.answers) {
      if (!object.contains(key)) continue;
      answered[key] = true;
      if (object.at(key) != wanted) find("answer", key + " is " + object.at(key).dump() + ", and should be " + wanted);
    }
    if (object.contains("what") && object.contains("rank") && object.contains("better")) {
      const std::string what = object.at("what"), host = object.at("host");
      const json& value = object.at("value");
      if (object.at("better") == "equal") {
        const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
        equal[what][text].insert(host);
        judged.facts.push_back({check.name, what, text, host});
      }
      if (object.at("better") == "more" && value.is_number() && value > 0)
        slowness[what].push_back({object.at("rank"), host, 1 / value.get<double>(), 1 / value.get<double>()});
    }
    if (object.contains("ranks") && object.at("ranks").is_array())
      for (const json& one : object.at("ranks"))
        slowness["its own work"].push_back({one.at("rank"), one.at("host"), one.at("seconds"),
                                            one.value("fastest_seconds", one.at("seconds").get<double>())});
    if (!check.read) continue;
    if (auto sample = check.read(object)) {
      sample->check = check.name;
      if (std::isfinite(sample->value)) judged.samples.push_back(*std::move(sample));
    }
  }
  if (outcome.exit_status == check.exit_status && !outcome.timed_out) {
    for (const auto& [key, wanted] : check.answers)
      if (!answered[key]) find("answer", "its results do not say " + key);
    if (check.read && judged.samples.empty()) find("results", "it measured nothing: no line of results");
  }
  // One of several that is far behind all others: by more than what a busy machine explains.
  for (const auto& [what, of] : slowness) {
    for (const auto& one : of) {
      std::vector<double> others, fastest;
      for (const auto& other : of)
        if (&other != &one) others.push_back(other.time), fastest.push_back(other.fastest);
      // Where ranks share cores, one may have bad luck in all trials, or in one: both show a rank that is slow.
      if (others.empty() || one.time <= 3 * median(others) || one.fastest <= 3 * median(fastest)) continue;
      find("slow rank",
           fmt::format("rank {} on {} is {:.2g} times slower than the others: {}", one.rank, one.host,
                       one.time / median(others), what),
           one.host);
    }
  }
  for (const auto& [what, values] : equal) {
    if (values.size() < 2) continue;
    // What most nodes have, or about.
    const auto hosts_with = [&values = values, &what = what](const std::string& value) {
      std::size_t hosts = 0;
      for (const auto& [other, of] : values) hosts += same_fact(what, value, other) ? of.size() : 0;
      return hosts;
    };
    const std::string* usual = nullptr;
    for (const auto& [value, hosts] : values)
      if (!usual || hosts_with(value) > hosts_with(*usual)) usual = &value;
    for (const auto& [value, hosts] : values)
      for (const auto& host : hosts)
        if (!same_fact(what, *usual, value))
          find("devices", host + ": " + what + " is '" + value + "', elsewhere '" + *usual + "'", host);
  }
  if (!judged.findings.empty()) judged.absent = false;
  return judged;
}

}  // namespace image_check
