// Is a setting the same on all ranks? A small version of what `explore --require-equal` does.
//
//   mpicxx -std=c++20 -O2 same_everywhere.cpp -o same_everywhere
//   mpirun -n 4 ./same_everywhere
//
// Exit status: 0 if every rank finds out whether the values are the same, 1 if not.
// After: hello_mpi.cpp.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <initializer_list>

// The same answer on every rank: do all ranks have the same value?
bool same_on_all_ranks(long mine) {
  // TODO (exercise): find the smallest and the largest value of all ranks, with one or two calls of MPI_Allreduce.
  return mine < 0;
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
  const bool same = same_on_all_ranks(open_files);
  // Then the last rank pretends to be on a node with a lower limit. A single rank still agrees with itself.
  const bool still_same = same_on_all_ranks(rank == size - 1 ? open_files - 1 : open_files);

  int right = same && still_same == (size == 1) ? 1 : 0;
  MPI_Allreduce(MPI_IN_PLACE, &right, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (rank == 0)
    std::printf("%s: same on all ranks: %s, then, with another value on rank %d: %s\n", right ? "RIGHT" : "WRONG",
                same ? "yes" : "no", size - 1, still_same ? "yes" : "no");
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("same_everywhere: standard output"), 1;
  return right ? 0 : 1;
}
