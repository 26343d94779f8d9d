// MPI gives a process its rank and, by a communicator of the node, its local rank. Number the nodes as well.
//
//   mpicxx -std=c++20 -O2 node_rank.cpp -o node_rank
//   mpirun -n 4 ./node_rank
//
// Exit status: 0 if the numbers are right, 1 if not.
// After: hello_mpi.cpp.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <initializer_list>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1, local_rank = 0, local_size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;

  // On one machine there is one node. To have something to number, pretend that each node has two processes.
  MPI_Comm node = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank / 2, rank, &node);
  MPI_Comm_rank(node, &local_rank);
  MPI_Comm_size(node, &local_size);

  int node_rank = -1;
  // TODO (exercise): set node_rank on every process, without rank / 2, which you would not know on a cluster.

  const bool right = node_rank == rank / 2;
  std::printf("rank %d of %d: node %d, local rank %d of %d: %s\n", rank, size, node_rank, local_rank, local_size,
              right ? "RIGHT" : "WRONG");
  MPI_Comm_free(&node);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("node_rank: standard output"), 1;
  return right ? 0 : 1;
}
