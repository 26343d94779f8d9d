// Which launcher started this process, and as which rank? Prints the launchers' variables and says which to believe.
//
//   g++ -std=c++20 -O2 who_am_i.cpp -o who_am_i
//   mpirun -n 4 ./who_am_i
//
// Exit status: 0 if the numbers that it believes make sense, 1 if they contradict each other, 2 if it cannot tell
// whether it is the only process. After: hello_mpi.cpp. SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

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
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", true},
    {"pod (Kubeflow)", "PET_NODE_RANK", "PET_NNODES", "PET_NPROC_PER_NODE", false},
    {"pod (Run:ai)", "RANK", "WORLD_SIZE", "RUNAI_NUM_OF_GPUS", false},  // no LOCAL_RANK: these count pods
    {"replica (BCP)", "NGC_ARRAY_INDEX", "NGC_ARRAY_SIZE", "NGC_GPUS_PER_NODE", false},
};

bool is_set(const char* variable) { return std::getenv(variable) != nullptr; }

std::string show(const char* variable) {
  return is_set(variable) ? std::string(variable) + "=" + std::getenv(variable) : std::string(variable) + " -";
}

// -1 if the variable is not set or is not a number.
int number(const char* variable) {
  const char* const text = std::getenv(variable);
  if (text == nullptr) return -1;
  int value = -1;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), value);
  return error == std::errc() && *end == '\0' ? value : -1;
}

// For a process that believes no launcher: what says that there may be others; empty if nothing does.
std::string sign_of_others() {
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable, name = text.substr(0, text.find('='));
    const bool rank = name.ends_with("RANK") || name.ends_with("RANKID") || name.ends_with("PROCID");
    const bool nodes = name == "PET_NNODES" || name == "PET_NPROC_PER_NODE";  // torchrun's options
    if ((rank || nodes) && name != "SLURM_PROCID")                            // a batch script of Slurm has it
      return std::string(text) + " is set";
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
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("who_am_i: standard output"), 1;
  return right ? 0 : others.empty() ? 1 : 2;
}
