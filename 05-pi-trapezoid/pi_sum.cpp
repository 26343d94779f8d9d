// Pi as the integral of 4 / (1 + x^2) over [0, 1] by the trapezoid rule: each rank adds its share, and MPI_Reduce adds
// the shares. The last bits of the answer depend on the number of ranks.
//
//   mpicxx -std=c++20 -O2 -ffp-contract=off pi_sum.cpp -o pi_sum
//   mpirun -n 4 ./pi_sum
//
// Exit status: 0 if every answer is pi to within the known error, 1 if not.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <numbers>

double f(double x) { return 4 / (1 + x * x); }

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;

  const long n = 10'000'000;  // intervals
  const double h = 1.0 / n;
  int right = 1;
  for (int ranks = 1; ranks <= size; ++ranks) {  // the ranks that take part; the others add 0
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    double own = 0, sum = 0;
    if (rank < ranks) {
      // The points 1 ... n - 1. Shares differ by one point at most: n need not be a multiple of the number of ranks.
      const long first = 1 + (n - 1) * rank / ranks, last = 1 + (n - 1) * (rank + 1) / ranks;
      for (long i = first; i < last; ++i) own += f(double(i) * h);
    }
    MPI_Reduce(&own, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank != 0) continue;

    const double answer = h * ((f(0) + f(1)) / 2 + sum), seconds = MPI_Wtime() - start;
    // The trapezoid rule makes the answer too small by h^2/6. A term goes through at most n + 8 roundings: 5 to make
    // it, n in the sum, 3 at the end.
    const double error = std::numbers::pi - answer - h * h / 6, bound = double(n + 8) * 0x1p-53 * std::numbers::pi;
    std::printf("ranks %d: pi = %.16f = %a, error %8.1e, bound %.1e, %.4f s\n", ranks, answer, answer, error, bound,
                seconds);
    if (!(std::abs(error) <= bound)) right = 0;
  }

  MPI_Bcast(&right, 1, MPI_INT, 0, MPI_COMM_WORLD);
  if (rank == 0) std::printf("%s\n", right ? "RIGHT" : "WRONG");
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("pi_sum: standard output"), 1;
  return right ? 0 : 1;
}
