// Pi again, in blocks of a fixed size that are added in a fixed order, and yet the bits depend on the number of ranks.
// Why? Repair it: the answer must be the same for every number of ranks.
//
//   mpicxx -std=c++20 -O2 -ffp-contract=off drift.cpp -o drift
//   mpirun -n 4 ./drift
//
// Exit status: 0 if all answers have the same bits and are pi, 1 if not.
// After: pi_exact.cpp.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <numbers>
#include <vector>

constexpr long n = 4'000'000, block_length = 50'000, blocks = n / block_length;
constexpr double h = 1.0 / n;

// The sums of all blocks; those of other ranks are 0. TODO (exercise): why do they depend on `ranks`?
std::vector<double> sums_of(int rank, int ranks) {
  std::vector<double> sums(blocks);
  const long first = blocks * rank / ranks, last = blocks * (rank + 1) / ranks;
  double x = double(first * block_length) * h + h / 2;  // the middle of an interval
  for (long block = first; block < last; ++block)
    for (long i = 0; i < block_length; ++i) {
      sums[std::size_t(block)] += 4 / (1 + x * x);
      x += h;
    }
  return sums;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;

  double of_one = 0;
  int right = 1;
  for (int ranks = 1; ranks <= std::max(3, size); ++ranks) {  // as many as take part, or shares as for so many
    std::vector<double> sums(blocks);
    for (int share = rank; share < ranks; share += size) {
      const std::vector<double> own = sums_of(share, ranks);
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += own[i];
    }
    MPI_Allreduce(MPI_IN_PLACE, sums.data(), int(blocks), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    double pi = 0;
    for (const double sum : sums) pi += sum * h;
    if (ranks == 1) of_one = pi;
    if (pi != of_one || !(std::abs(pi - std::numbers::pi) < 1e-12)) right = 0;
    if (rank == 0) std::printf("%d ranks: pi = %.16f = %a\n", ranks, pi, pi);
  }
  if (rank == 0) std::printf("%s\n", right ? "RIGHT" : "WRONG");
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("drift: standard output"), 1;
  return right ? 0 : 1;
}
