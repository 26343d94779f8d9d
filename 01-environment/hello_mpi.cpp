// Every process says who it is: rank, host, local rank. Checked: the ranks are 0 to size - 1, and none is missing.
//
//   mpicxx -std=c++20 -O2 hello_mpi.cpp -o hello_mpi
//   mpirun -n 4 ./hello_mpi
//
// Exit status: 0 if the numbers are right, 1 if not, 2 if it is alone although a launcher may have started several.
// After: six_calls.cpp. New since six_calls: a communicator of the processes of a node.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

struct Who {
  int rank, local_rank, local_size;
  char host[MPI_MAX_PROCESSOR_NAME];
};

// For a process that MPI says is alone: why it should not be; "" if it may. An mpirun tells its processes their number
// in a variable. Another MPI does not know the variable, and sudo, env -i or a container may remove it.
std::string why_not_alone() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "WORLD_SIZE"})
    if (const char* started = std::getenv(variable))
      return std::atoi(started) == 1
                 ? ""
                 : std::string(variable) + " says " + started +
                       " processes, MPI says 1: use the mpirun of the MPI that compiled the program";
  std::string name, state;
  for (int pid = getppid(); pid > 1;) {  // /proc/PID/stat: PID (NAME) STATE PARENT ...
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    if (!std::getline(stat, name, '(') || !std::getline(stat, name, ')') || !(stat >> state >> pid)) break;
    const bool step = name == "slurmstepd" && std::getenv("SLURM_JOB_ID") == nullptr;  // else a batch script, perhaps
    if (step || name == "mpirun" || name == "mpiexec" || name == "orted" || name == "prted" ||
        name == "hydra_pmi_proxy")
      return "started below " + name + ", but its variables are missing: keep the environment (sudo -E, no env -i)";
  }
  return "";
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int size = 0, length = 0;
  Who me{};
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_rank(MPI_COMM_WORLD, &me.rank);
  MPI_Get_processor_name(me.host, &length);

  // Processes that can share memory are on the same node. The rank in a communicator of these processes is the local
  // rank, which says which GPU of the node to use.
  MPI_Comm node = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
  MPI_Comm_rank(node, &me.local_rank);
  MPI_Comm_size(node, &me.local_size);
  MPI_Comm_free(&node);

  // Rank 0 hears from all. Each node has one process with local rank 0, whose local size is the size of the node.
  int nodes = 0, processes = 0, wrong = 0;
  long long sum = 0;
  if (me.rank > 0) MPI_Send(&me, sizeof me, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
  for (int peer = 0; me.rank == 0 && peer < size; ++peer) {
    Who process = me;
    if (peer > 0) MPI_Recv(&process, sizeof process, MPI_BYTE, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    std::printf("rank %d of %d on host %s, local rank %d of %d\n", process.rank, size, process.host, process.local_rank,
                process.local_size);
    wrong += process.rank != peer || process.local_rank >= process.local_size;
    sum += process.rank;
    if (process.local_rank == 0) {
      ++nodes;
      processes += process.local_size;
    }
  }

  const bool right = me.rank > 0 || (wrong == 0 && processes == size && sum == size * (size - 1LL) / 2);
  const std::string why = size == 1 ? why_not_alone() : "";
  if (!why.empty())
    std::printf("WRONG: %s\n", why.c_str());
  else if (me.rank == 0)
    std::printf("%s: %d process%s on %d node%s, the sum of the ranks is %lld\n", right ? "RIGHT" : "WRONG", size,
                size == 1 ? "" : "es", nodes, nodes == 1 ? "" : "s", sum);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("hello_mpi: standard output"), 1;
  return !why.empty() ? 2 : right ? 0 : 1;
}
