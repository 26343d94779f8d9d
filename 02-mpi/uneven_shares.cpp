// Shares that differ by one: rank 0 deals out a vector whose length is no multiple of the number of ranks
// (MPI_Scatterv). Each rank squares its share, and rank 0 collects the shares again (MPI_Gatherv).
//
//   mpicxx -std=c++20 -O2 uneven_shares.cpp -o uneven_shares
//   mpirun -n 4 ./uneven_shares
//
// Exit status: 0 if every element is right, 1 if not.
// After: collectives.cpp.
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

  // Every rank gets total / size elements, and each of the first total % size ranks one more. All ranks compute the
  // whole list, so no rank has to send it.
  const int total = 1003;
  std::vector<int> counts(std::size_t(size), total / size), starts(std::size_t(size), 0);
  for (std::size_t r = 0; r < counts.size(); ++r) {
    if (int(r) < total % size) ++counts[r];
    if (r > 0) starts[r] = starts[r - 1] + counts[r - 1];
  }

  std::vector<long> all;  // on rank 0 only
  for (int i = 0; rank == 0 && i < total; ++i) all.push_back(i);
  std::vector<long> mine(std::size_t(counts[std::size_t(rank)]), -1);
  const int count = int(mine.size());

  // The lists of counts and starts matter on the root only. The other ranks give their own count.
  MPI_Scatterv(all.data(), counts.data(), starts.data(), MPI_LONG, mine.data(), count, MPI_LONG, 0, MPI_COMM_WORLD);

  long wrong = 0;
  for (int i = 0; i < count; ++i) {
    long& element = mine[std::size_t(i)];
    wrong += element != starts[std::size_t(rank)] + i;
    element *= element;
  }

  all.assign(all.size(), -1);
  MPI_Gatherv(mine.data(), count, MPI_LONG, all.data(), counts.data(), starts.data(), MPI_LONG, 0, MPI_COMM_WORLD);
  for (long i = 0; rank == 0 && i < total; ++i) wrong += all[std::size_t(i)] != i * i;

  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) {
    std::printf("%d elements, shares of %d to %d\n", total, counts.back(), counts.front());
    std::printf("%s: %ld elements wrong on %d processes\n", wrong == 0 ? "RIGHT" : "WRONG", wrong, size);
  }
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("uneven_shares: standard output"), 1;
  return wrong == 0 ? 0 : 1;
}
