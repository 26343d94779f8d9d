// Each rank finds the prime numbers in its part of a range, and rank 0 collects them. No rank knows in advance how many
// the others find.
//
//   mpicxx -std=c++20 -O2 collect_primes.cpp -o collect_primes
//   mpirun -n 4 ./collect_primes
//
// Exit status: 0 if rank 0 has all primes in their order, 1 if not.
// After: uneven_shares.cpp.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

constexpr int limit = 1000;  // there are 168 primes below 1000

std::vector<int> primes(int first, int end) {
  std::vector<int> found;
  for (int number = first; number < end; ++number) {
    bool prime = number > 1;
    for (int divisor = 2; divisor * divisor <= number; ++divisor) prime = prime && number % divisor != 0;
    if (prime) found.push_back(number);
  }
  return found;
}

// On rank 0: the numbers of all ranks, in the order of the ranks. On the others: nothing.
std::vector<int> collect(const std::vector<int>& mine, int rank, int size) {
  std::vector<int> all;
  // TODO (exercise): bring the numbers of all ranks to rank 0. No rank knows how many the others have.
  static_cast<void>(mine), static_cast<void>(rank), static_cast<void>(size);
  return all;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;

  const auto all = collect(primes(rank * limit / size, (rank + 1) * limit / size), rank, size);

  int right = rank != 0 || (all == primes(0, limit) && all.size() == 168) ? 1 : 0;
  MPI_Bcast(&right, 1, MPI_INT, 0, MPI_COMM_WORLD);
  if (rank == 0) std::printf("%s: %zu primes below %d\n", right ? "RIGHT" : "WRONG", all.size(), limit);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("collect_primes: standard output"), 1;
  return right ? 0 : 1;
}
