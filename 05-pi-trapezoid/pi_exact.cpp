// The sum of pi_sum.cpp in blocks and by a fixed tree: the answer has the same bits for every number of ranks.
//
//   mpicxx -std=c++20 -O2 -ffp-contract=off pi_exact.cpp -o pi_exact
//   mpirun -n 4 ./pi_exact
//
// Exit status: 0 if all answers have the same bits and are pi to within the known error, 1 if not.
#include <mpi.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <numbers>
#include <span>
#include <vector>

double f(double x) { return 4 / (1 + x * x); }

// Adds neighbours, then the sums of neighbours, and so on: the brackets depend on the number of values alone.
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

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);

  const long n = 10'000'000, blocks = (n - 1 + block_length - 1) / block_length;
  const double h = 1.0 / n;
  double answer_of_one = 0;
  bool right = true;
  for (int ranks = 1; ranks <= size; ++ranks) {  // that take part; the others have no block
    std::vector<double> sums(std::size_t(blocks), 0.0);
    for (long block = rank; rank < ranks && block < blocks; block += ranks)
      sums[std::size_t(block)] = block_sum(n, block);
    // Every sum is 0 on all ranks but one, and x + 0 is exact, in whatever order MPI adds.
    MPI_Allreduce(MPI_IN_PLACE, sums.data(), int(blocks), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);

    const double answer = ((f(0) + f(1)) / 2 + tree_sum(sums)) / double(n);
    // A term goes through at most 95 roundings: 5 to make it, 63 in its chain, 10 + 14 in the trees, 3 at the end.
    const double error = std::numbers::pi - answer - h * h / 6, bound = 95 * 0x1p-53 * std::numbers::pi;
    if (rank == 0)
      std::printf("ranks %d: pi = %.16f = %a, error %8.1e, bound %.1e\n", ranks, answer, answer, error, bound);
    if (ranks == 1) answer_of_one = answer;
    right = right && answer == answer_of_one && std::abs(error) <= bound;
  }

  MPI_Allreduce(MPI_IN_PLACE, &right, 1, MPI_C_BOOL, MPI_LAND, MPI_COMM_WORLD);
  if (rank == 0) std::printf("%s\n", right ? "RIGHT" : "WRONG");
  MPI_Finalize();
  return right ? 0 : 1;
}
