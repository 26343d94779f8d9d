// Every rank sends its block to the right, receives one from the left, and meanwhile adds up its own.
//
//   mpicxx -std=c++20 -O2 shift.cpp -o shift
//   mpirun -n 4 ./shift
//
// Exit status: 0 if every rank has the block of its left neighbour and the right sum, 1 if not.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <initializer_list>

constexpr int count = 1 << 20, tag = 3;
int mine[count], got[count];

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;
  const int left = (rank + size - 1) % size, right = (rank + 1) % size;
  for (int i = 0; i < count; ++i) mine[i] = 10000 * (rank + 1) + i;

  // TODO (exercise): send `mine` to rank `right`, and receive `got` from rank `left`. While the messages travel, let
  // `sum` become the sum of `mine`. Before that, try the obvious order, MPI_Send and then MPI_Recv, with this count and
  // with count = 16: which of them ends, and why?
  long long sum = 0;
  (void)right, (void)tag;

  int wrong = sum != count * (10000LL * (rank + 1)) + count * (count - 1LL) / 2;
  for (int i = 0; i < count; ++i) wrong += got[i] != 10000 * (left + 1) + i;
  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) std::printf("%s: %d elements wrong\n", wrong == 0 ? "RIGHT" : "WRONG", wrong);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("shift: standard output"), 1;
  return wrong == 0 ? 0 : 1;
}
