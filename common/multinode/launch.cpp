#include <multinode/check.hpp>
#include <multinode/launch.hpp>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <climits>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>

namespace multinode {
namespace {

constexpr std::size_t most_hosts = 65'536;
constexpr std::size_t longest_name = 255;               // of a host, in DNS
constexpr std::uint16_t customary_port = 29'500;        // torch's, where a launcher gives an address alone
constexpr std::uintmax_t largest_node_file = 16 << 20;  // bytes: 65,536 lines of 255

// For a message: one line, however the value came to be.
std::string printable(std::string_view value) {
  std::string text(value.substr(0, 60));
  for (char& c : text)
    if (c < ' ' || c > '~') c = '?';
  return value.size() > 60 ? text + "..." : text;
}

bool is_host_character(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || c == '.';
}

// All of `text` as a decimal number without sign.
std::optional<std::int64_t> parse_decimal(std::string_view text) {
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stopped != end || text.starts_with('-')) return std::nullopt;
  return value;
}

class Variables {
 public:
  explicit Variables(const Environment& environment) : environment_(environment) {}

  const std::string* find(std::string_view name) const {
    const auto found = environment_.find(name);
    return found == environment_.end() ? nullptr : &found->second;
  }
  bool has(std::string_view name) const { return find(name) != nullptr; }
  bool is(std::string_view name, std::string_view value) const { return has(name) && *find(name) == value; }
  std::string text(std::string_view name) const { return has(name) ? *find(name) : std::string(); }

  // "NAME=value", for a message.
  std::string show(std::string_view name) const { return std::string(name) + "=" + printable(text(name)); }

  std::optional<Given<int>> number(std::string_view name) const {
    if (!has(name)) return std::nullopt;
    const auto value = parse_decimal(*find(name));
    if (!value || *value > INT_MAX)
      throw UsageError(show(name) + " is not a number from 0 to " + std::to_string(INT_MAX) +
                       ": correct it, or unset what the launcher did not set");
    return Given<int>{static_cast<int>(*value), std::string(name)};
  }

  Given<std::uint16_t> port(std::string_view name) const {
    if (!has(name)) return {};
    const auto value = parse_decimal(*find(name));
    if (!value || *value < 1 || *value > 65'535)
      throw UsageError(show(name) + " is not a port: set it to a number from 1 to 65535");
    return {static_cast<std::uint16_t>(*value), std::string(name)};
  }

  Given<std::string> address(std::string_view name) const {
    const std::string value = text(name);
    if (value.empty()) return {};
    // ':', '%' and brackets: IPv6
    if (value.size() > longest_name || !std::all_of(value.begin(), value.end(), [](char c) {
          return is_host_character(c) || c == ':' || c == '%' || c == '[' || c == ']';
        }))
      throw UsageError(show(name) + " is neither a host name nor an address: correct it");
    return {value, std::string(name)};
  }

 private:
  const Environment& environment_;
};

// A port that all processes of a job find alike and other jobs on these nodes hardly share, below the ephemeral ports.
std::uint16_t port_of_job(std::string_view job, std::string_view step) {
  const auto leading_number = [](std::string_view text) -> std::uint64_t {
    std::uint64_t value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value % 20'000;
  };
  return static_cast<std::uint16_t>(10'000 + (leading_number(job) + 997 * leading_number(step)) % 20'000);
}

// The hosts of PBS_NODEFILE or LSB_DJOB_RANKFILE: a line a process slot.
std::vector<std::string> read_node_file(const Variables& variables, std::string_view name) {
  const std::filesystem::path path = variables.text(name);
  std::error_code error;
  // Of what is no regular file the size is an error, and the largest number.
  if (std::filesystem::file_size(path, error) > largest_node_file)
    throw UsageError(variables.show(name) + " is not a node file that can be read here: name a copy of it");
  std::ifstream file(path);
  std::vector<std::string> hosts;
  for (std::string line; std::getline(file, line) && hosts.size() <= most_hosts;) {
    while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.pop_back();
    if (line.empty()) continue;
    if (line.size() > longest_name || !std::all_of(line.begin(), line.end(), is_host_character))
      throw UsageError(variables.show(name) + " holds '" + printable(line) + "', which is not a host name");
    hosts.push_back(line);
  }
  if (hosts.empty() || hosts.size() > most_hosts)
    throw UsageError(variables.show(name) + " names " + (hosts.empty() ? "no host" : "more than 65536 hosts") +
                     ": name a file with a host a line");
  return hosts;
}

std::vector<std::string> distinct(const std::vector<std::string>& hosts) {
  std::vector<std::string> result;
  std::set<std::string_view> seen;
  for (const std::string& host : hosts)
    if (seen.insert(host).second) result.push_back(host);
  return result;
}

// The first host of the step's or the job's list, and a port by the job's number, unless they are given.
void meet_on_first_slurm_node(const Variables& variables, Given<std::string>& address, Given<std::uint16_t>& port) {
  for (const std::string_view list : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"})
    if (address.value.empty() && variables.has(list)) try {
        address = {expand_host_list(variables.text(list)).front(), std::string(list)};
      } catch (const UsageError& error) {
        throw UsageError(std::string(list) + ": " + error.what());
      }
  if (port.value == 0 && !address.value.empty() && variables.has("SLURM_JOB_ID"))
    port = {port_of_job(variables.text("SLURM_JOB_ID"), variables.text("SLURM_STEP_ID")), "SLURM_JOB_ID"};
}

void finish_torchrun(const Variables& variables, Launch& launch) {
  launch.agent_store = variables.is("TORCHELASTIC_USE_AGENT_STORE", "True");
  if (launch.agent_store && (launch.master_address.value.empty() || launch.master_port.value == 0))
    throw UsageError("TORCHELASTIC_USE_AGENT_STORE=True, but " +
                     std::string(launch.master_port.value ? "MASTER_ADDR" : "MASTER_PORT") +
                     " is not set: let torchrun start this process, or unset TORCHELASTIC_RUN_ID");
}

void finish_flux(const Variables& variables, Launch& launch) { launch.under_mpi = variables.has("PMI_RANK"); }

void finish_srun(const Variables& variables, Launch& launch) {
  const auto procid = variables.number("SLURM_PROCID");
  if (procid && procid->value != launch.rank.value)
    throw UsageError(variables.show(launch.rank.variable) + ", but " + variables.show("SLURM_PROCID") +
                     ": start the processes with srun, or with mpirun, not with a mixture");
  if (variables.has("SLURM_STEP_TASKS_PER_NODE") && launch.node_rank) {
    const std::string_view name = "SLURM_STEP_TASKS_PER_NODE";
    const auto contradicts = [&](const std::string& what) {
      return UsageError(variables.show(name) + " contradicts " + what + ": start the program with srun anew");
    };
    std::vector<int> tasks;
    try {
      tasks = expand_tasks_per_node(variables.text(name));
    } catch (const UsageError& error) {
      throw UsageError(std::string(name) + ": " + error.what());
    }
    if (static_cast<std::size_t>(launch.node_rank->value) >= tasks.size())
      throw contradicts(variables.show(launch.node_rank->variable));
    if (std::accumulate(tasks.begin(), tasks.end(), std::int64_t{0}) != launch.world_size.value)
      throw contradicts(variables.show(launch.world_size.variable));
    launch.local_size = {tasks[static_cast<std::size_t>(launch.node_rank->value)], std::string(name)};
  }
  launch.run_id = variables.text("SLURM_JOB_ID") + "." + variables.text("SLURM_STEP_ID");
  meet_on_first_slurm_node(variables, launch.master_address, launch.master_port);
}

void finish_jsrun(const Variables& variables, Launch& launch) {
  if (launch.master_address.value.empty() && variables.has("LSB_DJOB_RANKFILE"))
    launch.master_address = {read_node_file(variables, "LSB_DJOB_RANKFILE").front(), "LSB_DJOB_RANKFILE"};
  if (launch.master_port.value == 0 && variables.has("LSB_JOBID"))
    launch.master_port = {port_of_job(variables.text("LSB_JOBID"), ""), "LSB_JOBID"};
}

void finish_mnrun(const Variables& variables, Launch& launch) {
  launch.launcher_store = {parse_endpoint(variables.text("MNRUN_STORE"), "MNRUN_STORE"), "MNRUN_STORE"};
}

void finish_cluster(const Variables& variables, Launch& launch) {
  launch.launcher_store = {parse_endpoint(variables.text("CLUSTER_STORE"), "CLUSTER_STORE"), "CLUSTER_STORE"};
  launch.report_fd = variables.number("CLUSTER_REPORT_FD");
}

// One program process a pod or a batch node. WORLD_SIZE counts pods in some versions of the operator, processes in
// others; they can be told apart only where it does not matter, so several processes a pod are left to an agent there.
void finish_pod(const Variables& variables, Launch&) {
  const std::string remedy = ": start the processes of this pod with mnrun or torchrun";
  if (const auto per_pod = variables.find("PET_NPROC_PER_NODE"); per_pod && parse_decimal(*per_pod).value_or(1) != 1)
    throw UsageError(variables.show("PET_NPROC_PER_NODE") + remedy);
  const auto pods = variables.number("PET_NNODES"), processes = variables.number("WORLD_SIZE");
  if (pods && processes && processes->value != pods->value)
    throw UsageError(variables.show("WORLD_SIZE") + " counts processes, " + variables.show("PET_NNODES") + " pods" +
                     remedy);
  const auto pod = variables.number("PET_NODE_RANK"), rank = variables.number("RANK");
  if (pod && rank && pod->value != rank->value)
    throw UsageError(variables.show("RANK") + ", but " + variables.show("PET_NODE_RANK") + remedy);
}

void default_port(Given<std::string>& address, Given<std::uint16_t>& port) {
  if (port.value == 0 && !address.value.empty()) port = {customary_port, ""};
}

void finish_bcp(const Variables&, Launch& launch) { default_port(launch.master_address, launch.master_port); }

// The main node is not told its own address, and need not be node 0: count from it.
void number_aws_nodes(const Variables& variables, int& node, int nodes, Given<std::string>& address,
                      Given<std::uint16_t>& port) {
  const auto main = variables.number("AWS_BATCH_JOB_MAIN_NODE_INDEX").value_or(Given<int>{0, ""});
  if (node >= nodes || main.value >= nodes)
    throw UsageError(variables.show(node >= nodes ? "AWS_BATCH_JOB_NODE_INDEX" : "AWS_BATCH_JOB_MAIN_NODE_INDEX") +
                     ", but " + variables.show("AWS_BATCH_JOB_NUM_NODES") + ": correct one of them");
  node = node >= main.value ? node - main.value : node + (nodes - main.value);
  if (node == 0 && address.value.empty()) {
    std::array<char, 256> name{};
    check_errno(gethostname(name.data(), name.size() - 1), "gethostname");
    address = {name.data(), "AWS_BATCH_JOB_MAIN_NODE_INDEX"};
  }
  default_port(address, port);
}

void finish_aws(const Variables& variables, Launch& launch) {
  number_aws_nodes(variables, launch.rank.value, launch.world_size.value, launch.master_address, launch.master_port);
}

// pbsdsh gives its tasks a node's number and nothing else, OpenPBS not even PBS_NODEFILE.
void finish_pbsdsh(const Variables& variables, Launch& launch) {
  if (!variables.has("PBS_NODEFILE"))
    throw UsageError(variables.show("PBS_TASKNUM") +
                     ": pbsdsh numbers no processes: set PBS_NODEFILE to a copy of the job's node file in a folder "
                     "that all nodes see, or start the program with mpirun");
  const auto hosts = read_node_file(variables, "PBS_NODEFILE");
  const auto nodes = distinct(hosts);
  if (hosts.size() != nodes.size())
    throw UsageError(variables.show("PBS_NODEFILE") + " has " + std::to_string(hosts.size()) + " slots on " +
                     std::to_string(nodes.size()) + " nodes: start the processes of a node with mnrun or torchrun");
  launch.world_size = {static_cast<int>(nodes.size()), "PBS_NODEFILE"};
  if (launch.master_address.value.empty()) launch.master_address = {nodes.front(), "PBS_NODEFILE"};
  if (launch.master_port.value == 0) launch.master_port = {port_of_job(variables.text("PBS_JOBID"), ""), "PBS_JOBID"};
}

// How the processes of a launcher find each other.
enum class Meeting {
  mpi,     // MPI_Init does it
  master,  // at MASTER_ADDR, or in the launcher's store
  node,    // likewise; but what was started is one process a node, and the rank is the node's
};

// A launcher: the variables that it is known by (all are set), and those that give the values ("": none does).
struct Row {
  std::string_view launcher;
  std::array<std::string_view, 3> known_by;
  Meeting meeting = Meeting::master;
  std::string_view rank = "RANK";
  std::string_view world_size = "WORLD_SIZE";
  std::string_view local_rank = "LOCAL_RANK";
  std::string_view local_size = "";
  std::string_view node_rank = "";
  std::string_view node_count = "";
  std::string_view run_id = "";
  std::string_view restart_count = "";
  std::string_view master_address = "";  // where MASTER_ADDR is not set
  std::string_view master_port = "";     // where MASTER_PORT is not set
  void (*finish)(const Variables&, Launch&) = nullptr;
};

// The innermost launcher first: launchers nest (torchrun under srun, mpirun in a batch script), and the outer one's
// variables are still there, and lie. mnrun can stand low, because it takes process_variables() out of its children's
// environment: another launcher's variable beside MNRUN_* means that this launcher runs inside mnrun. The nodes of a
// cluster do the same.
constexpr std::array table = {
    Row{.launcher = "torchrun",
        .known_by = {"TORCHELASTIC_RUN_ID", "LOCAL_RANK"},
        .local_size = "LOCAL_WORLD_SIZE",
        .node_rank = "GROUP_RANK",
        .node_count = "GROUP_WORLD_SIZE",
        .run_id = "TORCHELASTIC_RUN_ID",
        .restart_count = "TORCHELASTIC_RESTART_COUNT",
        .finish = finish_torchrun},
    // OMPI_COMM_WORLD_NODE_RANK is not the node's: it counts this node's processes over all jobs.
    Row{.launcher = "Open MPI",
        .known_by = {"OMPI_COMM_WORLD_RANK"},
        .meeting = Meeting::mpi,
        .rank = "OMPI_COMM_WORLD_RANK",
        .world_size = "OMPI_COMM_WORLD_SIZE",
        .local_rank = "OMPI_COMM_WORLD_LOCAL_RANK",
        .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
        .run_id = "PMIX_NAMESPACE"},
    Row{.launcher = "Intel MPI",
        .known_by = {"PMI_RANK", "MPI_LOCALRANKID", "I_MPI_HYDRA_UUID"},
        .meeting = Meeting::mpi,
        .rank = "PMI_RANK",
        .world_size = "PMI_SIZE",
        .local_rank = "MPI_LOCALRANKID",
        .local_size = "MPI_LOCALNRANKS",
        .run_id = "I_MPI_HYDRA_UUID"},
    Row{.launcher = "MPICH",
        .known_by = {"PMI_RANK", "MPI_LOCALRANKID"},
        .meeting = Meeting::mpi,
        .rank = "PMI_RANK",
        .world_size = "PMI_SIZE",
        .local_rank = "MPI_LOCALRANKID",
        .local_size = "MPI_LOCALNRANKS"},
    Row{.launcher = "Flux",
        .known_by = {"FLUX_TASK_RANK", "FLUX_JOB_SIZE"},
        .rank = "FLUX_TASK_RANK",
        .world_size = "FLUX_JOB_SIZE",
        .local_rank = "FLUX_TASK_LOCAL_ID",
        .node_count = "FLUX_JOB_NNODES",
        .run_id = "FLUX_JOB_ID",
        .finish = finish_flux},
    Row{.launcher = "srun --mpi=pmi2",
        .known_by = {"PMI_RANK", "SLURM_STEP_ID", "SLURM_LOCALID"},
        .meeting = Meeting::mpi,
        .rank = "PMI_RANK",
        .world_size = "PMI_SIZE",
        .local_rank = "SLURM_LOCALID",
        .node_rank = "SLURM_NODEID",
        .node_count = "SLURM_STEP_NUM_NODES",
        .restart_count = "SLURM_RESTART_COUNT",
        .finish = finish_srun},
    Row{.launcher = "srun --mpi=pmix",
        .known_by = {"PMIX_RANK", "SLURM_STEP_ID", "SLURM_LOCALID"},
        .meeting = Meeting::mpi,
        .rank = "PMIX_RANK",
        .world_size = "SLURM_STEP_NUM_TASKS",
        .local_rank = "SLURM_LOCALID",
        .node_rank = "SLURM_NODEID",
        .node_count = "SLURM_STEP_NUM_NODES",
        .restart_count = "SLURM_RESTART_COUNT",
        .finish = finish_srun},
    // HOROVOD_GLOO_RENDEZVOUS_ADDR is Horovod's own store on the host of horovodrun, which need not be rank 0's.
    Row{.launcher = "Horovod",
        .known_by = {"HOROVOD_RANK", "HOROVOD_SIZE"},
        .rank = "HOROVOD_RANK",
        .world_size = "HOROVOD_SIZE",
        .local_rank = "HOROVOD_LOCAL_RANK",
        .local_size = "HOROVOD_LOCAL_SIZE",
        .node_rank = "HOROVOD_CROSS_RANK",
        .node_count = "HOROVOD_CROSS_SIZE"},
    Row{.launcher = "jsrun",
        .known_by = {"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"},
        .meeting = Meeting::mpi,
        .rank = "JSM_NAMESPACE_RANK",
        .world_size = "JSM_NAMESPACE_SIZE",
        .local_rank = "JSM_NAMESPACE_LOCAL_RANK",
        .local_size = "JSM_NAMESPACE_LOCAL_SIZE",
        .run_id = "LSB_JOBID",
        .finish = finish_jsrun},
    // A batch script has SLURM_PROCID and SLURM_NTASKS too, but no SLURM_STEP_*: it is one process.
    Row{.launcher = "srun",
        .known_by = {"SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"},
        .rank = "SLURM_PROCID",
        .world_size = "SLURM_STEP_NUM_TASKS",
        .local_rank = "SLURM_LOCALID",
        .node_rank = "SLURM_NODEID",
        .node_count = "SLURM_STEP_NUM_NODES",
        .restart_count = "SLURM_RESTART_COUNT",
        .finish = finish_srun},
    Row{.launcher = "cluster",  // chapter 06's
        .known_by = {"CLUSTER_STORE", "CLUSTER_JOB_ID"},
        .local_size = "LOCAL_WORLD_SIZE",
        .node_rank = "GROUP_RANK",
        .node_count = "GROUP_WORLD_SIZE",
        .run_id = "CLUSTER_JOB_ID",
        .restart_count = "CLUSTER_RESTART_COUNT",
        .finish = finish_cluster},
    Row{.launcher = "mnrun",
        .known_by = {"MNRUN_STORE", "MNRUN_RUN_ID"},
        .local_size = "LOCAL_WORLD_SIZE",
        .node_rank = "GROUP_RANK",
        .node_count = "GROUP_WORLD_SIZE",
        .run_id = "MNRUN_RUN_ID",
        .restart_count = "MNRUN_RESTART_COUNT",
        .finish = finish_mnrun},
    Row{.launcher = "Ray Train",
        .known_by = {"RAY_JOB_ID", "RANK", "LOCAL_RANK"},
        .local_size = "LOCAL_WORLD_SIZE",
        .node_rank = "NODE_RANK"},
    Row{.launcher = "bcprun", .known_by = {"NGC_ARRAY_INDEX", "RANK", "LOCAL_RANK"}, .node_rank = "NGC_ARRAY_INDEX"},
    Row{.launcher = "torch.distributed.launch",
        .known_by = {"RANK", "LOCAL_RANK", "WORLD_SIZE"},
        .local_size = "LOCAL_WORLD_SIZE"},
    Row{.launcher = "Run:ai pod",
        .known_by = {"RANK", "WORLD_SIZE", "RUNAI_NUM_OF_GPUS"},
        .meeting = Meeting::node,
        .local_rank = "",
        .finish = finish_pod},
    Row{.launcher = "Kubeflow PyTorchJob pod",
        .known_by = {"RANK", "PET_NODE_RANK", "PET_NNODES"},
        .meeting = Meeting::node,
        .world_size = "PET_NNODES",
        .local_rank = "",
        .finish = finish_pod},
    Row{.launcher = "Kubeflow Trainer pod",
        .known_by = {"PET_NODE_RANK", "PET_NNODES"},
        .meeting = Meeting::node,
        .rank = "PET_NODE_RANK",
        .world_size = "PET_NNODES",
        .local_rank = "",
        .master_address = "PET_MASTER_ADDR",
        .master_port = "PET_MASTER_PORT",
        .finish = finish_pod},
    Row{.launcher = "pod",  // PyTorchJob before 1.9
        .known_by = {"RANK", "WORLD_SIZE"},
        .meeting = Meeting::node,
        .local_rank = "",
        .finish = finish_pod},
    Row{.launcher = "BCP replica",
        .known_by = {"NGC_ARRAY_INDEX", "NGC_ARRAY_SIZE"},
        .meeting = Meeting::node,
        .rank = "NGC_ARRAY_INDEX",
        .world_size = "NGC_ARRAY_SIZE",
        .local_rank = "",
        .run_id = "NGC_JOB_ID",
        .master_address = "NGC_MASTER_ADDR",
        .finish = finish_bcp},
    Row{.launcher = "AWS Batch",
        .known_by = {"AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_NUM_NODES"},
        .meeting = Meeting::node,
        .rank = "AWS_BATCH_JOB_NODE_INDEX",
        .world_size = "AWS_BATCH_JOB_NUM_NODES",
        .local_rank = "",
        .master_address = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS",
        .finish = finish_aws},
    Row{.launcher = "pbsdsh",
        .known_by = {"PBS_NODENUM", "PBS_TASKNUM", "PBS_JOBID"},
        .meeting = Meeting::node,
        .rank = "PBS_NODENUM",
        .world_size = "",
        .local_rank = "",
        .run_id = "PBS_JOBID",
        .finish = finish_pbsdsh},
};

// RANK and its companions that do not repeat srun's numbers: set by something inside srun, Ray on Slurm say. Beside
// MNRUN_* or CLUSTER_* they are mnrun's or the cluster's, and srun is inside.
bool ranked_inside_srun(const Variables& variables) {
  return !variables.has("MNRUN_STORE") && !variables.has("CLUSTER_STORE") && variables.has("RANK") &&
         variables.has("LOCAL_RANK") && variables.has("WORLD_SIZE") &&
         (variables.text("RANK") != variables.text("SLURM_PROCID") ||
          variables.text("WORLD_SIZE") != variables.text("SLURM_STEP_NUM_TASKS"));
}

bool matches(const Row& row, const Variables& variables) {
  for (const std::string_view name : row.known_by)
    if (!name.empty() && !variables.has(name)) return false;
  if (row.finish == finish_srun) return !ranked_inside_srun(variables);
  // With this type BCP starts the command on one replica alone.
  if (row.finish == finish_bcp) return !variables.is("NGC_ARRAY_TYPE", "MPIJob");
  // A job's script is task 1; Slurm imitates these variables for scripts that were written for PBS.
  if (row.finish == finish_pbsdsh) return !variables.is("PBS_TASKNUM", "1") && !variables.has("SLURM_JOB_ID");
  return true;
}

Given<int> required(const Variables& variables, std::string_view name, const Row& row) {
  if (const auto given = variables.number(name)) return *given;
  throw UsageError(variables.show(row.known_by.front()) + ", but " + std::string(name) +
                   " is not set: start the program with " + std::string(row.launcher) + " itself, or unset " +
                   std::string(row.known_by.front()));
}

// `low` is a rank or a part, `high` the size that it belongs to.
void require_less(const Given<int>& low, const Given<int>& high, bool or_equal = false) {
  if (low.value < high.value || (or_equal && low.value == high.value)) return;
  const auto show = [](const Given<int>& g, const char* what) {
    return (g.variable.empty() ? what : g.variable) + "=" + std::to_string(g.value);
  };
  throw UsageError(show(low, "the rank") + (or_equal ? " exceeds " : " must be less than ") + show(high, "the size") +
                   ": correct one of them, or unset what the launcher did not set");
}

void require_consistent(const Launch& launch) {
  require_less(launch.rank, launch.world_size);
  if (launch.local_size) {
    require_less(launch.local_rank, *launch.local_size);
    require_less(*launch.local_size, launch.world_size, true);
  } else {
    require_less(launch.local_rank, launch.world_size);
  }
  if (launch.node_count) {
    if (launch.node_rank) require_less(*launch.node_rank, *launch.node_count);
    require_less(*launch.node_count, launch.world_size, true);
  }
  if (launch.under_mpi || launch.launcher_store || launch.world_size.value == 1) return;
  if (launch.master_address.value.empty() != (launch.master_port.value == 0)) {
    const bool have_port = launch.master_port.value != 0;
    throw UsageError((have_port ? launch.master_port.variable + "=" + std::to_string(launch.master_port.value)
                                : launch.master_address.variable + "=" + launch.master_address.value) +
                     ", but " +
                     (have_port ? "MASTER_ADDR is not set: set it to the host of rank 0"
                                : "MASTER_PORT is not set: set it to a port that is free on that host"));
  }
}

// No row fits. A process that would take itself to be alone, although something started several, is refused.
void require_alone(const Variables& variables) {
  for (const std::string_view name : {"PMI_RANK", "PMI_ID", "PMIX_RANK"})
    if (variables.has(name))
      throw UsageError(variables.show(name) +
                       " is set, but not by a launcher that says how many processes there are: start the program with "
                       "mpirun (without -pmi-port), srun or mnrun, or unset " +
                       std::string(name));
  if (variables.has("PET_NNODES") && !variables.is("PET_NNODES", "1"))
    throw UsageError(variables.show("PET_NNODES") +
                     " without PET_NODE_RANK: start the processes of this pod with mnrun "
                     "or torchrun");
  for (const std::string_view name : {"RANK", "LOCAL_RANK", "WORLD_SIZE"}) {
    if (!variables.has(name)) continue;
    variables.number(name);
    const std::string_view missing = variables.has("RANK") ? "WORLD_SIZE" : "RANK";
    throw UsageError(variables.show(name) + " without " + std::string(missing) + ": set " + std::string(missing) +
                     " too, or unset " + std::string(name));
  }
}

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

Launch read_launch(const Environment& environment) {
  const Variables variables(environment);
  Launch launch;
  const auto row =
      std::find_if(table.begin(), table.end(), [&](const Row& candidate) { return matches(candidate, variables); });
  if (row == table.end()) {
    require_alone(variables);
    return launch;
  }
  launch.launcher = row->launcher;
  launch.rank = required(variables, row->rank, *row);
  if (!row->world_size.empty()) launch.world_size = required(variables, row->world_size, *row);
  if (!row->local_rank.empty()) launch.local_rank = required(variables, row->local_rank, *row);
  launch.local_size = variables.number(row->local_size);
  launch.node_rank = variables.number(row->node_rank);
  launch.node_count = variables.number(row->node_count);
  launch.run_id = variables.text(row->run_id);
  if (const auto restarts = variables.number(row->restart_count)) launch.restart_count = restarts->value;
  launch.under_mpi = row->meeting == Meeting::mpi;
  launch.master_address =
      variables.address(variables.text("MASTER_ADDR").empty() ? row->master_address : "MASTER_ADDR");
  launch.master_port = variables.port(variables.has("MASTER_PORT") ? "MASTER_PORT" : row->master_port);
  if (row->finish) row->finish(variables, launch);
  if (row->meeting == Meeting::node) {
    launch.one_per_node = true;
    launch.node_rank = launch.rank;
    launch.node_count = launch.world_size;
    launch.local_size = {1, ""};
  }
  require_consistent(launch);
  return launch;
}

std::vector<std::string_view> launchers() {
  std::vector<std::string_view> names;
  for (const Row& row : table) names.push_back(row.launcher);
  return names;
}

Nodes read_nodes(const Environment& environment) {
  const Variables variables(environment);
  Nodes nodes;
  nodes.master_address = variables.address("MASTER_ADDR");
  nodes.master_port = variables.port("MASTER_PORT");
  // gpu, cpu and auto, which are no numbers here, are left to the agent.
  const auto per_node = [&](std::string_view name) {
    if (!nodes.processes_per_node && parse_decimal(variables.text(name)))
      nodes.processes_per_node = variables.number(name);
  };
  const auto or_from = [&](std::string_view address, std::string_view port) {
    if (nodes.master_address.value.empty()) nodes.master_address = variables.address(address);
    if (nodes.master_port.value == 0) nodes.master_port = variables.port(port);
  };

  if (variables.has("PET_NODE_RANK") && variables.has("PET_NNODES")) {
    nodes.source = variables.has("RANK") ? "Kubeflow PyTorchJob" : "Kubeflow Trainer";
    nodes.node_rank = variables.number("PET_NODE_RANK");
    nodes.node_count = variables.number("PET_NNODES");
    per_node("PET_NPROC_PER_NODE");
    per_node("RUNAI_NUM_OF_GPUS");
    or_from("PET_MASTER_ADDR", "PET_MASTER_PORT");
    if (nodes.master_address.value.empty() && variables.has("PET_RDZV_ENDPOINT")) {
      const Endpoint endpoint = parse_endpoint(variables.text("PET_RDZV_ENDPOINT"), "PET_RDZV_ENDPOINT");
      nodes.master_address = {endpoint.host, "PET_RDZV_ENDPOINT"};
      nodes.master_port = {endpoint.port, "PET_RDZV_ENDPOINT"};
    }
  } else if (variables.has("RANK") && variables.has("WORLD_SIZE") && !variables.has("LOCAL_RANK")) {
    nodes.source = variables.has("RUNAI_NUM_OF_GPUS") ? "Run:ai" : "pod";
    nodes.node_rank = variables.number("RANK");
    nodes.node_count = variables.number("WORLD_SIZE");
    per_node("PET_NPROC_PER_NODE");
    per_node("RUNAI_NUM_OF_GPUS");
  } else if (variables.has("NGC_ARRAY_INDEX") && variables.has("NGC_ARRAY_SIZE")) {
    nodes.source = "BCP";
    nodes.node_rank = variables.number("NGC_ARRAY_INDEX");
    nodes.node_count = variables.number("NGC_ARRAY_SIZE");
    per_node("NGC_NTASKS_PER_NODE");
    per_node("NGC_GPUS_PER_NODE");
    or_from("NGC_MASTER_ADDR", "");
    default_port(nodes.master_address, nodes.master_port);
  } else if (variables.has("AWS_BATCH_JOB_NODE_INDEX") && variables.has("AWS_BATCH_JOB_NUM_NODES")) {
    nodes.source = "AWS Batch";
    nodes.node_rank = variables.number("AWS_BATCH_JOB_NODE_INDEX");
    nodes.node_count = variables.number("AWS_BATCH_JOB_NUM_NODES");
    or_from("AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS", "");
    number_aws_nodes(variables, nodes.node_rank->value, nodes.node_count->value, nodes.master_address,
                     nodes.master_port);
  } else if (variables.has("SLURM_STEP_ID") && variables.has("SLURM_NODEID") && variables.has("SLURM_STEP_NUM_NODES")) {
    nodes.source = "Slurm";
    nodes.node_rank = variables.number("SLURM_NODEID");
    nodes.node_count = variables.number("SLURM_STEP_NUM_NODES");
    const auto tasks = variables.number("SLURM_STEP_NUM_TASKS");
    if (tasks && tasks->value != nodes.node_count->value)
      throw UsageError(variables.show("SLURM_STEP_NUM_TASKS") + ", but " + variables.show("SLURM_STEP_NUM_NODES") +
                       ": start one agent a node (srun --ntasks-per-node=1), or the program by srun itself");
    meet_on_first_slurm_node(variables, nodes.master_address, nodes.master_port);
  } else if (variables.has("SLURM_JOB_ID")) {
    nodes.source = "Slurm (batch script)";  // runs on the first node alone: the job's other nodes are not its
  } else if (variables.has("PBS_JOBID") && (variables.has("PBS_NODENUM") || variables.has("PBS_NODEFILE"))) {
    nodes.source = "PBS";
    // The script, task 1, runs on the first node alone; pbsdsh's tasks run on all.
    if (variables.has("PBS_TASKNUM") && !variables.is("PBS_TASKNUM", "1"))
      nodes.node_rank = variables.number("PBS_NODENUM");
    if (variables.has("PBS_NODEFILE")) {
      const auto hosts = read_node_file(variables, "PBS_NODEFILE");
      const auto names = distinct(hosts);
      const auto mine = static_cast<std::size_t>(nodes.node_rank ? nodes.node_rank->value : 0);
      if (nodes.node_rank || names.size() == 1) nodes.node_count = {static_cast<int>(names.size()), "PBS_NODEFILE"};
      if (mine < names.size())
        nodes.processes_per_node = {static_cast<int>(std::count(hosts.begin(), hosts.end(), names[mine])),
                                    "PBS_NODEFILE"};
      if (nodes.master_address.value.empty()) nodes.master_address = {names.front(), "PBS_NODEFILE"};
    }
    if (nodes.master_port.value == 0 && !nodes.master_address.value.empty())
      nodes.master_port = {port_of_job(variables.text("PBS_JOBID"), ""), "PBS_JOBID"};
  } else if (variables.has("LSB_JOBID")) {
    nodes.source = "LSF";
    if (variables.number("JSM_NAMESPACE_LOCAL_SIZE").value_or(Given<int>{0, ""}).value == 1) {
      nodes.node_rank = variables.number("JSM_NAMESPACE_RANK");
      nodes.node_count = variables.number("JSM_NAMESPACE_SIZE");
    }
    if (nodes.master_address.value.empty() && variables.has("LSB_DJOB_RANKFILE"))
      nodes.master_address = {read_node_file(variables, "LSB_DJOB_RANKFILE").front(), "LSB_DJOB_RANKFILE"};
    if (nodes.master_port.value == 0 && !nodes.master_address.value.empty())
      nodes.master_port = {port_of_job(variables.text("LSB_JOBID"), ""), "LSB_JOBID"};
  }
  if (nodes.node_rank && nodes.node_count) require_less(*nodes.node_rank, *nodes.node_count);
  return nodes;
}

// Not all of OMPI_* and PMIX_*: OMPI_MCA_btl and the like are the user's settings.
std::span<const std::string_view> process_variables() {
  static constexpr auto names = std::to_array<std::string_view>(
      {// torchrun, mnrun, cluster, Ray Train, torch.distributed.launch
       "TORCHELASTIC_*", "MNRUN_*", "CLUSTER_JOB_ID", "CLUSTER_RESTART_COUNT", "CLUSTER_STORE", "CLUSTER_CHECKPOINT",
       "CLUSTER_REPORT_FD", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK",
       "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE",
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
       // MPICH, Intel MPI, Flux, PMI-1 and PMI-2
       "PMI_*", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "HYDI_CONTROL_FD", "HYDRA_BSTRAP_*", "I_MPI_HYDRA_UUID",
       "FLUX_TASK_*", "FLUX_JOB_SIZE", "FLUX_JOB_NNODES",
       // Horovod, jsrun
       "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_*", "HOROVOD_CROSS_*", "HOROVOD_GLOO_RENDEZVOUS_*",
       "JSM_NAMESPACE_*",
       // srun: its tasks, not its job
       "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_STEPID", "SLURM_STEP_*", "SLURM_PMI*",
       "SLURM_TASK_PID", "SLURM_SRUN_COMM_*"});
  return names;
}

std::string generation(const Launch& launch) { return launch.run_id + "/" + std::to_string(launch.restart_count); }

namespace {

UsageError bad_host_list(std::string_view text, const std::string& why) {
  return UsageError("'" + printable(text) + "' is not a host list like gpu[1-3,07],login: " + why);
}

// "1-3,07" between brackets: the texts that stand for it, at most `room` of them.
std::vector<std::string> expand_ranges(std::string_view ranges, std::string_view whole, std::size_t room) {
  std::vector<std::string> result;
  for (std::size_t at = 0; at <= ranges.size();) {
    const std::size_t comma = std::min(ranges.find(',', at), ranges.size());
    const std::string_view range = ranges.substr(at, comma - at);
    at = comma + 1;
    const std::size_t dash = range.find('-');
    const std::string_view low = range.substr(0, dash);
    const std::string_view high = dash == std::string_view::npos ? low : range.substr(dash + 1);
    const auto first = parse_decimal(low), last = parse_decimal(high);
    if (!first || !last || low.size() > 9 || high.size() > 9)
      throw bad_host_list(whole, "'" + printable(range) + "' is not a range");
    if (*last < *first) throw bad_host_list(whole, "'" + printable(range) + "' counts down");
    if (low.size() > 1 && low.front() == '0' && low.size() != high.size())
      throw bad_host_list(whole, "the ends of '" + printable(range) + "' differ in length");
    if (static_cast<std::size_t>(*last - *first) >= room - result.size())
      throw bad_host_list(whole, "it names more than 65536 hosts");
    for (std::int64_t i = *first; i <= *last; ++i) {
      std::string number = std::to_string(i);
      if (number.size() < low.size()) number.insert(0, low.size() - number.size(), '0');
      result.push_back(std::move(number));
    }
  }
  return result;
}

}  // namespace

std::vector<std::string> expand_host_list(std::string_view text) {
  std::vector<std::string> hosts;
  std::vector<std::string> item = {""};  // the hosts of the item being read, as far as it is read
  std::size_t length = 0;                // of the longest of them
  for (std::size_t at = 0;; ++at) {
    const char c = at < text.size() ? text[at] : ',';
    if (c == ',') {
      if (length == 0) throw bad_host_list(text, "a name is empty");
      if (hosts.size() + item.size() > most_hosts) throw bad_host_list(text, "it names more than 65536 hosts");
      std::move(item.begin(), item.end(), std::back_inserter(hosts));
      item = {""};
      length = 0;
      if (at >= text.size()) return hosts;
    } else if (c == '[') {
      const std::size_t close = text.find(']', at);
      if (close == std::string_view::npos) throw bad_host_list(text, "a bracket is not closed");
      const auto numbers = expand_ranges(text.substr(at + 1, close - at - 1), text, most_hosts / item.size());
      std::vector<std::string> product;
      product.reserve(item.size() * numbers.size());
      for (const std::string& prefix : item)
        for (const std::string& number : numbers) product.push_back(prefix + number);
      item = std::move(product);
      length += 9;
      at = close;
    } else if (is_host_character(c)) {
      for (std::string& host : item) host += c;
      ++length;
    } else {
      throw bad_host_list(text, std::string("'") + printable(std::string_view(&c, 1)) + "' is in it");
    }
    if (length > longest_name) throw bad_host_list(text, "a name is longer than 255");
  }
}

std::vector<int> expand_tasks_per_node(std::string_view text) {
  const auto bad = [&] { return UsageError("'" + printable(text) + "' does not count tasks a node like 2(x3),1"); };
  std::vector<int> tasks;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    std::string_view item = text.substr(at, comma - at);
    at = comma + 1;
    std::int64_t repeat = 1;
    if (const std::size_t open = item.find("(x"); open != std::string_view::npos && item.ends_with(')')) {
      const auto times = parse_decimal(item.substr(open + 2, item.size() - open - 3));
      if (!times) throw bad();
      repeat = *times;
      item = item.substr(0, open);
    }
    const auto count = parse_decimal(item);
    if (!count || *count < 1 || *count > INT_MAX || repeat < 1 ||
        repeat > static_cast<std::int64_t>(most_hosts - tasks.size()))
      throw bad();
    tasks.insert(tasks.end(), static_cast<std::size_t>(repeat), static_cast<int>(*count));
  }
  return tasks;
}

}  // namespace multinode
