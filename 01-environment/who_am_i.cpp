// Which launcher started this process, and as which rank? Prints the launchers' variables and says which to believe.
//
//   g++ -std=c++20 -O2 who_am_i.cpp -o who_am_i
//   mpirun -n 4 ./who_am_i
//
// Exit status: 0 if the numbers that it believes make sense, 1 if they contradict each other, 2 if it cannot tell
// whether it is the only process.
// After: hello_mpi.cpp. New since hello_mpi: the launchers' variables, without MPI.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <regex>
#include <string>

extern char** environ;  // all variables, as NAME=VALUE

struct Launcher {
  const char *name, *rank, *size, *local;
  bool per_process;  // false: one process per node; rank and size count nodes, local counts a node's processes
};

// Launchers nest: torchrun in srun, mpirun in a pod. The outer launcher's variables are then still set, but they count
// something else. So this list begins with the innermost, and the first launcher whose variables are all set is
// believed.
constexpr Launcher launchers[] = {
    {"torchrun, mnrun, bcprun, Ray", "RANK", "WORLD_SIZE", "LOCAL_RANK", true},
    {"mpirun (Open MPI)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", true},
    {"mpirun (MPICH, Intel MPI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", true},
    {"mpiexec (Cray PALS)", "PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", true},
    {"flux run", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", true},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", true},
    {"pod (Kubeflow)", "PET_NODE_RANK", "PET_NNODES", "PET_NPROC_PER_NODE", false},
    {"pod (Run:ai)", "RANK", "WORLD_SIZE", "RUNAI_NUM_OF_GPUS", false},  // no LOCAL_RANK: these count pods
    {"replica (BCP)", "NGC_ARRAY_INDEX", "NGC_ARRAY_SIZE", "NGC_GPUS_PER_NODE", false},
    {"pod (LeaderWorkerSet)", "LWS_WORKER_INDEX", "LWS_GROUP_SIZE", "LWS_LEADER_ADDRESS", false},
};

bool is_set(const char* variable) { return std::getenv(variable) != nullptr; }

std::string show(const char* variable) {
  return is_set(variable) ? std::string(variable) + "=" + std::getenv(variable) : std::string(variable) + " -";
}

// -1 if the variable is not set or is not a number.
int number(const char* variable) {
  const std::string text = is_set(variable) ? std::getenv(variable) : "";
  const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  return digits && text.size() < 10 ? std::stoi(text) : -1;
}

std::string sign_of_others();  // below: of launchers that the list lacks

int main() {
  const Launcher* believed = nullptr;
  for (const Launcher& launcher : launchers)
    if (believed == nullptr && is_set(launcher.rank) && is_set(launcher.size) &&
        (is_set(launcher.local) || !launcher.per_process))
      believed = &launcher;

  const int rank = believed ? number(believed->rank) : 0, size = believed ? number(believed->size) : 1;
  const int local_rank = believed && believed->per_process ? number(believed->local) : 0;
  const std::string others = believed ? "" : sign_of_others();
  const bool right = rank >= 0 && rank < size && local_rank >= 0 && local_rank < size && others.empty();

  if (rank == 0 || !right)  // one table is enough
    for (const Launcher& launcher : launchers)
      std::printf("%-28s  %-22s  %-22s  %s\n", launcher.name, show(launcher.rank).c_str(), show(launcher.size).c_str(),
                  show(launcher.local).c_str());
  const char* const verdict = right ? "RIGHT" : "WRONG";
  if (!others.empty())
    std::printf("%s: no complete row of a launcher, but %s\n", verdict, others.c_str());
  else if (believed == nullptr)
    std::printf("%s: rank 0 of 1, local rank 0: no launcher, this process is the only one\n", verdict);
  else if (believed->per_process)
    std::printf("%s: rank %d of %d, local rank %d, says %s\n", verdict, rank, size, local_rank, believed->name);
  else
    std::printf("%s: node %d of %d, says %s: start the processes of this node with torchrun or mnrun\n", verdict, rank,
                size, believed->name);
  // If srun started this launcher, it also started one in each of its other tasks.
  const bool own = believed == &launchers[0] ? number("GROUP_WORLD_SIZE") == 1 : believed == &launchers[1];
  if (own && rank == 0 && number("SLURM_STEP_NUM_TASKS") > 1)
    std::printf(
        "WARNING: srun started %d tasks, and this is the world of one of them: start one launcher, without srun\n",
        number("SLURM_STEP_NUM_TASKS"));
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("who_am_i: standard output"), 1;
  return right ? 0 : others.empty() ? 1 : 2;
}

// For a process that believes no launcher: what says that there may be others; empty if nothing does. The variables of
// a launcher that the list lacks begin with the same word: X_TASK_INDEX=0 beside X_WORKER_NUM=2, or beside X_HOSTS=a,b.
// mnrun has the same patterns (common/multinode/launch/launch.cpp), and 01.Mnrun.AndWhoAmIRefuse... compares the two.
std::string sign_of_others() {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "PET_NNODES", "PET_NPROC_PER_NODE"})
    if (is_set(name)) return show(name) + " is set";
  const std::string first =  // with these words begin the sizes and numbers of other things
      "(?!(SLURM|PBS|LSB|BATCH|BLOCK|BUILD|BUFFER|CACHE|CHUNK|CORE|CPU|DATA|FILE|GPU|IMAGE|JOB|PAGE|POOL|RUN|TEST)_)"
      "_?[^_]+_";
  const std::string one =
      "(NODE|WORKER|PROC|PROCESS|RANK|HOST|REPLICA|TRAINER|MACHINE|MEMBER|POD|PEER|GROUP|WORLD|SLICE)";
  const std::regex index(first + "(.*RANK(ID)?|(.*_)?(TASK|ROLE|" + one + ")_?(INDEX|ID|NO)|INDEX|ID)");
  const std::regex count(first + "(.*N(UM_)?(TASK|" + one + ")(S|ES)?|(.*_)?" + one +
                         "S?_(SIZE|NUM|COUNT)|SIZE|NUM|COUNT)");
  const std::regex this_host(first + "(.*_)?CURRENT_HOST"), hosts(first + "(.*_)?(HOSTS|HOSTNAMES)");
  for (char** i = environ; *i != nullptr; ++i) {
    const std::string mine(*i, std::strcspn(*i, "=")), word = mine.substr(0, mine.find('_', 1) + 1);
    const int rank = number(mine.c_str());
    if (!(rank >= 0 && std::regex_match(mine, index)) && !std::regex_match(mine, this_host)) continue;
    if (word == "PMI_" || word == "PMIX_") return show(mine.c_str()) + " is set";
    long entries = 0;  // of all lists of hosts
    for (char** j = environ; *j != nullptr; ++j) {
      const std::string other(*j, std::strcspn(*j, "=")), text = *j;
      if (!other.starts_with(word)) continue;
      if (std::regex_match(other, hosts)) entries += 1 + std::count(text.begin(), text.end(), ',');
      const int size = number(other.c_str());
      if (entries > 1 || (size > 1 && size >= rank && std::regex_match(other, count)))
        return show(mine.c_str()) + " beside " + text;
    }
  }
  // A launcher among this process's ancestors, if something on the way (sudo, env -i) has removed its variables.
  std::string name, state;
  for (int pid = getppid(); pid > 1;) {  // /proc/PID/stat: PID (NAME) STATE PARENT ...
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    if (!std::getline(stat, name, '(') || !std::getline(stat, name, ')') || !(stat >> state >> pid)) break;
    if (name == "slurmstepd" && is_set("SLURM_JOB_ID")) break;  // a batch script
    for (const char* launcher :
         {"mpirun", "mpiexec", "orted", "prted", "hydra_pmi_proxy", "slurmstepd", "mnrun", "torchrun"})
      if (name == launcher) return name + " started it, without its variables";
  }
  return {};
}
