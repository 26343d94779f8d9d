// Which launcher started this process, and as which rank? Prints the launchers' variables and says which to believe.
//
//   g++ -std=c++20 -O2 who_am_i.cpp -o who_am_i
//   mpirun -n 4 ./who_am_i
//
// Exit status: 0 if the numbers that it believes make sense, 1 if they contradict each other.
// After: hello_mpi.cpp.
// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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

// NAME=VALUE of a variable that looks like a rank and belongs to no launcher of the table; empty if there is none.
std::string unknown_rank() {
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable, name = text.substr(0, text.find('='));
    bool known = false;
    for (const Launcher& launcher : launchers) known = known || name == launcher.rank;
    if (!known && (name.ends_with("RANK") || name.ends_with("RANKID") || name.ends_with("PROCID")))
      return std::string(text);
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
  const std::string unknown = believed ? "" : unknown_rank();
  const bool right = rank >= 0 && rank < size && local_rank >= 0 && local_rank < size && unknown.empty();

  if (rank == 0 || !right)  // one table is enough
    for (const Launcher& launcher : launchers)
      std::printf("%-28s  %-22s  %-22s  %s\n", launcher.name, show(launcher.rank).c_str(), show(launcher.size).c_str(),
                  show(launcher.local).c_str());
  const char* const verdict = right ? "RIGHT" : "WRONG";
  if (!unknown.empty())
    std::printf("%s: no known launcher, but %s looks like a rank: add this launcher's variables to the table\n",
                verdict, unknown.c_str());
  else if (believed == nullptr)
    std::printf("%s: rank 0 of 1, local rank 0: no launcher, this process is the only one\n", verdict);
  else if (believed->per_process)
    std::printf("%s: rank %d of %d, local rank %d, says %s\n", verdict, rank, size, local_rank, believed->name);
  else
    std::printf("%s: node %d of %d, says %s: start the processes of this node with torchrun or mnrun\n", verdict, rank,
                size, believed->name);
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("who_am_i: standard output"), 1;
  return right ? 0 : 1;
}
