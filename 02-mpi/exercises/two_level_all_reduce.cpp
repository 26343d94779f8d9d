// An all-reduce in two levels: first inside each node, then between the nodes. Only one process per node uses the
// network.
//
//   mpicxx -std=c++20 -O2 two_level_all_reduce.cpp -o two_level_all_reduce
//   mpirun -n 4 ./two_level_all_reduce
//
// Exit status: 0 if every element is right and the communicators are, 1 if not.
// After: collectives.cpp.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

// The processes with local rank 0, one of each node. On all other processes: MPI_COMM_NULL.
MPI_Comm make_leaders(MPI_Comm node) {
  // TODO (exercise): make it. Ranks that are no leaders get no communicator.
  static_cast<void>(node);
  return MPI_COMM_NULL;
}

// Every rank gets the sum over all ranks.
void all_reduce(std::vector<int>& data, MPI_Comm node, MPI_Comm leaders) {
  // TODO (exercise): three calls, none of them on MPI_COMM_WORLD. Only leaders may communicate between nodes.
  static_cast<void>(data), static_cast<void>(node), static_cast<void>(leaders);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1, local_rank = 0, number_of_leaders = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;

  // On one machine there is one node: pretend that each node has two processes. On a cluster, MPI_Comm_split_type with
  // MPI_COMM_TYPE_SHARED makes this communicator.
  MPI_Comm node = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank / 2, rank, &node);
  MPI_Comm_rank(node, &local_rank);
  MPI_Comm leaders = make_leaders(node);
  if (leaders != MPI_COMM_NULL) MPI_Comm_size(leaders, &number_of_leaders);

  std::vector<int> data(1000);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = rank + int(i);
  all_reduce(data, node, leaders);

  long wrong = number_of_leaders != (local_rank == 0 ? (size + 1) / 2 : 0);
  for (std::size_t i = 0; i < data.size(); ++i) wrong += data[i] != size * (size - 1) / 2 + size * int(i);
  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) std::printf("%s: %ld wrong\n", wrong == 0 ? "RIGHT" : "WRONG", wrong);
  if (leaders != MPI_COMM_NULL) MPI_Comm_free(&leaders);
  MPI_Comm_free(&node);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("two_level_all_reduce: standard output"), 1;
  return wrong == 0 ? 0 : 1;
}
