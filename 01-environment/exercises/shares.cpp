// Each other rank sends rank 0 its share, some numbers, and rank 0 adds them all. Two processes get the right sum,
// three a wrong one, and four are ended by mpirun: find the two mistakes.
//
//   mpicxx -std=c++20 -O2 shares.cpp -o shares
//   mpirun -n 4 ./shares
//
// Exit status: 0 if the sum is right, 1 if not.
// After: six_calls.cpp.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <vector>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;

  long sum = 0, expected = 0;
  if (rank > 0) {
    const std::vector<int> share(static_cast<std::size_t>(size - rank), rank);  // rank 1 has the largest share
    MPI_Send(share.data(), size - rank, MPI_INT, 0, 0, MPI_COMM_WORLD);
  }
  // TODO (exercise): this loop has both mistakes.
  std::vector<int> numbers(2);
  for (int peer = 1; rank == 0 && peer < size; ++peer) {
    MPI_Recv(numbers.data(), 2, MPI_INT, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (const int number : numbers) sum += number;
  }

  for (int peer = 1; peer < size; ++peer) expected += peer * (size - peer);
  const bool right = rank > 0 || sum == expected;
  if (rank == 0) std::printf("%s: the sum is %ld, expected %ld\n", right ? "RIGHT" : "WRONG", sum, expected);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("shares: standard output"), 1;
  return right ? 0 : 1;
}
