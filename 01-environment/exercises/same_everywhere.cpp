// Is a setting the same on all ranks? Every rank must know the answer.
//
//   mpicxx -std=c++20 -O2 same_everywhere.cpp -o same_everywhere
//   mpirun -n 4 ./same_everywhere
//
// Exit status: 0 if every rank finds out whether the values are the same, 1 if not.
// After: six_calls.cpp.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <initializer_list>

// The same answer on every rank: 1 if all ranks have the same value, 0 if not.
int same_on_all_ranks(long mine, int rank, int size) {
  // TODO (exercise): find it out with messages.
  return mine < 0 || rank >= size;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;

  const long open_files = sysconf(_SC_OPEN_MAX);  // the limit of this process: one machine, so the same on all ranks
  int wrong = same_on_all_ranks(open_files, rank, size) != 1;
  // Then one rank after the other pretends that it is on a node with a lower limit. A single rank still agrees with
  // itself.
  for (int other = 0; other < size; ++other)
    wrong += same_on_all_ranks(rank == other ? open_files - 1 : open_files, rank, size) != (size == 1);

  if (rank == 0 || wrong > 0)
    std::printf("%s: %d of %d answers on rank %d are wrong\n", wrong ? "WRONG" : "RIGHT", wrong, size + 1, rank);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("same_everywhere: standard output"), 1;
  return wrong ? 1 : 0;
}
