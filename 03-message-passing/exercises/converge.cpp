// Every rank halves its numbers until they are small, and all ranks take the sum after each step, as iterative solvers
// do.
//
//   mpicxx -std=c++20 -O2 converge.cpp -o converge
//   mpirun -n 4 who_waits --after 2 --end -- ./converge
//
// TODO (exercise): the program hangs. Find out from who_waits why, and repair it.
// Exit status: 0 if all ranks made the same number of steps, and the sum is small; 1 if not.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;
  if (size < 2)
    return std::fprintf(stderr, "converge needs at least 2 processes: mpirun -n 2 ./converge\n"), MPI_Finalize(), 1;

  double error = 8.0 * (rank + 1), all = 1;
  int steps = 0;
  while (error > 1e-6) {
    error /= 2;
    ++steps;
    MPI_Allreduce(&error, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  }

  std::vector<int> all_steps(static_cast<std::size_t>(size));
  MPI_Gather(&steps, 1, MPI_INT, all_steps.data(), 1, MPI_INT, 0, MPI_COMM_WORLD);
  int wrong = all > 1e-6;
  for (const int other : all_steps) wrong += rank == 0 && other != steps;
  MPI_Bcast(&wrong, 1, MPI_INT, 0, MPI_COMM_WORLD);
  if (rank == 0) std::printf("%s: %d steps, others on %d ranks\n", wrong == 0 ? "RIGHT" : "WRONG", steps, wrong);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("converge: standard output"), 1;
  return wrong == 0 ? 0 : 1;
}
