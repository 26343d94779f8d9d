#include <multinode/base/check.hpp>
#include <multinode/launch.hpp>
#include <multinode/launch/host_list.hpp>
#include <test/support/faults.hpp>
#include <test/support/says.hpp>
#include <test/support/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

namespace multinode {
namespace {

namespace fs = std::filesystem;

// recorded/NAME.env: a line that says where it was recorded, or that it was not; then lines NAME=value: of what was
// there, what launch.cpp reads or removes. "OUTER+INNER": what INNER sets, in OUTER.
Environment load(const std::string& names) {
  Environment environment;
  std::istringstream parts(names);
  for (std::string name; std::getline(parts, name, '+');) {
    std::ifstream file(fs::path(ENVIRONMENTS) / (name + ".env"));
    if (!file) throw std::runtime_error("no recording " + name);
    std::string line;
    for (std::getline(file, line); std::getline(file, line);) {
      const auto equals = line.find('=');
      if (equals == std::string::npos) throw std::runtime_error(name + ": '" + line + "'");
      environment[line.substr(0, equals)] = line.substr(equals + 1);
    }
  }
  return environment;
}

Environment operator+(Environment environment, const Environment& inner) {
  for (const auto& [name, value] : inner) environment[name] = value;
  return environment;
}

std::string refusal(const Environment& environment) {
  return testing::error_text<UsageError>([&] { read_launch(environment); });
}

constexpr int unsaid = -1;
int value_or_unsaid(const std::optional<FromVariable<int>>& given) { return given ? given->value : unsaid; }

struct Expected {
  std::string file;
  std::string launcher;
  int rank, world_size, local_rank, local_size, node_rank, node_count;
  enum How { master, mpi, agent, pod } how;
  std::string address;  // host:port
  std::string attempt;
};

// Every row of the table, and the nestings. A port of Slurm: 10000 + (job + 997 step) mod 20000.
const std::vector<Expected>& all_expected() {
  using enum Expected::How;
  static const std::vector<Expected> all = {
      {"torchrun-static", "torchrun", 1, 2, 1, 2, 0, 1, agent, "127.0.0.1:29551", "none/0"},
      {"torchrun-two-agents", "torchrun", 3, 4, 1, 2, 1, 2, agent, "localhost:41243", "t/0"},
      {"srun-none+torchrun-two-agents", "torchrun", 3, 4, 1, 2, 1, 2, agent, "localhost:41243", "t/0"},
      {"open-mpi-4+torchrun-two-agents", "torchrun", 3, 4, 1, 2, 1, 2, agent, "localhost:41243", "t/0"},
      {"open-mpi-4", "Open MPI", 2, 4, 2, 4, unsaid, unsaid, mpi, ":0", "1421803521/0"},
      {"open-mpi-5", "Open MPI", 2, 4, 1, 4, unsaid, unsaid, mpi, ":0", "prterun-localhost-14490@1/0"},
      {"srun-none+open-mpi-4", "Open MPI", 2, 4, 2, 4, unsaid, unsaid, mpi, ":0", "1421803521/0"},  // in a batch script
      {"intel-mpi", "Intel MPI", 2, 4, 2, 4, unsaid, unsaid, mpi, ":0", "71380000-1ca1-b69d-c160-060030e67a30/0"},
      {"mpich-4", "MPICH", 2, 4, 2, 4, unsaid, unsaid, mpi, ":0", "/0"},
      {"srun-none+mpich-4", "MPICH", 2, 4, 2, 4, unsaid, unsaid, mpi, ":0", "/0"},
      {"pals", "PALS", 5, 8, 1, 4, 1, unsaid, mpi, ":0", "0a1b2c3d-5e6f-4711-8899-aabbccddeeff/0"},
      {"srun-none+srun-pmi2", "srun --mpi=pmi2", 2, 4, 0, 2, 1, 2, mpi, "node0:11995", "1.2/0"},
      {"srun-none+srun-pmix", "srun --mpi=pmix", 2, 4, 0, 2, 1, 2, mpi, "node0:10998", "1.1/0"},
      {"srun-none", "srun", 3, 4, 1, 2, 1, 2, master, "node0:10001", "1.0/0"},
      {"sbatch-script", "none", 0, 1, 0, unsaid, unsaid, unsaid, master, ":0", "/0"},
      {"horovod", "Horovod", 1, 2, 1, 2, 0, 1, master, ":0", "/0"},
      {"jsrun", "jsrun", 2, 4, 0, 2, unsaid, unsaid, mpi, ":13456", "123456/0"},
      {"mnrun", "mnrun", 2, 3, 0, 1, 1, 2, master, "127.0.0.1:29501", "run7/1"},
      {"cluster", "cluster", 3, 4, 1, 2, 1, 2, master, ":0", "1/1"},
      {"ray-train", "Ray Train", 1, 2, 1, 2, 0, unsaid, master, "192.0.2.1:33095", "/0"},
      // Ray started by srun: its workers inherit the variables of `ray start`.
      {"srun-none+ray-train", "Ray Train", 1, 2, 1, 2, 0, unsaid, master, "192.0.2.1:33095", "/0"},
      {"srun-none+srun-pmi2+ray-train", "Ray Train", 1, 2, 1, 2, 0, unsaid, master, "192.0.2.1:33095", "/0"},
      {"srun-none+srun-pmix+ray-train", "Ray Train", 1, 2, 1, 2, 0, unsaid, master, "192.0.2.1:33095", "/0"},
      {"bcprun", "bcprun", 3, 4, 1, unsaid, 1, unsaid, master, "launcher-svc-1234567:29500", "/0"},
      {"torch-distributed-launch-1.8", "torch.distributed.launch", 2, 4, 0, unsaid, unsaid, unsaid, master,
       "node0:29500", "/0"},
      {"runai-pod", "Run:ai pod", 1, 2, 0, 1, 1, 2, pod, "job-master-0:23456", "/0"},
      {"kubeflow-pytorchjob-1.9", "Kubeflow pod", 1, 2, 0, 1, 1, 2, pod, "job-master-0:23456", "/0"},
      {"kubeflow-pytorchjob-1.9+open-mpi-5", "Open MPI", 2, 4, 1, 4, unsaid, unsaid, mpi, "job-master-0:23456",
       "prterun-localhost-14490@1/0"},
      {"runai-pod+kubeflow-pytorchjob-1.9", "Kubeflow pod", 1, 2, 0, 1, 1, 2, pod, "job-master-0:23456", "/0"},
      {"kubeflow-trainer-2", "Kubeflow pod", 1, 2, 0, 1, 1, 2, pod, "job-node-0-0.job:29400", "/0"},
      {"kubeflow-pytorchjob-old", "pod", 1, 2, 0, 1, 1, 2, pod, "job-master-0:23456", "/0"},
      {"bcp-replica", "BCP replica", 1, 2, 0, 1, 1, 2, pod, "launcher-svc-1234567:29500", "1234567/0"},
      {"flux", "Flux", 2, 4, 0, unsaid, unsaid, 2, mpi, ":0", "f23abc/0"},
      {"leader-worker-set", "LeaderWorkerSet pod", 1, 2, 0, 1, 1, 2, pod, "ep-0.ep.default:29500", "/0"},
      {"pbs-script", "none", 0, 1, 0, unsaid, unsaid, unsaid, master, ":0", "/0"},
  };
  return all;
}

void PrintTo(const Expected& expected, std::ostream* out) { *out << expected.file; }

class Recorded : public ::testing::TestWithParam<Expected> {};

TEST_P(Recorded, IsRead) {
  const Expected& expected = GetParam();
  const Launch launch = read_launch(load(expected.file));
  EXPECT_EQ(launch.launcher, expected.launcher);
  EXPECT_EQ(launch.rank.value, expected.rank);
  EXPECT_EQ(launch.world_size.value, expected.world_size);
  EXPECT_EQ(launch.local_rank.value, expected.local_rank);
  EXPECT_EQ(value_or_unsaid(launch.local_size), expected.local_size);
  EXPECT_EQ(value_or_unsaid(launch.node_rank), expected.node_rank);
  EXPECT_EQ(value_or_unsaid(launch.node_count), expected.node_count);
  EXPECT_EQ(launch.under_mpi, expected.how == Expected::mpi);
  EXPECT_EQ(launch.agent_store, expected.how == Expected::agent);
  EXPECT_EQ(launch.launcher_store.has_value(), expected.launcher == "mnrun" || expected.launcher == "cluster");
  if (expected.launcher == "mnrun") {
    EXPECT_EQ(launch.launcher_store->value.token, "0123456789abcdef");
    EXPECT_EQ(to_string(launch.launcher_store->value), "127.0.0.1:29400");
  }
  EXPECT_EQ(launch.master_address.value + ":" + std::to_string(launch.master_port.value), expected.address);
  EXPECT_EQ(attempt_name(launch), expected.attempt);
}

// mnrun's children see mnrun, regardless of what started mnrun.
TEST_P(Recorded, MnrunInsideWins) {
  const Environment environment = without_process_variables(load(GetParam().file));
  for (const auto& [name, value] : environment)
    for (const char* process :
         {"PMI_", "PMIX_RANK", "PMIX_NAMESPACE", "PMIX_SERVER", "OMPI_COMM_WORLD_", "OMPI_MCA_ess", "SLURM_STEP",
          "SLURM_PROCID", "TORCHELASTIC_", "JSM_", "MPI_LOCAL", "PALS_", "FLUX_TASK"})
      EXPECT_FALSE(name.starts_with(process)) << name << "=" << value;
  const Launch child = read_launch(environment + load("mnrun"));
  EXPECT_EQ(child.launcher, "mnrun");
  EXPECT_EQ(child.rank.value, 2);
  EXPECT_FALSE(child.under_mpi);
}

// A launcher inside mnrun wins, if it sets its own variables.
TEST_P(Recorded, InsideMnrunWins) {
  const Expected& expected = GetParam();
  if (expected.how == Expected::pod || expected.launcher == "none" || expected.launcher == "Ray Train" ||
      expected.launcher == "bcprun" || expected.launcher == "torch.distributed.launch")
    return;  // a node, not a launcher; or only RANK and related variables, which replace mnrun's
  const Launch launch = read_launch(load("mnrun") + load(expected.file));
  EXPECT_EQ(launch.launcher, expected.launcher);
  EXPECT_EQ(launch.rank.value, expected.rank);
  EXPECT_EQ(launch.world_size.value, expected.world_size);
}

INSTANTIATE_TEST_SUITE_P(Launch, Recorded, ::testing::ValuesIn(all_expected()), [](const auto& tested) {
  std::string name = tested.param.file;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '-' || c == '.' || c == '+'; }, '_');
  return name;
});

TEST(Launch, EveryRowAndEveryEnvironmentIsTested) {
  std::set<std::string> rows, tested = {"none", "pbsdsh"};  // pbsdsh has its own tests, because it needs a node file
  std::set<std::string> files, read = {"pbsdsh", "mpich-port"};
  for (const auto& row : launchers()) rows.insert(std::string(row));
  for (const auto& entry : fs::directory_iterator(ENVIRONMENTS)) files.insert(entry.path().stem());
  for (const Expected& expected : all_expected()) {
    tested.insert(expected.launcher);
    std::istringstream names(expected.file);
    for (std::string name; std::getline(names, name, '+');) read.insert(name);
  }
  rows.insert("none");
  EXPECT_EQ(tested, rows);
  EXPECT_EQ(read, files);
}

TEST(Launch, WithoutALauncherItIsOneProcess) {
  const Launch launch = read_launch({{"PATH", "/usr/bin"}, {"MASTER_ADDR", "node0"}});
  EXPECT_EQ(launch.launcher, "none");
  EXPECT_EQ(launch.world_size.value, 1);
  EXPECT_EQ(launch.rank.variable, "");
}

TEST(Launch, MasterVariablesTakePrecedence) {
  const Environment given = {{"MASTER_ADDR", "node7"}, {"MASTER_PORT", "1234"}};
  const Launch launch = read_launch(load("srun-none") + given);
  EXPECT_EQ(launch.master_address.value, "node7");
  EXPECT_EQ(launch.master_address.variable, "MASTER_ADDR");
  EXPECT_EQ(launch.master_port.value, 1234);
  EXPECT_EQ(read_launch(load("horovod") + given).master_address.value, "node7");
}

TEST(Launch, TheNodesOfTheStepTakePrecedence) {
  const Launch launch =
      read_launch(load("srun-none") + Environment{{"SLURM_STEP_NODELIST", "gpu[07-08]"}, {"SLURM_JOB_ID", "12345678"}});
  EXPECT_EQ(launch.master_address.value, "gpu07");
  EXPECT_EQ(launch.master_address.variable, "SLURM_STEP_NODELIST");
  EXPECT_EQ(launch.master_port.value, 15'678);
  Environment of_job = load("srun-none");
  of_job.erase("SLURM_STEP_NODELIST");
  EXPECT_EQ(read_launch(of_job).master_address.variable, "SLURM_JOB_NODELIST");
}

TEST(Launch, NodesOfSrunMayHaveDifferentNumbersOfTasks) {
  const Environment uneven = {{"SLURM_STEP_TASKS_PER_NODE", "3,1"}, {"SLURM_LOCALID", "0"}};
  EXPECT_EQ(value_or_unsaid(read_launch(load("srun-none") + uneven).local_size), 1);
}

TEST(Launch, ARequeuedJobIsAnotherAttempt) {
  const Environment again = load("srun-none") + Environment{{"SLURM_RESTART_COUNT", "2"}};
  EXPECT_EQ(attempt_name(read_launch(again)), "1.0/2");
}

TEST(Launch, CopiesOfSrunsNumbersAreNoOtherLauncher) {
  const Environment copies = {{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "0"}};
  EXPECT_EQ(read_launch(load("srun-none+srun-pmix") + copies).launcher, "srun --mpi=pmix");
}

TEST(Launch, AnMpiJobOfBcpStartsOneReplica) {
  const Environment mpi_job = {{"NGC_ARRAY_TYPE", "MPIJob"}};
  EXPECT_EQ(read_launch(load("bcp-replica") + mpi_job).launcher, "none");
}

TEST(Launch, AUsersMpiSettingsStay) {
  const Environment user = {{"OMPI_MCA_btl", "self,tcp"}, {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                            {"PMIX_MCA_gds", "hash"},     {"I_MPI_FABRICS", "shm"},
                            {"SLURM_JOB_ID", "7"},        {"HOROVOD_FUSION_THRESHOLD", "0"},
                            {"PATH", "/usr/bin"}};
  EXPECT_EQ(without_process_variables(user), user);
}

// Contradictions are refused with one line that names the variable and its value.
struct Contradiction {
  std::string file;
  Environment change;  // "-": the variable is removed
  std::vector<std::string> says;
};

const std::vector<Contradiction> contradictions = {
    // not numbers
    {"open-mpi-4", {{"OMPI_COMM_WORLD_RANK", "two"}}, {"OMPI_COMM_WORLD_RANK=two", "not a number"}},
    {"open-mpi-4", {{"OMPI_COMM_WORLD_RANK", ""}}, {"OMPI_COMM_WORLD_RANK=", "not a number"}},
    {"mpich-4", {{"PMI_RANK", "-1"}}, {"PMI_RANK=-1", "not a number"}},
    {"mpich-4", {{"PMI_SIZE", "2147483648"}}, {"PMI_SIZE=2147483648", "not a number"}},
    {"torchrun-static", {{"TORCHELASTIC_RESTART_COUNT", "x"}}, {"TORCHELASTIC_RESTART_COUNT=x"}},
    {"torchrun-static", {{"RANK", "a\nb\x01"}}, {"RANK=a?b?"}},
    // sizes
    {"torchrun-static", {{"RANK", "2"}}, {"RANK=2", "WORLD_SIZE=2"}},
    {"open-mpi-5", {{"OMPI_COMM_WORLD_SIZE", "0"}}, {"OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=0"}},
    {"torchrun-static", {{"LOCAL_RANK", "2"}}, {"LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2"}},
    {"torchrun-static", {{"LOCAL_WORLD_SIZE", "3"}}, {"LOCAL_WORLD_SIZE=3", "WORLD_SIZE=2"}},
    {"torchrun-static", {{"GROUP_RANK", "1"}}, {"GROUP_RANK=1", "GROUP_WORLD_SIZE=1"}},
    {"torchrun-static", {{"GROUP_WORLD_SIZE", "3"}}, {"GROUP_WORLD_SIZE=3", "WORLD_SIZE=2"}},
    {"torch-distributed-launch-1.8", {{"LOCAL_RANK", "4"}}, {"LOCAL_RANK=4", "WORLD_SIZE=4"}},
    {"srun-none", {{"SLURM_STEP_TASKS_PER_NODE", "2,1"}}, {"SLURM_STEP_TASKS_PER_NODE=2,1", "SLURM_STEP_NUM_TASKS=4"}},
    {"srun-none", {{"SLURM_STEP_TASKS_PER_NODE", "4"}}, {"SLURM_STEP_TASKS_PER_NODE=4", "SLURM_NODEID=1"}},
    {"srun-none", {{"SLURM_STEP_TASKS_PER_NODE", "2(x"}}, {"SLURM_STEP_TASKS_PER_NODE: '2(x'"}},
    {"srun-none",
     {{"SLURM_STEP_NODELIST", "-"}, {"SLURM_JOB_NODELIST", "-"}},
     {"the port is 10001, from SLURM_JOB_ID, but MASTER_ADDR is not set"}},
    {"srun-none", {{"SLURM_STEP_NODELIST", "node[0-"}}, {"SLURM_STEP_NODELIST: 'node[0-'"}},
    {"srun-none+srun-pmix", {{"PMIX_RANK", "1"}}, {"PMIX_RANK=1", "SLURM_PROCID=2"}},
    // missing
    {"open-mpi-4", {{"OMPI_COMM_WORLD_SIZE", "-"}}, {"OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE is not set"}},
    {"mnrun", {{"RANK", "-"}}, {"MNRUN_STORE=127.0.0.1:29400, but", "RANK is not set"}},
    {"mnrun", {{"MNRUN_STORE", "nowhere"}}, {"MNRUN_STORE", "nowhere"}},
    {"cluster", {{"CLUSTER_STORE", "nowhere"}}, {"CLUSTER_STORE", "nowhere"}},
    {"", {{"WORLD_SIZE", "4"}}, {"WORLD_SIZE=4 without RANK"}},
    {"", {{"RANK", "1"}}, {"RANK=1 without WORLD_SIZE"}},
    {"", {{"LOCAL_RANK", "1"}}, {"LOCAL_RANK=1 without RANK"}},
    {"", {{"RANK", "0"}, {"WORLD_SIZE", "2"}}, {"RANK=0 without LOCAL_RANK"}},  // no pod: KUBERNETES_SERVICE_HOST
    {"", {{"HOROVOD_RANK", "1"}, {"HOROVOD_SIZE", "2"}}, {"HOROVOD_LOCAL_RANK is not set"}},
    {"pals", {{"PMI_SIZE", "-"}}, {"PALS_RANKID=5", "PMI_SIZE is not set"}},
    {"", {{"JSM_NAMESPACE_RANK", "1"}}, {"JSM_NAMESPACE_RANK=1", "JSM_NAMESPACE_SIZE is not set"}},
    // launchers that the table lacks
    {"",
     {{"MV2_COMM_WORLD_RANK", "0"}, {"MV2_COMM_WORLD_SIZE", "4"}},
     {"MV2_COMM_WORLD_RANK=0 beside MV2_COMM_WORLD_SIZE=4 says that there are several", "for one process set RANK=0"}},
    {"sbatch-script", {{"PMIX_RANK", "0"}}, {"PMIX_RANK=0"}},
    {"", {{"WORLD_SIZE", "many"}}, {"WORLD_SIZE=many", "not a number"}},
    {"mpich-port", {}, {"MPI_LOCALRANKID=1", "-pmi-port"}},
    {"", {{"PMI_RANK", "0"}}, {"PMI_RANK=0"}},
    {"", {{"PMIX_RANK", "3"}}, {"PMIX_RANK=3"}},
    // the master endpoint
    {"torchrun-static", {{"MASTER_ADDR", "-"}}, {"MASTER_ADDR is not set"}},
    {"torchrun-static", {{"MASTER_PORT", "-"}}, {"MASTER_PORT is not set"}},
    {"torchrun-static", {{"MASTER_PORT", "0"}}, {"MASTER_PORT=0", "not a port"}},
    {"torchrun-static", {{"MASTER_PORT", "70000"}}, {"MASTER_PORT=70000", "not a port"}},
    {"torchrun-static", {{"MASTER_ADDR", "a b"}}, {"MASTER_ADDR: 'a b'", "neither a host name"}},
    {"torchrun-static", {{"MASTER_ADDR", std::string(256, 'a')}}, {"MASTER_ADDR: 'aaa", "..."}},
    {"torch-distributed-launch-1.8", {{"MASTER_ADDR", "-"}}, {"MASTER_PORT=29500", "MASTER_ADDR is not set"}},
    {"torch-distributed-launch-1.8", {{"MASTER_PORT", "-"}}, {"MASTER_ADDR=node0", "MASTER_PORT is not set"}},
    // pods
    {"kubeflow-pytorchjob-1.9",
     {{"PET_NPROC_PER_NODE", "4"}, {"WORLD_SIZE", "8"}},
     {"PET_NPROC_PER_NODE says 4", "with mnrun or torchrun"}},
    {"kubeflow-pytorchjob-1.9", {{"WORLD_SIZE", "8"}}, {"WORLD_SIZE=8", "PET_NNODES=2", "with mnrun or torchrun"}},
    {"kubeflow-pytorchjob-1.9", {{"RANK", "0"}}, {"RANK=0", "PET_NODE_RANK=1"}},
    {"kubeflow-trainer-2", {{"PET_NPROC_PER_NODE", "8"}}, {"PET_NPROC_PER_NODE says 8"}},
    {"", {{"PET_NNODES", "1:3"}}, {"PET_NNODES=1:3"}},
    {"", {{"PET_NNODES", "2"}, {"PET_RDZV_BACKEND", "c10d"}}, {"PET_NNODES=2 without PET_NODE_RANK"}},
    {"", {{"PET_NNODES", "1:1"}, {"PET_NPROC_PER_NODE", "2"}}, {"PET_NPROC_PER_NODE=2 without PET_NODE_RANK"}},
    {"bcp-replica", {{"NGC_ARRAY_INDEX", "2"}}, {"NGC_ARRAY_INDEX=2", "NGC_ARRAY_SIZE=2"}},
    {"pbsdsh", {}, {"PBS_NODENUM=1", "PBS_NODEFILE"}},
    {"pbsdsh", {{"PBS_NODEFILE", "/nowhere"}}, {"PBS_NODEFILE: cannot read /nowhere: No such"}},
    {"pbsdsh", {{"PBS_NODEFILE", "/dev/zero"}}, {"PBS_NODEFILE: cannot read /dev/zero: it is not a regular file"}},
};

TEST(Launch, ContradictionsAreRefused) {
  for (const auto& [file, change, says] : contradictions) {
    SCOPED_TRACE(file + ": " + says.front());
    Environment environment = file.empty() ? change : load(file) + change;
    std::erase_if(environment, [](const auto& variable) { return variable.second == "-"; });
    const std::string what = refusal(environment);
    for (const std::string& part : says) EXPECT_SAYS(what, part);
  }
}

struct NodeFile {
  explicit NodeFile(const std::string& text) { std::ofstream(path) << text; }
  Environment as(const std::string& name) const { return {{name, path.string()}}; }

  const multinode::testing::TemporaryFolder folder;
  const fs::path path = folder / "nodes";
};

TEST(Launch, PbsdshCountsTheNodeFile) {
  const NodeFile nodes("node0\nnode1\n");
  const Launch launch = read_launch(load("pbsdsh") + nodes.as("PBS_NODEFILE"));
  EXPECT_EQ(launch.launcher, "pbsdsh");
  EXPECT_EQ(launch.rank.value, 1);
  EXPECT_EQ(launch.world_size.value, 2);
  EXPECT_EQ(launch.master_address.value, "node0");
  EXPECT_EQ(launch.master_address.variable, "PBS_NODEFILE");
  EXPECT_EQ(launch.master_port.value, 11'234);
  EXPECT_EQ(read_launch(load("pbs-script") + nodes.as("PBS_NODEFILE")).launcher, "none");
}

TEST(Launch, PbsdshWithSeveralSlotsPerNodeIsRefused) {
  const NodeFile nodes("node0\nnode0\nnode1\nnode1\n");
  const std::string what = refusal(load("pbsdsh") + nodes.as("PBS_NODEFILE"));
  EXPECT_SAYS(what, "PBS_NODEFILE says 2 processes per node: start the processes of this node with mnrun or torchrun");
}

TEST(Launch, AnInvalidNodeFileIsRefused) {
  for (const std::string text : {"", "\n\n", "node 0\n", "\177ELF\n"}) {
    const NodeFile nodes(text);
    const std::string what = refusal(load("pbsdsh") + nodes.as("PBS_NODEFILE"));
    EXPECT_SAYS(what, "PBS_NODEFILE: ");
  }
}

// On a machine with a launch node, that is the first host, and runs no rank.
TEST(Launch, JsrunMeetsOnTheFirstHostWithRanks) {
  const Environment one_per_node = {
      {"JSM_NAMESPACE_SIZE", "2"}, {"JSM_NAMESPACE_RANK", "1"}, {"JSM_NAMESPACE_LOCAL_SIZE", "1"}};
  const struct {
    std::string lines;
    Environment change;
    std::string host;
  } cases[] = {
      {"host1\nhost1\nhost2\nhost2\n", {}, "host1"},
      {"batch2\na01n01\na01n01\na01n02\na01n02\n", {}, "a01n01"},
      {"batch2\na01n01\na01n02\n", one_per_node, "a01n01"},
      {"host1\nhost2\n", one_per_node, "host1"},
  };
  for (const auto& [lines, change, host] : cases) {
    const NodeFile nodes(lines);
    const Environment jsrun = load("jsrun") + change;
    const Launch launch = read_launch(jsrun + nodes.as("LSB_DJOB_RANKFILE"));
    EXPECT_EQ(launch.master_address.value, host) << lines;
    EXPECT_EQ(launch.master_address.variable, "LSB_DJOB_RANKFILE");
  }
  const Environment long_list = {{"LSB_MCPU_HOSTS", "batch2 1 a01n01 42 a01n02 42"}};
  EXPECT_EQ(read_launch(load("jsrun") + long_list).master_address.value, "a01n01");
  EXPECT_SAYS(refusal(load("jsrun") + Environment{{"LSB_MCPU_HOSTS", "a01n01 b"}}), "LSB_MCPU_HOSTS=");
}

// Slurm's lists are sorted; a host file is not.
TEST(Launch, SrunWithAHostFileMeetsOnItsFirstHost) {
  const NodeFile file("node1\nnode0\n");
  const Environment arbitrary = {{"SLURM_DISTRIBUTION", "arbitrary"}};
  const Environment srun = load("srun-none") + arbitrary;
  EXPECT_EQ(read_launch(srun + file.as("SLURM_HOSTFILE")).master_address.value, "node1");
  EXPECT_SAYS(refusal(srun + Environment{{"SLURM_HOSTFILE", "/nowhere"}}), "SLURM_HOSTFILE: cannot read /nowhere");
  EXPECT_EQ(read_launch(load("srun-none+srun-pmix") + arbitrary).master_address.value, "");  // MPI knows it
}

TEST(Launch, PalsWithoutPmiCountsTheNodeFile) {
  const NodeFile file("x3006c0s13b0n0\nx3006c0s19b0n0\n");
  Environment pals = load("pals") + file.as("PBS_NODEFILE");
  std::erase_if(pals, [](const auto& variable) { return variable.first.starts_with("PMI_"); });
  const Launch launch = read_launch(pals);
  EXPECT_EQ(launch.rank.value, 5);
  EXPECT_EQ(launch.world_size.value, 8);
  EXPECT_FALSE(launch.under_mpi);
  EXPECT_EQ(launch.master_address.value, "x3006c0s13b0n0");
  EXPECT_EQ(launch.master_port.value, 13'210);
}

// Below a launcher whose variables something has removed. A copy of the shell plays the launcher.
TEST(Launch, AProcessWithoutItsLaunchersVariablesIsRefused) {
  const multinode::testing::TemporaryFolder folder;
  for (const std::string name : {"mpirun", "orted", "hydra_pmi_proxy", "mnrun", "pt_elastic"}) {
    fs::copy_file("/bin/sh", folder / name, fs::copy_options::overwrite_existing);
    const auto below = [&](const std::string& command) {
      return multinode::testing::run({folder / name, "-c", command + "; exit $?"});
    };
    const auto refused = below("env -i " PATH_world_program);
    EXPECT_EQ(refused.status, 2) << refused.out;
    EXPECT_SAYS(refused.err, "started below " + name + " (pid ");
    EXPECT_EQ(below("env -i RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 " PATH_world_program).status, 0);
  }
}

struct ExpectedNodes {
  int node_rank, node_count;
  std::string processes;
  std::string address;
};

void expect_nodes(const Environment& environment, const ExpectedNodes& expected) {
  const Nodes nodes = read_nodes(environment);
  EXPECT_EQ(value_or_unsaid(nodes.node_rank), expected.node_rank);
  EXPECT_EQ(value_or_unsaid(nodes.node_count), expected.node_count);
  EXPECT_EQ(nodes.processes_per_node ? nodes.processes_per_node->value : "", expected.processes);
  EXPECT_EQ(nodes.master_address.value + ":" + std::to_string(nodes.master_port.value), expected.address);
}

TEST(ReadNodes, EveryBatchSystem) {
  const std::map<std::string, ExpectedNodes> all = {
      {"bcp-replica", {1, 2, "8", "launcher-svc-1234567:29500"}},
      {"kubeflow-pytorchjob-1.9", {1, 2, "1", "job-master-0:23456"}},
      {"runai-pod+kubeflow-pytorchjob-1.9", {1, 2, "1", "job-master-0:23456"}},
      {"kubeflow-pytorchjob-old", {1, 2, "", "job-master-0:23456"}},
      {"kubeflow-trainer-2", {1, 2, "auto", "job-node-0-0.job:29400"}},
      {"leader-worker-set", {1, 2, "", "ep-0.ep.default:29500"}},
      {"runai-pod", {1, 2, "4", "job-master-0:23456"}},
      {"sbatch-script", {unsaid, unsaid, "", ":0"}},
  };
  for (const auto& [file, expected] : all) {
    SCOPED_TRACE(file);
    expect_nodes(load(file), expected);
  }
}

// Under a launcher of processes an agent is a node if the launcher has started one per node.
TEST(ReadNodes, OneAgentPerNode) {
  const Environment one_a_node = {
      {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}, {"SLURM_PROCID", "1"}};
  expect_nodes(load("srun-none") + one_a_node, {1, 2, "", "node0:10001"});
  expect_nodes(load("bcprun") + Environment{{"RANK", "1"}, {"LOCAL_RANK", "0"}, {"WORLD_SIZE", "2"}},
               {1, 2, "", "launcher-svc-1234567:29500"});
  expect_nodes(load("jsrun") + Environment{{"JSM_NAMESPACE_LOCAL_SIZE", "1"}}, {2, 4, "", ":0"});
  expect_nodes(
      load("open-mpi-4") + Environment{{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}},
      {2, 4, "", ":0"});
  for (const auto& [file, says] : {std::pair("srun-none", "srun started 4 processes, but SLURM_STEP_NUM_NODES=2"),
                                   {"jsrun", "jsrun started 4 processes, several per node: start one mnrun per node"},
                                   {"bcprun", "bcprun started 4"},
                                   {"torch-distributed-launch-1.8", "torch.distributed.launch started 4"}})
    EXPECT_SAYS(testing::error_text<UsageError>([&] { read_nodes(load(file)); }), says);
}

// A job's script runs on the first node only, and does not count the others.
TEST(ReadNodes, PbsCountsTheNodeFile) {
  const NodeFile file("node0\nnode0\nnode1\n");
  expect_nodes(load("pbsdsh") + file.as("PBS_NODEFILE"), {1, 2, "1", "node0:11234"});
  expect_nodes(load("pbs-script") + file.as("PBS_NODEFILE"), {unsaid, unsaid, "2", "node0:11234"});
}

TEST(ReadNodes, ElasticPodsMeetAtTheirEndpoint) {
  expect_nodes(
      {{"PET_NODE_RANK", "0"}, {"PET_NNODES", "2:2"}, {"PET_RDZV_ENDPOINT", "job-worker-0:23456"}, {"RANK", "0"}},
      {0, 2, "", "job-worker-0:23456"});
}

TEST(ReadNodes, ContradictionsAreRefused) {
  const auto said = [](const Environment& environment) {
    return testing::error_text<UsageError>([&] { read_nodes(environment); });
  };
  EXPECT_SAYS(said({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"RUNAI_NUM_OF_GPUS", "1"}}),
              "RANK=2 must be less than WORLD_SIZE=2");
  EXPECT_SAYS(said({{"MASTER_PORT", "0"}}), "MASTER_PORT=0");
}

using Names = std::vector<std::string>;

TEST(HostList, Expands) {
  EXPECT_THROW(expand_host_list("a,-oProxyCommand"), UsageError);
  EXPECT_FALSE(is_host_name("-oProxyCommand"));
  EXPECT_FALSE(is_host_name("a;b"));
  EXPECT_TRUE(is_host_name("gpu-1.example.org"));
  EXPECT_EQ(expand_host_list("node0"), (Names{"node0"}));
  EXPECT_EQ(expand_host_list("gpu[1-3,07-08],login"), (Names{"gpu1", "gpu2", "gpu3", "gpu07", "gpu08", "login"}));
  EXPECT_EQ(expand_host_list("n[9-11]"), (Names{"n9", "n10", "n11"}));
  EXPECT_EQ(expand_host_list("n[098-101]"), (Names{"n098", "n099", "n100", "n101"}));
  EXPECT_EQ(expand_host_list("r[0-1]n[1,3].example.org"),
            (Names{"r0n1.example.org", "r0n3.example.org", "r1n1.example.org", "r1n3.example.org"}));
  EXPECT_EQ(expand_host_list("a,a-b_c.d"), (Names{"a", "a-b_c.d"}));
  EXPECT_EQ(expand_host_list("[5]"), (Names{"5"}));
  EXPECT_EQ(expand_host_list("n[0-65535]").size(), 65'536u);
  EXPECT_EQ(expand_host_list("n[0-65535]").back(), "n65535");
}

TEST(HostList, RefusesInvalidLists) {
  std::vector<std::string> invalid = {"", "a[1 ]", "a b", "a\nb"};
  std::istringstream words(
      ", a, ,a a,,b a[ a] a[] a[1 a[1-] a[-1] a[1-2-3] a[2-1] a[01-010] a[1,] a[x] (null) a[[1]] a[1]] a[0-65536] "
      "a[0-65535],b a[0-255][0-256] a[0-99999999999999999999] a[1234567890] node0;rm");
  invalid.insert(invalid.end(), std::istream_iterator<std::string>(words), {});
  for (const std::string& text : invalid) {
    const std::string what = testing::error_text<UsageError>([&] { expand_host_list(text); });
    EXPECT_NE(what.find("is not a host list"), what.npos) << text << ": " << what;
  }
  EXPECT_SAYS(testing::error_text<UsageError>([] { expand_host_list("a[2-1]"); }), "'2-1' counts down");
  EXPECT_SAYS(testing::error_text<UsageError>([] { expand_host_list(std::string(256, 'a')); }), "longer than 255");
}

TEST(TasksPerNode, Expands) {
  EXPECT_EQ(expand_tasks_per_node("4"), (std::vector<int>{4}));
  EXPECT_EQ(expand_tasks_per_node("2(x3),1"), (std::vector<int>{2, 2, 2, 1}));
  EXPECT_EQ(expand_tasks_per_node("1(x65536)").size(), 65'536u);
}

TEST(TasksPerNode, RefusesInvalidLists) {
  for (const std::string text : {"", ",", "2,", "x", "2(x", "2(x)", "2(3)", "(x2)", "2(x2)3", "0", "2(x0)", "-1",
                                 "2(x-1)", "1(x65537)", "1(x65536),1", "99999999999", "2 "}) {
    const std::string what = testing::error_text<UsageError>([&] { expand_tasks_per_node(text); });
    EXPECT_NE(what.find("list of tasks per node"), what.npos) << text << ": " << what;
  }
}

}  // namespace
}  // namespace multinode
