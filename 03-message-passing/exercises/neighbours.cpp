// Every rank sends its number to both neighbours in a ring, and receives theirs: the start of a halo exchange.
//
//   mpicxx -std=c++20 -O2 neighbours.cpp -o neighbours
//   mpirun -n 4 who_waits --after 2 --end -- ./neighbours
//
// TODO (exercise): the program hangs. Find out from who_waits why, and repair it.
// Exit status: 0 if every rank knows both neighbours, 1 if not.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <initializer_list>

constexpr int to_left = 1, to_right = 2;  // tags: the direction in which a message travels

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;
  if (size < 3) {
    if (rank == 0) std::fprintf(stderr, "neighbours needs at least 3 processes: mpirun -n 3 ./neighbours\n");
    return MPI_Finalize(), 1;
  }
  const int left = (rank + size - 1) % size, right = (rank + 1) % size;

  int from_left = -1, from_right = -1;
  MPI_Request requests[4];
  MPI_Irecv(&from_left, 1, MPI_INT, left, to_left, MPI_COMM_WORLD, &requests[0]);
  MPI_Irecv(&from_right, 1, MPI_INT, right, to_right, MPI_COMM_WORLD, &requests[1]);
  MPI_Isend(&rank, 1, MPI_INT, left, to_left, MPI_COMM_WORLD, &requests[2]);
  MPI_Isend(&rank, 1, MPI_INT, right, to_right, MPI_COMM_WORLD, &requests[3]);
  MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);

  int wrong = (from_left != left) + (from_right != right);
  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) std::printf("%s: %d messages wrong\n", wrong == 0 ? "RIGHT" : "WRONG", wrong);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("neighbours: standard output"), 1;
  return wrong == 0 ? 0 : 1;
}
