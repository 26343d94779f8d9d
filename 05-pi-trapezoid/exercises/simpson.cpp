// Simpson's rule, from two sums of the trapezoid rule, T(n) and T(2n): of their errors, which are h^2/6 and more, the
// first term must be gone. With which power of h does the error of your rule begin?
//
//   mpicxx -std=c++20 -O2 simpson.cpp -o simpson
//   mpirun -n 4 ./simpson
//
// Exit status: 0 if half as long intervals make the error at least 16 times as small, 1 if not.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <numbers>

double f(double x) { return 4 / (1 + x * x); }

// The trapezoid rule with n intervals, shared by all ranks; every rank gets the answer.
double trapezoid(long n) {
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const double h = 1 / double(n);
  double sum = 0;
  for (long i = 1 + rank; i < n; i += size) sum += f(double(i) * h);
  MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  return h * ((f(0) + f(1)) / 2 + sum);
}

// TODO (exercise): a rule whose error does not begin with h^2.
double simpson(long n) { return trapezoid(n); }

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;

  bool right = true;
  double before = 0;
  for (long n = 5; n <= 20; n *= 2) {
    const double answer = simpson(n), error = std::abs(std::numbers::pi - answer);
    if (rank == 0)
      std::printf("n %2ld: pi = %.16f, error %.3e, %4.1f times as small\n", n, answer, error, before / error);
    right = right && error < 1e-5 && (before == 0 || before / error >= 16);
    before = error;
  }
  if (rank == 0) std::printf("%s\n", right ? "RIGHT" : "WRONG");
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("simpson: standard output"), 1;
  return right ? 0 : 1;
}
