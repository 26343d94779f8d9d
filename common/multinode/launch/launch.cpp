// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/check.hpp>
#include <multinode/base/text.hpp>
#include <multinode/launch/host_list.hpp>
#include <multinode/launch/launch.hpp>

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <climits>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <set>
#include <tuple>

namespace multinode {
namespace {

constexpr std::uint16_t customary_port = 29'500;    // torch's
constexpr std::uintmax_t max_node_file = 16 << 20;  // bytes: 65,536 lines of 255

class Variables {
 public:
  explicit Variables(const Environment& environment) : environment_(environment) {}

  bool has(std::string_view name) const { return environment_.contains(name); }
  bool is(std::string_view name, std::string_view value) const { return has(name) && text(name) == value; }
  std::string text(std::string_view name) const {
    const auto found = environment_.find(name);
    return found == environment_.end() ? "" : found->second;
  }

  // "NAME=value", for a message.
  std::string show(std::string_view name) const {
    std::string value = printable(text(name));
    if (name.ends_with("_STORE")) value.resize(std::min(value.rfind('/'), value.size()));  // what follows is a secret
    return fmt::format("{}={}", name, value);
  }

  // "NAME": the variable is set; "!NAME": it is not; "NAME!=value": it is not set to this value.
  bool meet(std::string_view condition) const {
    if (condition.starts_with('!')) return !has(condition.substr(1));
    const std::size_t at = condition.find("!=");
    return at == condition.npos ? has(condition) : !is(condition.substr(0, at), condition.substr(at + 2));
  }

  std::optional<FromVariable<int>> number(std::string_view name) const {
    if (!has(name)) return std::nullopt;
    if (const auto value = parse_decimal<int>(text(name))) return FromVariable<int>{*value, std::string(name)};
    throw UsageError(fmt::format("{} is not a number from 0 to {}: correct it, or unset what the launcher did not set",
                                 show(name), INT_MAX));
  }

  FromVariable<std::uint16_t> port(std::string_view name) const {
    if (!has(name)) return {};
    const auto value = parse_decimal<std::uint16_t>(text(name));
    if (!value || *value == 0) throw UsageError(show(name) + " is not a port: set it to a number from 1 to 65535");
    return {*value, std::string(name)};
  }

  FromVariable<std::string> address(std::string_view name) const {
    const std::string value = text(name);
    if (value.empty()) return {};
    // ':', '%' and brackets: IPv6
    if (value.size() > max_host_name || !std::all_of(value.begin(), value.end(), [](char c) {
          return is_host_character(c) || c == ':' || c == '%' || c == '[' || c == ']';
        }))
      throw UsageError(show(name) + " is neither a host name nor an address: correct it");
    return {value, std::string(name)};
  }

  // What `expand` makes of the value; its error is prefixed with the variable's name.
  template <class Expand>
  auto expanded(std::string_view name, Expand expand) const try {
    return expand(text(name));
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: {}", name, error.what()));
  }

  // The hosts in the file that the variable names: one line per process slot.
  std::vector<std::string> node_file(std::string_view name) const {
    const std::filesystem::path path = text(name);
    std::error_code error;
    // The size of anything but a regular file is an error, and the largest number.
    if (std::filesystem::file_size(path, error) > max_node_file)
      throw UsageError(show(name) + " is not a file of at most 16 MiB that this node can read: name a copy of it");
    std::ifstream file(path);
    std::vector<std::string> hosts;
    for (std::string line; std::getline(file, line) && hosts.size() <= max_hosts;) {
      while (line.ends_with(' ') || line.ends_with('\r')) line.pop_back();
      if (line.empty()) continue;
      if (line.size() > max_host_name || !std::all_of(line.begin(), line.end(), is_host_character))
        throw UsageError(fmt::format("{} contains '{}', which is not a host name: name a file with one host per line",
                                     show(name), printable(line)));
      hosts.push_back(line);
    }
    if (hosts.empty() || hosts.size() > max_hosts)
      throw UsageError(fmt::format("{} names {} hosts: name a file with one host per line", show(name),
                                   hosts.empty() ? "no" : "more than 65536"));
    return hosts;
  }

 private:
  const Environment& environment_;
};

// A port that is the same in all processes of a job and that other jobs on these nodes are unlikely to use. It is below
// the ephemeral ports.
std::uint16_t port_of_job(std::string_view job, std::string_view step) {
  const auto leading_number = [](std::string_view text) -> std::uint64_t {
    std::uint64_t value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value % 20'000;
  };
  return static_cast<std::uint16_t>(10'000 + (leading_number(job) + 997 * leading_number(step)) % 20'000);
}

std::vector<std::string> distinct(const std::vector<std::string>& hosts) {
  std::vector<std::string> result;
  std::set<std::string_view> seen;
  std::copy_if(hosts.begin(), hosts.end(), std::back_inserter(result),
               [&](const std::string& host) { return seen.insert(host).second; });
  return result;
}

// `low` is a rank or a part, `high` the size that it belongs to.
void require_less(const FromVariable<int>& low, const FromVariable<int>& high, bool or_equal = false) {
  if (low.value < high.value || (or_equal && low.value == high.value)) return;
  const auto name = [](const FromVariable<int>& given, const char* otherwise) {
    return given.variable.empty() ? otherwise : given.variable;
  };
  throw UsageError(fmt::format("{}={} {} {}={}: correct one of them, or unset what the launcher did not set",
                               name(low, "the rank"), low.value, or_equal ? "exceeds" : "must be less than",
                               name(high, "the size"), high.value));
}

// Checks and values that need more than the columns of a row.

void finish_torchrun(const Variables& variables, Launch& launch) {
  launch.agent_store = variables.is("TORCHELASTIC_USE_AGENT_STORE", "True");
  if (launch.agent_store && (launch.master_address.value.empty() || launch.master_port.value == 0))
    throw UsageError(
        fmt::format("TORCHELASTIC_USE_AGENT_STORE=True, but {} is not set: start the program with torchrun",
                    launch.master_port.value ? "MASTER_ADDR" : "MASTER_PORT"));
}

// True if RANK and the related variables differ from srun's: a launcher inside srun, such as Ray on Slurm, set them.
// Together with MNRUN_* or CLUSTER_* they belong to mnrun or the cluster, and srun is the inner launcher.
bool ranked_inside_srun(const Variables& variables) {
  return !variables.has("MNRUN_STORE") && !variables.has("CLUSTER_STORE") && variables.has("RANK") &&
         variables.has("LOCAL_RANK") && variables.has("WORLD_SIZE") &&
         (variables.text("RANK") != variables.text("SLURM_PROCID") ||
          variables.text("WORLD_SIZE") != variables.text("SLURM_STEP_NUM_TASKS"));
}

void finish_srun(const Variables& variables, Launch& launch) {
  const auto procid = variables.number("SLURM_PROCID");
  if (procid && procid->value != launch.rank.value)
    throw UsageError(fmt::format("{}, but {}: start all processes with srun, or all with mpirun",
                                 variables.show(launch.rank.variable), variables.show("SLURM_PROCID")));
  const std::string_view name = "SLURM_STEP_TASKS_PER_NODE";
  if (!variables.has(name) || !launch.node_rank) return;
  const auto contradicts = [&](const std::string& other) {
    return UsageError(fmt::format("{} contradicts {}: start the program with srun again", variables.show(name),
                                  variables.show(other)));
  };
  const std::vector<int> tasks = variables.expanded(name, expand_tasks_per_node);
  const auto node = static_cast<std::size_t>(launch.node_rank->value);
  if (node >= tasks.size()) throw contradicts(launch.node_rank->variable);
  if (std::accumulate(tasks.begin(), tasks.end(), std::int64_t{0}) != launch.world_size.value)
    throw contradicts(launch.world_size.variable);
  launch.local_size = {tasks[node], std::string(name)};
}

void require_one_agent_per_node(const Variables& variables, Nodes& nodes) {
  const auto tasks = variables.number("SLURM_STEP_NUM_TASKS");
  if (tasks && nodes.node_count && tasks->value != nodes.node_count->value)
    throw UsageError(fmt::format("{}, but {}: start one mnrun per node (srun --ntasks-per-node=1)",
                                 variables.show("SLURM_STEP_NUM_TASKS"), variables.show(nodes.node_count->variable)));
}

// jsrun does not number the nodes. If it starts one process per node, the ranks are the node ranks.
void number_by_jsrun(const Variables& variables, Nodes& nodes) {
  if (variables.number("JSM_NAMESPACE_LOCAL_SIZE").value_or(FromVariable<int>{}).value != 1) return;
  nodes.node_rank = variables.number("JSM_NAMESPACE_RANK");
  nodes.node_count = variables.number("JSM_NAMESPACE_SIZE");
}

// WORLD_SIZE is the number of pods in some versions of the operator and of processes in others. It is unambiguous only
// if the two are equal, so a pod with several processes needs an agent that starts them.
void require_one_process_per_pod(const Variables& variables, Launch&) {
  constexpr std::string_view remedy = "start the processes of this pod with mnrun or torchrun";
  if (parse_decimal<std::int64_t>(variables.text("PET_NPROC_PER_NODE")).value_or(1) != 1)
    throw UsageError(fmt::format("{}: {}", variables.show("PET_NPROC_PER_NODE"), remedy));
  const auto pods = variables.number("PET_NNODES"), processes = variables.number("WORLD_SIZE");
  if (pods && processes && processes->value != pods->value)
    throw UsageError(fmt::format("{} counts processes, but {} counts pods: {}", variables.show("WORLD_SIZE"),
                                 variables.show("PET_NNODES"), remedy));
  const auto pod = variables.number("PET_NODE_RANK"), rank = variables.number("RANK");
  if (pod && rank && pod->value != rank->value)
    throw UsageError(fmt::format("{}, but {}: {}", variables.show("RANK"), variables.show("PET_NODE_RANK"), remedy));
}

bool started_on_one_replica(const Variables& variables) { return variables.is("NGC_ARRAY_TYPE", "MPIJob"); }

// A task of pbsdsh has the number of its node. OpenPBS 23.06 gives it PBS_NODEFILE too, but not on the first node. The
// job's script runs on the first node only, so its node count is set only if that is the only node.
void number_in_pbs(const Variables& variables, Nodes& nodes) {
  if (!variables.has("PBS_NODEFILE")) return;
  const auto hosts = variables.node_file("PBS_NODEFILE"), names = distinct(hosts);
  const auto node = static_cast<std::size_t>(nodes.node_rank.value_or(FromVariable<int>{}).value);
  if (nodes.node_rank || names.size() == 1) nodes.node_count = {static_cast<int>(names.size()), "PBS_NODEFILE"};
  if (node < names.size())
    nodes.processes_per_node = {static_cast<int>(std::count(hosts.begin(), hosts.end(), names[node])), "PBS_NODEFILE"};
}

void require_one_slot_per_node(const Variables& variables, Launch&) {
  if (!variables.has("PBS_NODEFILE"))
    throw UsageError(variables.show("PBS_TASKNUM") +
                     ": pbsdsh sets no world size: start the program with mpirun, "
                     "or set PBS_NODEFILE to a copy of the job's node file that all nodes can read");
  const auto hosts = variables.node_file("PBS_NODEFILE");
  const auto nodes = distinct(hosts).size();
  if (hosts.size() != nodes)
    throw UsageError(fmt::format("{} has {} slots on {} nodes: start the processes of a node with mnrun or torchrun",
                                 variables.show("PBS_NODEFILE"), hosts.size(), nodes));
}

struct Numbers {
  std::string_view rank = "", world_size = "", local_rank = "", local_size = "", node_rank = "", node_count = "";
};

enum class Port { none, of_job, customary };

using Conditions = std::array<std::string_view, 5>;  // see Variables::meet()

// A launcher, or a batch system that runs a script. Each string_view is the name of a variable; "": none.
struct Row {
  std::string_view launcher = "none";          // none: one process
  Conditions known_by = {};                    // all must hold
  bool (*unless)(const Variables&) = nullptr;  // if this holds, read_launch skips the row

  Numbers numbers = {};                         // without a rank: one process per node or pod
  std::array<std::string_view, 2> run_id = {};  // the run's, or a job's and its step's
  std::string_view attempt = "";

  // How the processes meet: in MPI_Init if `mpi` is set, in the launcher's store, or at a master.
  std::string_view mpi = "";
  std::string_view store = "";  // host:port/token of a TcpStore
  // The master: MASTER_ADDR and MASTER_PORT take precedence, then these in this order.
  std::string_view address = "";
  std::string_view endpoint = "";                   // host:port
  std::array<std::string_view, 2> host_lists = {};  // the first host of Slurm's list
  std::string_view node_file = "";                  // the first host in the file
  std::string_view port = "";
  Port port_otherwise = Port::none;

  // What read_nodes needs.
  std::string_view batch_system = "";                       // its name; "": read_nodes skips the row
  std::array<std::string_view, 2> processes_per_node = {};  // the first that is a number

  // What the columns cannot express.
  void (*number_nodes)(const Variables&, Nodes&) = nullptr;
  void (*finish)(const Variables&, Launch&) = nullptr;  // in read_launch
  void (*nodes)(const Variables&, Nodes&) = nullptr;    // in read_nodes
};

constexpr Numbers torch_numbers = {"RANK",       "WORLD_SIZE",      "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                                   "GROUP_RANK", "GROUP_WORLD_SIZE"};
constexpr Numbers hydra_numbers = {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};

constexpr Row srun = {
    .launcher = "srun",
    .known_by = {"SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"},
    .unless = ranked_inside_srun,
    .numbers = {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "", "SLURM_NODEID", "SLURM_STEP_NUM_NODES"},
    .run_id = {"SLURM_JOB_ID", "SLURM_STEP_ID"},
    .attempt = "SLURM_RESTART_COUNT",
    .host_lists = {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"},
    .port_otherwise = Port::of_job,
    .batch_system = "Slurm",
    .finish = finish_srun,
    .nodes = require_one_agent_per_node};

constexpr Row srun_with(std::string_view launcher, std::string_view rank, std::string_view world_size) {
  Row row = srun;
  row.launcher = launcher;
  row.known_by = {rank, "SLURM_STEP_ID", "SLURM_LOCALID"};
  row.numbers.rank = row.mpi = rank;
  row.numbers.world_size = world_size;
  return row;
}

// A pod of PyTorch. The first two of `known_by` are its number and the number of pods.
constexpr Row pod(std::string_view launcher, std::string_view batch_system, const Conditions& known_by) {
  return {.launcher = launcher,
          .known_by = known_by,
          .numbers = {.node_rank = known_by[0], .node_count = known_by[1]},
          .address = "PET_MASTER_ADDR",
          .endpoint = "PET_RDZV_ENDPOINT",
          .port = "PET_MASTER_PORT",
          .batch_system = batch_system,
          .processes_per_node = {"PET_NPROC_PER_NODE", "RUNAI_NUM_OF_GPUS"},
          .finish = require_one_process_per_pod};
}

// The innermost launcher first: launchers nest (torchrun under srun, mpirun in a batch script), and the variables of
// the outer one remain set and mislead. mnrun can stand low because its children's environment is
// without_process_variables(): another launcher's variable beside MNRUN_* means that this launcher runs inside mnrun.
// The nodes of a cluster (chapter 06) do the same.
constexpr std::array table = {
    Row{.launcher = "torchrun",
        .known_by = {"TORCHELASTIC_RUN_ID", "LOCAL_RANK"},
        .numbers = torch_numbers,
        .run_id = {"TORCHELASTIC_RUN_ID"},
        .attempt = "TORCHELASTIC_RESTART_COUNT",
        .finish = finish_torchrun},
    // OMPI_COMM_WORLD_NODE_RANK is not the node rank: it numbers this node's processes over all jobs.
    Row{.launcher = "Open MPI",
        .known_by = {"OMPI_COMM_WORLD_RANK"},
        .numbers = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                    "OMPI_COMM_WORLD_LOCAL_SIZE"},
        .run_id = {"PMIX_NAMESPACE"},
        .mpi = "OMPI_COMM_WORLD_RANK"},
    Row{.launcher = "Intel MPI",
        .known_by = {"PMI_RANK", "MPI_LOCALRANKID", "I_MPI_HYDRA_UUID"},
        .numbers = hydra_numbers,
        .run_id = {"I_MPI_HYDRA_UUID"},
        .mpi = "PMI_RANK"},
    Row{.launcher = "MPICH", .known_by = {"PMI_RANK", "MPI_LOCALRANKID"}, .numbers = hydra_numbers, .mpi = "PMI_RANK"},
    srun_with("srun --mpi=pmi2", "PMI_RANK", "PMI_SIZE"),
    srun_with("srun --mpi=pmix", "PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
    // HOROVOD_GLOO_RENDEZVOUS_ADDR is Horovod's own store on the host of horovodrun, which may not be that of rank 0.
    Row{.launcher = "Horovod",
        .known_by = {"HOROVOD_RANK", "HOROVOD_SIZE"},
        .numbers = {"HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_RANK",
                    "HOROVOD_CROSS_SIZE"}},
    Row{.launcher = "jsrun",
        .known_by = {"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"},
        .numbers = {"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"},
        .run_id = {"LSB_JOBID"},
        .mpi = "JSM_NAMESPACE_RANK",
        .node_file = "LSB_DJOB_RANKFILE",
        .port_otherwise = Port::of_job,
        .batch_system = "LSF",
        .nodes = number_by_jsrun},
    // A batch script also has SLURM_PROCID and SLURM_NTASKS, but no SLURM_STEP_*: it is one process.
    srun,
    Row{.launcher = "cluster",  // chapter 06's
        .known_by = {"CLUSTER_STORE", "CLUSTER_JOB_ID"},
        .numbers = torch_numbers,
        .run_id = {"CLUSTER_JOB_ID"},
        .attempt = "CLUSTER_RESTART_COUNT",
        .store = "CLUSTER_STORE"},
    Row{.launcher = "mnrun",
        .known_by = {"MNRUN_STORE", "MNRUN_RUN_ID"},
        .numbers = torch_numbers,
        .run_id = {"MNRUN_RUN_ID"},
        .attempt = "MNRUN_RESTART_COUNT",
        .store = "MNRUN_STORE"},
    Row{.launcher = "Ray Train",
        .known_by = {"RAY_JOB_ID", "RANK", "LOCAL_RANK"},
        .numbers = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK"}},
    Row{.launcher = "bcprun",
        .known_by = {"NGC_ARRAY_INDEX", "RANK", "LOCAL_RANK"},
        .numbers = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "", "NGC_ARRAY_INDEX"}},
    Row{.launcher = "torch.distributed.launch",
        .known_by = {"RANK", "LOCAL_RANK", "WORLD_SIZE"},
        .numbers = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}},
    pod("Kubeflow PyTorchJob pod", "Kubeflow PyTorchJob", {"PET_NODE_RANK", "PET_NNODES", "RANK"}),
    pod("Kubeflow Trainer pod", "Kubeflow Trainer", {"PET_NODE_RANK", "PET_NNODES"}),
    pod("Run:ai pod", "Run:ai", {"RANK", "WORLD_SIZE", "RUNAI_NUM_OF_GPUS", "!LOCAL_RANK"}),
    pod("pod", "pod", {"RANK", "WORLD_SIZE", "!LOCAL_RANK"}),  // PyTorchJob before 1.9
    Row{.launcher = "BCP replica",
        .known_by = {"NGC_ARRAY_INDEX", "NGC_ARRAY_SIZE"},
        .unless = started_on_one_replica,
        .numbers = {.node_rank = "NGC_ARRAY_INDEX", .node_count = "NGC_ARRAY_SIZE"},
        .run_id = {"NGC_JOB_ID"},
        .address = "NGC_MASTER_ADDR",
        .port_otherwise = Port::customary,
        .batch_system = "BCP",
        .processes_per_node = {"NGC_NTASKS_PER_NODE", "NGC_GPUS_PER_NODE"}},
    // A job's script is task 1. Slurm also sets these variables, for scripts that were written for PBS.
    Row{.launcher = "pbsdsh",
        .known_by = {"PBS_NODENUM", "PBS_TASKNUM", "PBS_TASKNUM!=1", "PBS_JOBID", "!SLURM_JOB_ID"},
        .numbers = {.node_rank = "PBS_NODENUM"},
        .run_id = {"PBS_JOBID"},
        .node_file = "PBS_NODEFILE",
        .port_otherwise = Port::of_job,
        .batch_system = "PBS",
        .number_nodes = number_in_pbs,
        .finish = require_one_slot_per_node},
    // Batch scripts, which are one process. Slurm's runs on the first node only and does not count the other nodes.
    Row{.known_by = {"SLURM_JOB_ID"}, .batch_system = "Slurm (batch script)"},
    Row{.known_by = {"PBS_JOBID"},
        .run_id = {"PBS_JOBID"},
        .node_file = "PBS_NODEFILE",
        .port_otherwise = Port::of_job,
        .batch_system = "PBS",
        .number_nodes = number_in_pbs},
    Row{.known_by = {"LSB_JOBID"},
        .run_id = {"LSB_JOBID"},
        .node_file = "LSB_DJOB_RANKFILE",
        .port_otherwise = Port::of_job,
        .batch_system = "LSF"},
    Row{.batch_system = "none"},
};

bool matches(const Row& row, const Variables& variables) {
  return std::all_of(row.known_by.begin(), row.known_by.end(),
                     [&](std::string_view condition) { return condition.empty() || variables.meet(condition); });
}

Nodes read_row(const Row& row, const Variables& variables) {
  Nodes nodes;
  if (!row.batch_system.empty()) nodes.source = row.batch_system;
  FromVariable<std::string>& address = nodes.master_address;
  FromVariable<std::uint16_t>& port = nodes.master_port;
  nodes.node_rank = variables.number(row.numbers.node_rank);
  nodes.node_count = variables.number(row.numbers.node_count);
  // Skips gpu, cpu and auto, which mnrun interprets itself.
  for (const std::string_view name : row.processes_per_node)
    if (!nodes.processes_per_node && parse_decimal<std::int64_t>(variables.text(name)))
      nodes.processes_per_node = variables.number(name);
  address = variables.address(variables.text("MASTER_ADDR").empty() ? row.address : "MASTER_ADDR");
  port = variables.port(variables.has("MASTER_PORT") ? "MASTER_PORT" : row.port);
  if (address.value.empty() && variables.has(row.endpoint)) {
    const Endpoint endpoint = parse_endpoint(variables.text(row.endpoint), row.endpoint);
    address = {endpoint.host, std::string(row.endpoint)};
    port = {endpoint.port, std::string(row.endpoint)};
  }
  for (const std::string_view list : row.host_lists)
    if (address.value.empty() && variables.has(list))
      address = {variables.expanded(list, expand_host_list).front(), std::string(list)};
  if (address.value.empty() && variables.has(row.node_file))
    address = {variables.node_file(row.node_file).front(), std::string(row.node_file)};
  if (row.number_nodes) row.number_nodes(variables, nodes);
  if (port.value == 0 && row.port_otherwise == Port::of_job && variables.has(row.run_id[0]))
    port = {port_of_job(variables.text(row.run_id[0]), variables.text(row.run_id[1])), std::string(row.run_id[0])};
  if (port.value == 0 && row.port_otherwise == Port::customary && !address.value.empty()) port = {customary_port, ""};
  return nodes;
}

void require_consistent(const Launch& launch) {
  const FromVariable<int>& local_size = launch.local_size ? *launch.local_size : launch.world_size;
  require_less(launch.rank, launch.world_size);
  require_less(launch.local_rank, local_size);
  require_less(local_size, launch.world_size, true);
  if (launch.node_rank && launch.node_count) require_less(*launch.node_rank, *launch.node_count);
  if (launch.node_count) require_less(*launch.node_count, launch.world_size, true);
  if (launch.under_mpi || launch.launcher_store || launch.world_size.value == 1) return;
  const auto& [address, port] = std::tie(launch.master_address, launch.master_port);
  if (address.value.empty() && port.value != 0)
    throw UsageError(
        fmt::format("{}={}, but MASTER_ADDR is not set: set it to the host of rank 0", port.variable, port.value));
  if (port.value == 0 && !address.value.empty())
    throw UsageError(fmt::format("{}={}, but MASTER_PORT is not set: set it to a port that is free on that host",
                                 address.variable, address.value));
}

// For a process that matches no row: throws if some launcher started several processes, because this one would take
// itself for the only one.
void require_alone(const Variables& variables) {
  for (const std::string_view name : {"PMI_RANK", "PMI_ID", "PMIX_RANK"})
    if (variables.has(name))
      throw UsageError(variables.show(name) +
                       " is set, but the number of processes is not: start the program with "
                       "mpirun (without -pmi-port), srun or mnrun, or unset it");
  if (variables.has("PET_NNODES") && !variables.is("PET_NNODES", "1"))
    throw UsageError(variables.show("PET_NNODES") +
                     " without PET_NODE_RANK: start the processes of this pod with mnrun or torchrun");
  for (const std::string_view name : {"RANK", "LOCAL_RANK", "WORLD_SIZE"})
    if (variables.number(name))
      throw UsageError(fmt::format("{0} without {1}: also set {1}, or unset {2}", variables.show(name),
                                   variables.has("RANK") ? "WORLD_SIZE" : "RANK", name));
}

// A trailing * matches any suffix. Not all of OMPI_* and PMIX_*: OMPI_MCA_btl and others are the user's settings.
constexpr auto process_variables = std::to_array<std::string_view>(
    {// torchrun, mnrun, cluster, Ray Train, torch.distributed.launch
     "TORCHELASTIC_*", "MNRUN_*", "CLUSTER_JOB_ID", "CLUSTER_RESTART_COUNT", "CLUSTER_STORE", "RANK", "LOCAL_RANK",
     "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK",
     "ROLE_WORLD_SIZE",
     // Open MPI and PMIx
     "OMPI_COMM_WORLD_*", "OMPI_UNIVERSE_SIZE", "OMPI_WORLD_SIZE", "OMPI_WORLD_LOCAL_SIZE", "OMPI_APP_CTX_NUM_PROCS",
     "OMPI_FIRST_RANKS", "OMPI_NUM_APP_CTX", "OMPI_FILE_LOCATION", "OMPI_COMMAND", "OMPI_ARGV", "OMPI_MCA_ess",
     "OMPI_MCA_ess_base_*", "OMPI_MCA_pmix", "OMPI_MCA_initial_wdir", "OMPI_MCA_num_procs", "OMPI_MCA_orte_hnp_uri",
     "OMPI_MCA_orte_local_daemon_uri", "OMPI_MCA_orte_ess_*", "OMPI_MCA_orte_launch", "OMPI_MCA_orte_app_num",
     "OMPI_MCA_orte_num_nodes", "OMPI_MCA_orte_node_regex", "OMPI_MCA_orte_jobfam_session_dir",
     "OMPI_MCA_orte_top_session_dir", "OMPI_MCA_orte_tmpdir_base", "OMPI_MCA_orte_precondition_transports",
     "OMPI_MCA_orte_bound_at_launch", "OMPI_MCA_orte_externally_bound", "ORTE_SCHIZO_DETECTION", "PRTE_LAUNCHED",
     "PMIX_RANK", "PMIX_NAMESPACE", "PMIX_ID", "PMIX_SERVER_*", "PMIX_DSTORE_*", "PMIX_HOSTNAME", "PMIX_VERSION",
     "PMIX_GDS_MODULE", "PMIX_BFROP_BUFFER_TYPE", "PMIX_SECURITY_MODE", "PMIX_SYSTEM_TMPDIR",
     // MPICH, Intel MPI, PMI-1 and PMI-2
     "PMI_*", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "HYDI_CONTROL_FD", "HYDRA_BSTRAP_*", "I_MPI_HYDRA_UUID",
     // Horovod, jsrun
     "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_*", "HOROVOD_CROSS_*", "HOROVOD_GLOO_RENDEZVOUS_*",
     "JSM_NAMESPACE_*",
     // srun: its tasks, not its job
     "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_STEPID", "SLURM_STEP_*", "SLURM_PMI*",
     "SLURM_TASK_PID", "SLURM_SRUN_COMM_*"});

}  // namespace

Environment current_environment() {
  Environment result;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto equals = text.find('=');
    if (equals != std::string_view::npos && equals > 0) result.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return result;
}

SecretSource read_secret_source(const Environment& environment) {
  const auto value = [&](std::string_view name) {
    const auto found = environment.find(name);
    return found == environment.end() ? "" : found->second;
  };
  SecretSource source{value("MULTINODE_SECRET"), value("MULTINODE_SECRET_FILE"), false};
  if (!source.file.empty()) return source;
  const std::string home = value("HOME");
  return {source.secret, home.empty() ? "" : home + "/.multinode/secret", true};
}

Launch read_launch(const Environment& environment) {
  const Variables variables(environment);
  const Row& row = *std::find_if(table.begin(), table.end(), [&](const Row& r) {
    return matches(r, variables) && !(r.unless && r.unless(variables));
  });
  Launch launch;
  launch.secret_source = read_secret_source(environment);
  if (row.launcher == launch.launcher) {
    require_alone(variables);
    return launch;
  }
  static_cast<Nodes&>(launch) = read_row(row, variables);
  launch.launcher = row.launcher;
  if (row.numbers.rank.empty()) {
    launch.rank = launch.node_rank.value_or(launch.rank);
    launch.world_size = launch.node_count.value_or(launch.world_size);
    launch.local_size = {1, ""};
  } else {
    const auto required = [&](std::string_view name) {
      if (const auto given = variables.number(name)) return *given;
      throw UsageError(fmt::format("{}, but {} is not set: start the program with {} itself, or unset {}",
                                   variables.show(row.known_by[0]), name, row.launcher, row.known_by[0]));
    };
    launch.rank = required(row.numbers.rank);
    launch.world_size = required(row.numbers.world_size);
    launch.local_rank = required(row.numbers.local_rank);
    launch.local_size = variables.number(row.numbers.local_size);
  }
  launch.run_id = variables.text(row.run_id[0]);
  if (!row.run_id[1].empty()) launch.run_id += "." + variables.text(row.run_id[1]);
  launch.attempt = variables.number(row.attempt).value_or(FromVariable<int>{}).value;
  launch.under_mpi = variables.has(row.mpi);
  if (!row.store.empty())
    launch.launcher_store = {parse_store_place(variables.text(row.store), row.store), std::string(row.store)};
  if (row.finish) row.finish(variables, launch);
  require_consistent(launch);
  return launch;
}

std::vector<std::string_view> launchers() {
  std::vector<std::string_view> names;
  for (const Row& row : table)
    if (row.launcher != Row{}.launcher) names.push_back(row.launcher);
  return names;
}

Nodes read_nodes(const Environment& environment) {
  const Variables variables(environment);
  const Row& row = *std::find_if(table.begin(), table.end(),
                                 [&](const Row& r) { return !r.batch_system.empty() && matches(r, variables); });
  Nodes nodes = read_row(row, variables);
  if (row.nodes) row.nodes(variables, nodes);
  // A job's port is useless without an address.
  if (nodes.master_address.value.empty() && nodes.master_port.variable == row.run_id[0]) nodes.master_port = {};
  if (nodes.node_rank && nodes.node_count) require_less(*nodes.node_rank, *nodes.node_count);
  return nodes;
}

Environment without_process_variables(Environment environment) {
  std::erase_if(environment, [](const auto& variable) {
    return std::ranges::any_of(process_variables, [&](std::string_view name) {
      return name.ends_with('*') ? variable.first.starts_with(name.substr(0, name.size() - 1)) : variable.first == name;
    });
  });
  return environment;
}

std::string attempt_name(const Launch& launch) { return fmt::format("{}/{}", launch.run_id, launch.attempt); }

}  // namespace multinode
