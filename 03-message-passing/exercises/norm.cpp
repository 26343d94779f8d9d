// Every rank has a part of a vector. They compute its length together, and divide their parts by it.
//
//   mpicxx -std=c++20 -O2 norm.cpp -o norm
//   mpirun -n 4 who_waits --after 2 --end -- ./norm
//
// TODO (exercise): the program hangs. Find out from who_waits why, and repair it.
// Exit status: 0 if the vector has the length 1 afterwards, 1 if not.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

double length_of(const std::vector<double>& part, int rank) {
  double own = 0, sum = 0;
  for (const double x : part) own += x * x;
  if (rank == 0)  // which prints the length
    MPI_Reduce(&own, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
  else
    MPI_Allreduce(&own, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  return std::sqrt(sum);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;
  if (size < 2) return std::fprintf(stderr, "norm needs at least 2 processes: mpirun -n 2 ./norm\n"), MPI_Finalize(), 1;

  std::vector<double> part(1000, rank + 1.0);
  const double before = length_of(part, rank);
  for (double& x : part) x /= before;
  const double after = length_of(part, rank);

  const bool right = std::abs(after - 1) < 1e-12;
  if (rank == 0) std::printf("%s: the length was %.3f and is %.3f\n", right ? "RIGHT" : "WRONG", before, after);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("norm: standard output"), 1;
  return right ? 0 : 1;
}
