// The sum of pi_sum.cpp in a fixed order, in blocks and trees: the answer has the same bits for every number of ranks.
//
//   mpicxx -std=c++20 -O2 -ffp-contract=off pi_exact.cpp -o pi_exact
//   mpirun -n 4 ./pi_exact [NUMBER OF INTERVALS]
//
// Exit status: 0 if all answers have the same bits, are pi to within the known error, and with the default number of
// intervals have the recorded bits in every block; 1 if not.
// After: pi_sum.cpp.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numbers>
#include <span>
#include <vector>

double f(double x) { return 4 / (1 + x * x); }

// Adds neighbours, then the sums of neighbours, and so on: only the number of values decides the order of the
// additions.
double tree_sum(std::span<const double> values) {
  if (values.size() <= 1) return values.empty() ? 0 : values[0];
  const std::size_t half = std::bit_ceil(values.size()) / 2;
  return tree_sum(values.first(half)) + tree_sum(values.subspan(half));
}

constexpr long block_length = 65536;

// The points of one block, in 1024 chains of 64: point j goes to chain j % 8 of its run of 512. Eight chains side by
// side fit the vector registers of every CPU.
double block_sum(long n, long block) {
  const double h = 1.0 / double(n);
  const long first = 1 + block * block_length, points = std::min(block_length, n - first);
  std::vector<double> chains(1024);
  for (long j = 0; j < points; ++j) chains[std::size_t(j / 512 * 8 + j % 8)] += f(double(first + j) * h);
  return tree_sum(chains);
}

// FNV-1a over the bits of all block sums. The answer alone hides a wrong block whose error is rounded away.
std::uint64_t hash_of_bits(std::span<const double> sums) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const double sum : sums) hash = (hash ^ std::bit_cast<std::uint64_t>(sum)) * 0x100000001b3;
  return hash;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;

  const long default_n = 10'000'000, n = argc > 1 ? std::atol(argv[1]) : default_n;
  if (n < 1'000'000 || n > 1'000'000'000) {
    if (rank == 0)
      std::fprintf(stderr, "pi_exact: '%s' is not a number of intervals from 1000000 to 1000000000\n", argv[1]);
    return MPI_Finalize(), 1;
  }
  const long blocks = (n - 1 + block_length - 1) / block_length;
  const double h = 1.0 / double(n);
  double answer_of_one = 0;
  int right = 1;
  for (int ranks = 1; ranks <= size; ++ranks) {  // the ranks that take part; the others own no block
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    std::vector<double> sums(std::size_t(blocks), 0.0);
    for (long block = rank; rank < ranks && block < blocks; block += ranks)
      sums[std::size_t(block)] = block_sum(n, block);
    // Every sum is 0 on all ranks but one, and x + 0 is exact, in whatever order MPI adds.
    MPI_Allreduce(MPI_IN_PLACE, sums.data(), int(blocks), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    const double answer = ((f(0) + f(1)) / 2 + tree_sum(sums)) / double(n);
    // A rank that waits for a free core leaves the barrier late and measures too little, so the longest time counts.
    double seconds = MPI_Wtime() - start;
    MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);

    // A term goes through at most 95 roundings: 5 to make it, 63 in its chain, 10 + 14 in the trees, 3 at the end.
    const double error = std::numbers::pi - answer - h * h / 6, bound = 95 * 0x1p-53 * std::numbers::pi;
    const std::uint64_t hash = hash_of_bits(sums);
    if (rank == 0)
      std::printf("ranks %d: pi = %.16f = %a, hash %016jx, error %8.1e, bound %.1e, %.4f s\n", ranks, answer, answer,
                  std::uintmax_t(hash), error, bound, seconds);
    if (ranks == 1) answer_of_one = answer;
    if (answer != answer_of_one || !(std::abs(error) <= bound)) right = 0;
    // What every compiler and every CPU must give. Fused or reordered arithmetic stays within the bound, but not here.
    if (n == default_n && (answer != 0x1.921fb54442d15p+1 || hash != 0xa5d441b79ccbf4c8)) right = 0;
  }

  MPI_Allreduce(MPI_IN_PLACE, &right, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (rank == 0) std::printf("%s\n", right ? "RIGHT" : "WRONG");
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("pi_exact: standard output"), 1;
  return right ? 0 : 1;
}
