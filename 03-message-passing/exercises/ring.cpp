// A block goes once around the ring: rank 0 sends it to rank 1, rank 1 to rank 2 ..., the last rank back to rank 0.
// Every rank adds 1 to every element before it passes the block on.
//
//   mpicxx -std=c++20 -O2 ring.cpp -o ring
//   mpirun -n 4 ./ring
//
// Exit status: 0 if every element is right when it is back on rank 0, 1 if not.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <initializer_list>

constexpr int count = 1 << 20, tag = 3;
int block[count];

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;
  if (size < 2) return std::fprintf(stderr, "ring needs at least 2 processes: mpirun -n 2 ./ring\n"), MPI_Finalize(), 1;

  const int left = (rank + size - 1) % size, right = (rank + 1) % size;
  // TODO (exercise): rank 0 fills the block with 0, 1, 2 ... and sends it to rank 1. Every other rank receives it from
  // its left neighbour, adds 1 to every element and sends it to its right neighbour. Rank 0 receives it from the last
  // rank. How many messages are there at the same time? How long does it take with twice as many ranks?
  (void)left, (void)right, (void)tag;

  int wrong = 0;
  for (int i = 0; rank == 0 && i < count; ++i) wrong += block[i] != i + size - 1;
  MPI_Bcast(&wrong, 1, MPI_INT, 0, MPI_COMM_WORLD);
  if (rank == 0) std::printf("%s: %d elements wrong\n", wrong == 0 ? "RIGHT" : "WRONG", wrong);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("ring: standard output"), 1;
  return wrong == 0 ? 0 : 1;
}
