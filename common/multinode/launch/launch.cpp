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
#include <fstream>
#include <iterator>
#include <numeric>
#include <regex>
#include <set>
#include <sstream>
#include <tuple>

namespace multinode {
namespace {

constexpr std::uint16_t customary_port = 29'500;  // torch's

// The names of launchers' processes, beside mpirun*, mpiexec* and hydra_*. pt_elastic is torchrun.
constexpr std::string_view launcher_processes[] = {"orterun",    "orted",      "prterun",   "prted",    "srun",
                                                   "slurmstepd", "jsrun",      "mnrun",     "torchrun", "pt_elastic",
                                                   "mpispawn",   "flux-shell", "horovodrun"};

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

  // "NAME": the variable is set; "!NAME": it is not; "NAME!=value": it is not set to this value; "NAME=$OTHER": both
  // have the same value; "A|B": one of these conditions holds.
  bool meet(std::string_view condition) const {
    if (const std::size_t bar = condition.find('|'); bar != condition.npos)
      return meet(condition.substr(0, bar)) || meet(condition.substr(bar + 1));
    if (condition.starts_with('!')) return !has(condition.substr(1));
    if (const std::size_t at = condition.find("!="); at != condition.npos)
      return !is(condition.substr(0, at), condition.substr(at + 2));
    if (const std::size_t at = condition.find("=$"); at != condition.npos)
      return text(condition.substr(0, at)) == text(condition.substr(at + 2));
    return has(condition);
  }

  std::optional<FromVariable<int>> number(std::string_view name) const {
    if (!has(name)) return std::nullopt;
    std::string value = text(name);
    if (const auto colon = value.find(':'); name == "PET_NNODES" && value.substr(0, colon) == value.substr(colon + 1))
      value.resize(std::min(colon, value.size()));  // torchrun's MIN:MAX
    if (const auto number = parse_decimal<int>(value)) return FromVariable<int>{*number, std::string(name)};
    throw UsageError(fmt::format("{} is not a number from 0 to {}: correct it", show(name), INT_MAX));
  }

  int number_or_0(std::string_view name) const { return number(name).value_or(FromVariable<int>{}).value; }

  FromVariable<std::uint16_t> port(std::string_view name) const {
    if (!has(name)) return {};
    const auto value = parse_decimal<std::uint16_t>(text(name));
    if (!value || *value == 0) throw UsageError(show(name) + " is not a port: set it to a number from 1 to 65535");
    return {*value, std::string(name)};
  }

  FromVariable<std::string> address(std::string_view name) const {
    if (text(name).empty()) return {};
    return {parse_host(text(name), name), std::string(name)};
  }

  // What `expand` makes of the value; its error is prefixed with the variable's name.
  template <class Expand>
  auto expanded(std::string_view name, Expand expand) const try {
    return expand(text(name));
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: {}", name, error.what()));
  }

  auto node_file(std::string_view name) const { return expanded(name, hosts_in_file); }

  // "node0 2 node1 1": a host for each of its slots.
  std::vector<std::string> hosts_with_slots(std::string_view name) const {
    std::vector<std::string> hosts;
    std::istringstream words(text(name));
    std::size_t slots = 0;
    for (std::string host; words >> host; hosts.insert(hosts.end(), slots, host))
      if (!is_host_name(host) || !(words >> slots) || slots == 0 || slots > max_hosts) break;
    if (hosts.empty() || !words.eof()) throw UsageError(show(name) + " is not a list of hosts and slots: correct it");
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
  throw UsageError(fmt::format("{}={} {} {}={}: correct one of them", name(low, "the rank"), low.value,
                               or_equal ? "exceeds" : "must be less than", name(high, "the size"), high.value));
}

// Of the rows: what is special about a launcher.

template <class Find>
void find_master(Nodes& nodes, std::string_view variable, Find find) {
  if (nodes.master_address.value.empty()) nodes.master_address = {find(), std::string(variable)};
}

void choose_port(const Variables& variables, Nodes& nodes, std::string_view job, std::string_view step = "") {
  if (nodes.master_port.value == 0 && variables.has(job))
    nodes.master_port = {port_of_job(variables.text(job), variables.text(step)), std::string(job)};
}

void under_torchrun(const Variables& variables, Launch& launch) {
  launch.agent_store = variables.is("TORCHELASTIC_USE_AGENT_STORE", "True");
  if (launch.agent_store && (launch.master_address.value.empty() || launch.master_port.value == 0))
    throw UsageError(
        fmt::format("TORCHELASTIC_USE_AGENT_STORE=True, but {} is not set: start the program with torchrun",
                    launch.master_port.value ? "MASTER_ADDR" : "MASTER_PORT"));
}

void under_mpirun(const Variables&, Launch& launch) { launch.under_mpi = true; }

void under_pmi(const Variables& variables, Launch& launch) {
  launch.under_mpi = variables.has("PMI_RANK") || variables.has("PMIX_RANK");
}

// Cray's mpiexec sets the world size for PMI only.
void under_pals(const Variables& variables, Launch& launch) {
  under_pmi(variables, launch);
  if (!variables.has("PBS_NODEFILE")) return;
  if (launch.world_size.variable.empty() && launch.local_size)
    launch.world_size = {
        static_cast<int>(distinct(variables.node_file("PBS_NODEFILE")).size()) * launch.local_size->value,
        "PBS_NODEFILE"};
  if (launch.under_mpi) return;
  find_master(launch, "PBS_NODEFILE", [&] { return variables.node_file("PBS_NODEFILE").front(); });
  choose_port(variables, launch, "PBS_JOBID");
}

// The host of task 0. With a host file it is that of the first line, and Slurm's lists are sorted.
void find_master_of_step(const Variables& variables, Launch& launch) {
  if (variables.has("SLURM_HOSTFILE") || variables.text("SLURM_DISTRIBUTION").starts_with("arbitrary")) {
    if (!launch.under_mpi)
      find_master(launch, "SLURM_HOSTFILE", [&] { return variables.node_file("SLURM_HOSTFILE").front(); });
  } else {
    for (const std::string_view list : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"})
      if (variables.has(list))
        find_master(launch, list, [&] { return variables.expanded(list, expand_host_list).front(); });
  }
  choose_port(variables, launch, "SLURM_JOB_ID", "SLURM_STEP_ID");
}

void under_srun(const Variables& variables, Launch& launch) {
  launch.run_id = variables.text("SLURM_JOB_ID") + "." + variables.text("SLURM_STEP_ID");
  launch.attempt = variables.number_or_0("SLURM_RESTART_COUNT");
  launch.under_mpi = launch.rank.variable != "SLURM_PROCID";
  const auto procid = variables.number("SLURM_PROCID");
  if (procid && procid->value != launch.rank.value)
    throw UsageError(fmt::format("{}, but {}: start all processes with srun, or all with mpirun",
                                 variables.show(launch.rank.variable), variables.show("SLURM_PROCID")));
  find_master_of_step(variables, launch);
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

// The slots of an LSF job. On machines with jsrun the first is the launch node's, which runs no rank: it has one slot,
// and there is a host more than the ranks fill.
void in_lsf(const Variables& variables, Launch& launch) {
  launch.under_mpi = variables.has("JSM_NAMESPACE_RANK");
  const std::string_view name = variables.has("LSB_DJOB_RANKFILE") ? "LSB_DJOB_RANKFILE" : "LSB_MCPU_HOSTS";
  if (variables.has(name))
    find_master(launch, name, [&] {
      const auto slots = name == "LSB_MCPU_HOSTS" ? variables.hosts_with_slots(name) : variables.node_file(name);
      const auto hosts = distinct(slots);
      const auto filled = static_cast<int>(hosts.size()) * launch.local_size.value_or(FromVariable<int>{}).value;
      const bool launches = launch.under_mpi && hosts.size() > 1 && std::ranges::count(slots, hosts[0]) == 1;
      return hosts[launches && filled != launch.world_size.value ? 1 : 0];
    });
  choose_port(variables, launch, "LSB_JOBID");
}

// The first of the variables that is a number, or one of torchrun's words for it.
void count_processes(const Variables& variables, Nodes& nodes, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    const std::string text = variables.text(name);
    const bool is_count = parse_decimal<int>(text) || text == "gpu" || text == "cpu" || text == "auto";
    if (is_count && !nodes.processes_per_node) nodes.processes_per_node = {text, std::string(name)};
  }
}

void in_pod(const Variables& variables, Launch& launch) {
  count_processes(variables, launch, {"PET_NPROC_PER_NODE", "RUNAI_NUM_OF_GPUS"});
  if (launch.master_address.value.empty()) launch.master_address = variables.address("PET_MASTER_ADDR");
  if (launch.master_port.value == 0) launch.master_port = variables.port("PET_MASTER_PORT");
  const std::string_view endpoint = "PET_RDZV_ENDPOINT";
  if (!launch.master_address.value.empty() || !variables.has(endpoint)) return;
  const Endpoint place = parse_endpoint(variables.text(endpoint), endpoint);
  launch.master_address = {place.host, std::string(endpoint)};
  launch.master_port = {place.port, std::string(endpoint)};
}

// A replica of BCP, or a pod of a LeaderWorkerSet.
void in_replica(const Variables& variables, Launch& launch) {
  count_processes(variables, launch, {"NGC_NTASKS_PER_NODE", "NGC_GPUS_PER_NODE"});
  for (const std::string_view leader : {"NGC_MASTER_ADDR", "LWS_LEADER_ADDRESS"})
    if (launch.master_address.value.empty()) launch.master_address = variables.address(leader);
  if (launch.master_port.value == 0 && !launch.master_address.value.empty()) launch.master_port = {customary_port, ""};
}

// A task of pbsdsh has the number of its node. OpenPBS 23.06 gives it PBS_NODEFILE too, but not on the first node. The
// job's script runs on the first node only, so its node count is set only if that is the only node.
void in_pbs(const Variables& variables, Launch& launch) {
  const std::string_view file = "PBS_NODEFILE";
  if (variables.has(file)) {
    const auto hosts = variables.node_file(file), names = distinct(hosts);
    const auto node = static_cast<std::size_t>(launch.node_rank.value_or(FromVariable<int>{}).value);
    if (launch.node_rank || names.size() == 1) launch.node_count = {static_cast<int>(names.size()), std::string(file)};
    if (node < names.size())
      launch.processes_per_node = {std::to_string(std::ranges::count(hosts, names[node])), std::string(file)};
    find_master(launch, file, [&] { return hosts.front(); });
  }
  choose_port(variables, launch, "PBS_JOBID");
}

struct Numbers {
  std::string_view rank = "", world_size = "", local_rank = "", local_size = "", node_rank = "", node_count = "";
};

// A launcher, or a batch system that runs a script. Each string_view is the name of a variable; "": none.
struct Row {
  std::string_view launcher;                             // "": a script of a batch system, which is one process
  std::array<std::string_view, 5> known_by;              // all must hold: see Variables::meet()
  Numbers numbers = {};                                  // without a rank: one process per node or pod
  void (*special)(const Variables&, Launch&) = nullptr;  // where its processes meet, and what no column expresses
  std::string_view run_id = "";                          // the name of the run
  std::string_view attempt = "";                         // how often the run has been started again
  std::string_view store = "";                           // where the launcher's own TcpStore is
};

constexpr Numbers torch_numbers = {"RANK",       "WORLD_SIZE",      "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                                   "GROUP_RANK", "GROUP_WORLD_SIZE"};
constexpr Numbers hydra_numbers = {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
constexpr Numbers jsm_numbers = {"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK",
                                 "JSM_NAMESPACE_LOCAL_SIZE"};
constexpr Numbers srun_numbers(std::string_view rank, std::string_view world_size) {
  return {rank, world_size, "SLURM_LOCALID", "", "SLURM_NODEID", "SLURM_STEP_NUM_NODES"};
}
constexpr Numbers nodes(std::string_view rank, std::string_view count) {
  return {.node_rank = rank, .node_count = count};
}

// srun is the innermost launcher unless one inside it, such as Ray on Slurm, has set RANK and the related variables to
// other numbers than srun's. Beside MNRUN_STORE or CLUSTER_STORE they are those of mnrun or the cluster around srun.
constexpr std::string_view rank_is_sruns = "!RANK|!LOCAL_RANK|!WORLD_SIZE|MNRUN_STORE|CLUSTER_STORE|RANK=$SLURM_PROCID",
                           size_is_sruns =
                               "!RANK|!LOCAL_RANK|!WORLD_SIZE|MNRUN_STORE|CLUSTER_STORE|"
                               "WORLD_SIZE=$SLURM_STEP_NUM_TASKS";

// A process's launcher is the first row whose conditions in known_by all hold. read_row() then reads the variables in
// the row's columns, and its `special` function adds what they do not say.
//
// The innermost launcher comes first: launchers nest (torchrun under srun, mpirun in a batch script), and the variables
// of the outer one remain set and mislead. mnrun can stand low because its children's environment is
// without_process_variables(): another launcher's variable beside MNRUN_* means that this launcher runs inside mnrun.
// The nodes of a cluster (chapter 06) do the same.
constexpr Row table[] = {
    // mnrun sets TORCHELASTIC_RUN_ID too, because torch looks at it, but does not say who serves torch's store.
    {"torchrun",
     {"TORCHELASTIC_RUN_ID", "LOCAL_RANK", "!MNRUN_STORE|TORCHELASTIC_USE_AGENT_STORE"},
     torch_numbers,
     under_torchrun,
     "TORCHELASTIC_RUN_ID",
     "TORCHELASTIC_RESTART_COUNT"},
    // OMPI_COMM_WORLD_NODE_RANK is not the node rank: it numbers this node's processes over all jobs.
    {"Open MPI",
     {"OMPI_COMM_WORLD_RANK"},
     {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
     under_mpirun,
     "PMIX_NAMESPACE"},
    {"Intel MPI", {"PMI_RANK", "MPI_LOCALRANKID", "I_MPI_HYDRA_UUID"}, hydra_numbers, under_mpirun, "I_MPI_HYDRA_UUID"},
    {"MPICH", {"PMI_RANK", "MPI_LOCALRANKID"}, hydra_numbers, under_mpirun},
    {"PALS",
     {"PALS_RANKID"},
     {"PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE", "PALS_NODEID"},
     under_pals,
     "PALS_APID"},
    {"Flux",  // with RANK and the related variables of a launcher inside it, that one
     {"FLUX_TASK_RANK", "!RANK|!LOCAL_RANK|!WORLD_SIZE|MNRUN_STORE|CLUSTER_STORE|RANK=$FLUX_TASK_RANK"},
     {"FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", "", "", "FLUX_JOB_NNODES"},
     under_pmi,
     "FLUX_JOB_ID"},
    {"srun --mpi=pmi2",
     {"PMI_RANK", "SLURM_STEP_ID", "SLURM_LOCALID", rank_is_sruns, size_is_sruns},
     srun_numbers("PMI_RANK", "PMI_SIZE"),
     under_srun},
    {"srun --mpi=pmix",
     {"PMIX_RANK", "SLURM_STEP_ID", "SLURM_LOCALID", rank_is_sruns, size_is_sruns},
     srun_numbers("PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
     under_srun},
    // HOROVOD_GLOO_RENDEZVOUS_ADDR is Horovod's own store on the host of horovodrun, which may not be that of rank 0.
    {"Horovod",
     {"HOROVOD_RANK", "HOROVOD_SIZE"},
     {"HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_RANK",
      "HOROVOD_CROSS_SIZE"}},
    {"jsrun", {"JSM_NAMESPACE_RANK"}, jsm_numbers, in_lsf, "LSB_JOBID"},
    // A batch script also has SLURM_PROCID and SLURM_NTASKS, but no SLURM_STEP_*: it is one process.
    {"srun",
     {"SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", rank_is_sruns, size_is_sruns},
     srun_numbers("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
     under_srun},
    {"cluster",  // chapter 06's
     {"CLUSTER_STORE", "CLUSTER_JOB_ID"},
     torch_numbers,
     nullptr,
     "CLUSTER_JOB_ID",
     "CLUSTER_RESTART_COUNT",
     "CLUSTER_STORE"},
    {"mnrun",
     {"MNRUN_STORE", "MNRUN_RUN_ID"},
     torch_numbers,
     nullptr,
     "MNRUN_RUN_ID",
     "MNRUN_RESTART_COUNT",
     "MNRUN_STORE"},
    {"Ray Train",
     {"RAY_JOB_ID", "RANK", "LOCAL_RANK"},
     {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK"}},
    {"bcprun", {"NGC_ARRAY_INDEX", "RANK", "LOCAL_RANK"}, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "", "NGC_ARRAY_INDEX"}},
    {"torch.distributed.launch",
     {"RANK", "LOCAL_RANK", "WORLD_SIZE"},
     {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}},
    {"Kubeflow pod", {"PET_NODE_RANK", "PET_NNODES"}, nodes("PET_NODE_RANK", "PET_NNODES"), in_pod},
    {"Run:ai pod", {"RANK", "WORLD_SIZE", "RUNAI_NUM_OF_GPUS"}, nodes("RANK", "WORLD_SIZE"), in_pod},
    // PyTorchJob before 1.9
    {"pod", {"RANK", "WORLD_SIZE", "KUBERNETES_SERVICE_HOST"}, nodes("RANK", "WORLD_SIZE"), in_pod},
    {"BCP replica",  // a job of type MPIJob starts one replica
     {"NGC_ARRAY_INDEX", "NGC_ARRAY_SIZE", "NGC_ARRAY_TYPE!=MPIJob"},
     nodes("NGC_ARRAY_INDEX", "NGC_ARRAY_SIZE"),
     in_replica,
     "NGC_JOB_ID"},
    {"LeaderWorkerSet pod",
     {"LWS_WORKER_INDEX", "LWS_GROUP_SIZE"},
     nodes("LWS_WORKER_INDEX", "LWS_GROUP_SIZE"),
     in_replica},
    // A job's script is task 1. Slurm also sets these variables, for scripts that were written for PBS.
    {"pbsdsh",
     {"PBS_NODENUM", "PBS_TASKNUM", "PBS_TASKNUM!=1", "PBS_JOBID", "!SLURM_JOB_ID"},
     nodes("PBS_NODENUM", ""),
     in_pbs,
     "PBS_JOBID"},
    // Batch scripts. Slurm's runs on the first node only and does not count the other nodes.
    {"", {"SLURM_JOB_ID"}},
    {"", {"PBS_JOBID"}, {}, in_pbs},
    {"", {"LSB_JOBID"}, {}, in_lsf},
    {"", {}},
};

const Row& row_of(const Variables& variables) {
  return *std::ranges::find_if(table, [&](const Row& row) {
    return std::ranges::all_of(
        row.known_by, [&](std::string_view condition) { return condition.empty() || variables.meet(condition); });
  });
}

Launch read_row(const Row& row, const Variables& variables) {
  Launch launch;
  const auto read = [&](std::string_view name, auto& to) {
    if (const auto given = variables.number(name)) to = *given;
  };
  if (!row.launcher.empty()) launch.launcher = row.launcher;
  read(row.numbers.rank, launch.rank);
  read(row.numbers.world_size, launch.world_size);
  read(row.numbers.local_rank, launch.local_rank);
  read(row.numbers.local_size, launch.local_size);
  read(row.numbers.node_rank, launch.node_rank);
  read(row.numbers.node_count, launch.node_count);
  launch.run_id = variables.text(row.run_id);
  launch.attempt = variables.number_or_0(row.attempt);
  if (!row.store.empty())
    launch.launcher_store = {parse_store_place(variables.text(row.store), row.store), std::string(row.store)};
  launch.master_address = variables.address("MASTER_ADDR");
  launch.master_port = variables.port("MASTER_PORT");
  if (row.special) row.special(variables, launch);
  for (const auto& [name, value] : {std::pair(row.numbers.rank, &launch.rank),
                                    {row.numbers.world_size, &launch.world_size},
                                    {row.numbers.local_rank, &launch.local_rank}})
    if (!name.empty() && value->variable.empty())
      throw UsageError(fmt::format("{}, but {} is not set: start the program with {} itself",
                                   variables.show(row.known_by[0]), name, row.launcher));
  return launch;
}

// A program that was started once per node or pod is its only process, unless the variables ask for more. In some
// versions of Kubeflow's operator WORLD_SIZE counts processes, in others pods.
void count_nodes(const Variables& variables, Launch& launch, std::string_view known_by) {
  constexpr std::string_view remedy = "start the processes of this node with mnrun or torchrun";
  if (!launch.node_rank || !launch.node_count)
    throw UsageError(variables.show(known_by) +
                     ", but the number of nodes is not known: start the program with mpirun, or set PBS_NODEFILE to a "
                     "copy of the job's node file that all nodes can read");
  const auto& processes = launch.processes_per_node;  // a node with several GPUs may have one process
  if (processes && parse_decimal<int>(processes->value).value_or(1) != 1 &&
      processes->variable.find("GPU") == std::string::npos)
    throw UsageError(fmt::format("{} says {} processes per node: {}", processes->variable, processes->value, remedy));
  const auto world_size = variables.number("WORLD_SIZE"), rank = variables.number("RANK");
  if (world_size && world_size->value != launch.node_count->value)
    throw UsageError(fmt::format("{} counts processes, but {} counts pods: {}", variables.show("WORLD_SIZE"),
                                 variables.show(launch.node_count->variable), remedy));
  if (rank && rank->value != launch.node_rank->value)
    throw UsageError(
        fmt::format("{}, but {}: {}", variables.show("RANK"), variables.show(launch.node_rank->variable), remedy));
  launch.rank = *launch.node_rank;
  launch.world_size = *launch.node_count;
  launch.local_size = {1, ""};
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
  // A port or a host may be what this program made of another variable, such as SLURM_JOB_ID.
  const auto found = [](const auto& given, const char* name, const char* what) {
    return given.variable == name ? fmt::format("{}={}", name, given.value)
                                  : fmt::format("the {} is {}, from {}", what, given.value, given.variable);
  };
  if (address.value.empty() && port.value != 0)
    throw UsageError(found(port, "MASTER_PORT", "port") + ", but MASTER_ADDR is not set: set it to the host of rank 0");
  if (port.value == 0 && !address.value.empty())
    throw UsageError(found(address, "MASTER_ADDR", "master") +
                     ", but MASTER_PORT is not set: set it to a port that is free on that host");
}

// Two variables by which a launcher that the table lacks says that there are several processes or nodes: their names
// begin with the same word, as those of VC_TASK_INDEX and VC_WORKER_NUM. A task of a job array (..._TASK_COUNT) and a
// shard of a test suite (CI_NODE_INDEX of CI_NODE_TOTAL) are alone; so are the scripts of Slurm, PBS and LSF, which
// have ranks.
std::optional<std::pair<std::string, std::string>> signs_of_others(const Environment& environment) {
  const std::string first =  // with these words begin the sizes and numbers of other things
      "(?!(SLURM|PBS|LSB|BATCH|BLOCK|BUILD|BUFFER|CACHE|CHUNK|CORE|CPU|DATA|FILE|GPU|IMAGE|JOB|PAGE|POOL|RUN|TEST)_)"
      "_?[^_]+_";
  const std::string one =
      "(NODE|WORKER|PROC|PROCESS|RANK|HOST|REPLICA|TRAINER|MACHINE|MEMBER|POD|PEER|GROUP|WORLD|SLICE)";
  const std::regex index(first + "(.*RANK(ID)?|(.*_)?(TASK|ROLE|" + one + ")_?(INDEX|ID|NO)|INDEX|ID)");
  const std::regex count(first + "(.*N(UM_)?(TASK|" + one + ")(S|ES)?|(.*_)?" + one +
                         "S?_(SIZE|NUM|COUNT)|SIZE|NUM|COUNT)");
  const std::regex this_host(first + "(.*_)?CURRENT_HOST"), hosts(first + "(.*_)?(HOSTS|HOSTNAMES)");
  for (const auto& [name, value] : environment) {
    const auto number = parse_decimal<std::int64_t>(value);
    if (!(number && std::regex_match(name, index)) && !std::regex_match(name, this_host)) continue;
    const std::string word = name.substr(0, name.find('_', 1) + 1);
    if (word == "PMI_" || word == "PMIX_" || name == "NODE_RANK") return {{name, name}};
    std::int64_t entries = 0;  // of all lists of hosts
    for (const auto& [other, text] : environment) {
      if (!other.starts_with(word)) continue;
      if (std::regex_match(other, hosts)) entries += 1 + std::ranges::count(text, ',');
      const auto several = parse_decimal<std::int64_t>(text).value_or(0);
      if (entries > 1 || (several > 1 && several >= number.value_or(0) && std::regex_match(other, count)))
        return {{name, other}};
    }
  }
  return std::nullopt;
}

// For a process that no launcher of the table started: throws if its variables say that there are others, because it
// would take itself for the only one.
void require_alone(const Variables& variables, const Environment& environment) {
  const std::string nodes = variables.text("PET_NNODES");
  const bool several = parse_decimal<int>(variables.text("PET_NPROC_PER_NODE")).value_or(1) != 1;
  if (several || !(nodes.empty() || nodes == "1" || nodes == "1:1"))
    throw UsageError(variables.show(several ? "PET_NPROC_PER_NODE" : "PET_NNODES") +
                     " without PET_NODE_RANK: start the processes of this pod with mnrun or torchrun, and give mnrun "
                     "--nnodes, --nproc-per-node, --rdzv-backend and --rdzv-endpoint");
  for (const std::string_view name : {"RANK", "LOCAL_RANK", "WORLD_SIZE"})
    if (variables.number(name))
      for (const std::string_view other : {"RANK", "WORLD_SIZE", "LOCAL_RANK"})
        if (!variables.has(other))
          throw UsageError(
              fmt::format("{} without {}: set RANK, WORLD_SIZE and LOCAL_RANK", variables.show(name), other));
  if (const auto signs = signs_of_others(environment))
    throw UsageError(fmt::format(
        "{}{} says that there are several processes or nodes, but their launcher is not known here: start the "
        "program with mpirun (without -pmi-port), srun or torchrun, or with mnrun and its --nnodes, "
        "--node-rank and --master-addr; for one process set RANK=0 LOCAL_RANK=0 WORLD_SIZE=1",
        variables.show(signs->first), signs->second == signs->first ? "" : " beside " + variables.show(signs->second)));
}

// The launcher's process that is an ancestor of this one: "mpirun (pid 12)"; "" if there is none. A login begins anew,
// and a step of Slurm whose name is no number has one process.
std::string launcher_above() {
  for (pid_t pid = getppid(), parent = 0; pid > 1; pid = parent) {
    const std::string process = "/proc/" + std::to_string(pid);
    std::ifstream stat(process + "/stat"), command(process + "/cmdline");
    std::string line, title;
    std::getline(stat, line), std::getline(command, title, '\0');
    const std::size_t open = line.find('('), close = line.rfind(')');
    if (close == line.npos) return "";
    const std::string name = line.substr(open + 1, close - open - 1);
    parent = std::atoi(line.substr(std::min(close + 4, line.size())).c_str());
    if (name == "sshd" || name == "sshd-session") return "";
    const std::size_t step = std::min(title.find('.'), title.size() - 1) + 1;
    if (name == "slurmstepd" && !std::isdigit(static_cast<unsigned char>(title[step]))) return "";
    if (name.starts_with("mpirun") || name.starts_with("mpiexec") || name.starts_with("hydra_") ||
        std::ranges::find(launcher_processes, name) != std::end(launcher_processes))
      return fmt::format("{} (pid {})", name, pid);
  }
  return "";
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
     "JSM_NAMESPACE_*", "PALS_*", "FLUX_TASK_*", "FLUX_JOB_SIZE", "FLUX_JOB_NNODES",
     // srun: its tasks, not its job
     "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_STEPID", "SLURM_STEP_*", "SLURM_PMI*",
     "SLURM_TASK_PID", "SLURM_SRUN_COMM_*"});

void add_variable(Environment& environment, std::string_view entry) {  // NAME=VALUE
  const auto equals = entry.find('=');
  if (equals != entry.npos && equals > 0) environment.emplace(entry.substr(0, equals), entry.substr(equals + 1));
}

}  // namespace

Environment current_environment() {
  Environment result;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) add_variable(result, *entry);
  return result;
}

Environment environment_of(pid_t pid) {
  Environment result;
  std::ifstream file(fmt::format("/proc/{}/environ", pid));
  for (std::string entry; std::getline(file, entry, '\0');) add_variable(result, entry);
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
  const Row& row = row_of(variables);
  Launch launch;
  if (!row.launcher.empty()) {
    launch = read_row(row, variables);
  } else {
    require_alone(variables, environment);
  }
  launch.secret_source = read_secret_source(environment);
  if (row.launcher.empty()) return launch;
  if (row.numbers.rank.empty()) count_nodes(variables, launch, row.known_by[0]);
  require_consistent(launch);
  return launch;
}

Launch read_launch() {
  const Launch launch = read_launch(current_environment());
  if (launch.launcher != Launch().launcher) return launch;
  if (const std::string above = launcher_above(); !above.empty())
    throw UsageError("started below " + above +
                     ", whose variables are missing, so each of its processes would take itself for the only one: keep "
                     "the environment (sudo -E, no env -i), or start the launcher below what clears it");
  return launch;
}

std::vector<std::string_view> launchers() {
  std::vector<std::string_view> names;
  for (const Row& row : table)
    if (!row.launcher.empty()) names.push_back(row.launcher);
  return names;
}

Nodes read_nodes(const Environment& environment) {
  const Variables variables(environment);
  const Row& row = row_of(variables);
  if (row.launcher.empty()) require_alone(variables, environment);
  Launch launch = read_row(row, variables);
  if (!row.numbers.rank.empty()) {
    const auto& [size, count] = std::tie(launch.world_size, launch.node_count);
    const bool one_per_node = count               ? count->value == size.value
                              : launch.local_size ? launch.local_size->value == 1
                                                  : launch.node_rank && launch.node_rank->value == launch.rank.value;
    if (!one_per_node && size.value > 1)
      throw UsageError(
          fmt::format("{} started {} processes, {}: start one mnrun per node, or give --standalone", row.launcher,
                      size.value, count ? fmt::format("but {}", variables.show(count->variable)) : "several per node"));
    launch.node_rank = launch.rank;
    launch.node_count = size;
  }
  // A job's port is useless without an address.
  if (launch.master_address.value.empty() && launch.master_port.variable != "MASTER_PORT") launch.master_port = {};
  if (launch.node_rank && launch.node_count) require_less(*launch.node_rank, *launch.node_count);
  return launch;
}

Environment without_process_variables(Environment environment) {
  std::erase_if(environment, [](const auto& variable) {
    return std::ranges::any_of(process_variables, [&](std::string_view name) {
      return name.ends_with('*') ? variable.first.starts_with(name.substr(0, name.size() - 1)) : variable.first == name;
    });
  });
  return environment;
}

Environment environment_of_process(Environment environment, bool shares_cores) {
  Environment variables = without_process_variables(std::move(environment));
  variables.emplace("PYTHONUNBUFFERED", "1");
  const auto threads = variables.find("OMP_NUM_THREADS");  // 8, or 8,2
  if (threads != variables.end() &&
      parse_decimal<int>(threads->second.substr(0, threads->second.find(','))).value_or(0) < 1)
    variables.erase(threads);
  if (shares_cores) variables.emplace("OMP_NUM_THREADS", "1");
  return variables;
}

std::string attempt_name(const Launch& launch) { return fmt::format("{}/{}", launch.run_id, launch.attempt); }

}  // namespace multinode
