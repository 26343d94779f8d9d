// Fuzzes the parsers of external text: host lists, tasks per node, and read_launch and read_nodes with arbitrary values
// of the variables in the table.
#include <multinode/base/check.hpp>
#include <multinode/launch.hpp>
#include <multinode/launch/host_list.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

// Calls `read`, which may throw only a UsageError of one line.
template <class Function>
void try_to(Function read) {
  try {
    read();
  } catch (const multinode::UsageError& error) {
    const std::string_view what = error.what();
    require(!what.empty() && what.find('\n') == what.npos && what.size() < 1000);
  }
}

// All variables of each row, so that the fuzzer reaches every row; the fuzzer chooses the values. Without the node
// files, or it would open arbitrary paths.
constexpr auto names = std::to_array<std::string_view>(
    {// torchrun, mnrun, cluster, Ray Train, and all that meet at a master
     "TORCHELASTIC_RUN_ID", "LOCAL_RANK", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
     "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE", "MASTER_ADDR", "MASTER_PORT", "MNRUN_STORE",
     "MNRUN_RUN_ID", "MNRUN_RESTART_COUNT", "RAY_JOB_ID", "NODE_RANK", "CLUSTER_STORE", "CLUSTER_JOB_ID",
     "CLUSTER_RESTART_COUNT",
     // Open MPI, Intel MPI, MPICH, PMIx
     "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
     "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "I_MPI_HYDRA_UUID", "PMIX_RANK", "PMI_ID",
     "PMIX_NAMESPACE",
     // srun
     "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES",
     "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_JOB_ID", "SLURM_RESTART_COUNT",
     // Horovod, jsrun
     "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_RANK",
     "HOROVOD_CROSS_SIZE", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK",
     "JSM_NAMESPACE_LOCAL_SIZE", "LSB_JOBID",
     // pods and batch nodes
     "NGC_ARRAY_INDEX", "NGC_ARRAY_SIZE", "NGC_ARRAY_TYPE", "NGC_MASTER_ADDR", "NGC_GPUS_PER_NODE", "RUNAI_NUM_OF_GPUS",
     "PET_NODE_RANK", "PET_NNODES", "PET_NPROC_PER_NODE", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_RDZV_ENDPOINT",
     "PBS_NODENUM", "PBS_TASKNUM", "PBS_JOBID", "NGC_JOB_ID", "NGC_NTASKS_PER_NODE"});

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  try_to([&] {
    const auto hosts = multinode::expand_host_list(text);
    require(!hosts.empty() && hosts.size() <= 65'536);
    for (const std::string& host : hosts) require(!host.empty() && host.size() <= 255);
  });
  try_to([&] {
    const auto tasks = multinode::expand_tasks_per_node(text);
    require(!tasks.empty() && tasks.size() <= 65'536);
    for (const int count : tasks) require(count >= 1);
  });

  // Records: a byte that selects the variable, then its value up to a zero byte.
  multinode::Environment environment;
  while (!text.empty()) {
    const std::string_view name = names[static_cast<unsigned char>(text.front()) % names.size()];
    const std::size_t end = std::min(text.find('\0', 1), text.size());
    environment[std::string(name)] = text.substr(1, end - 1);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  try_to([&] {
    const multinode::Launch launch = multinode::read_launch(environment);
    require(launch.rank.value >= 0 && launch.rank.value < launch.world_size.value && launch.local_rank.value >= 0);
    require(!launch.local_size || (launch.local_rank.value < launch.local_size->value &&
                                   launch.local_size->value <= launch.world_size.value));
    require(!launch.node_rank || !launch.node_count || launch.node_rank->value < launch.node_count->value);
  });
  try_to([&] {
    const multinode::Nodes nodes = multinode::read_nodes(environment);
    require(!nodes.node_rank || !nodes.node_count || nodes.node_rank->value < nodes.node_count->value);
  });
  return 0;
}
