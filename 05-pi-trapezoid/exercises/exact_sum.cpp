// A sum without rounding: the terms of pi lie between 2 and 4, so each is a whole number times 2^-51. Whole numbers add
// exactly, in any order, so the answer has the same bits for every number of ranks. No tree is needed.
//
//   mpicxx -std=c++20 -O2 -ffp-contract=off exact_sum.cpp -o exact_sum
//   mpirun -n 4 ./exact_sum
//
// Exit status: 0 if all answers have the same bits and are pi to within 10 roundings, 1 if not.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <numbers>

double f(double x) { return 4 / (1 + x * x); }

// The sum of f over the points first, first + step, ... below n of all ranks. `first` is n on a rank without a point.
double sum_over_ranks(long n, long first, long step) {
  // TODO (exercise): add whole numbers instead of doubles: f(...) * 0x1p51 is one. A term has 53 bits, so 64 bits would
  // overflow after 2048 terms: add the upper and the lower 32 bits of the terms apart (MPI_UINT64_T).
  double sum = 0;
  for (long i = first; i < n; i += step) sum += f(double(i) * (1 / double(n)));
  MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  return sum;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);

  const long n = 10'000'000;
  const double h = 1.0 / n;
  double answer_of_one = 0;
  bool right = true;
  for (int ranks = 1; ranks <= size; ++ranks) {  // the ranks that take part; the others have no point
    const double answer = h * (3 + sum_over_ranks(n, rank < ranks ? 1 + rank : n, ranks));
    const double error = std::numbers::pi - answer - h * h / 6, bound = 10 * 0x1p-53 * std::numbers::pi;
    if (rank == 0)
      std::printf("ranks %d: pi = %.16f = %a, error %8.1e, bound %.1e\n", ranks, answer, answer, error, bound);
    if (ranks == 1) answer_of_one = answer;
    right = right && answer == answer_of_one && std::abs(error) <= bound;
  }
  if (rank == 0) std::printf("%s\n", right ? "RIGHT" : "WRONG");
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("exact_sum: standard output"), 1;
  return right ? 0 : 1;
}
