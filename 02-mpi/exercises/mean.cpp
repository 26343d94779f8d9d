// The mean of 8 numbers that are dealt out to all ranks. It is right with 2 and with 4 processes, wrong with 3, and it
// hangs with 9.
//
//   mpicxx -std=c++20 -O2 mean.cpp -o mean
//   mpirun -n 3 ./mean
//
// Exit status: 0 if every rank has the mean, 1 if not.
// After: uneven_shares.cpp.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

constexpr int total = 8;  // the numbers 0, 1, 4, 9, ...

// TODO (exercise): this function has two mistakes. Every rank is to get the mean over the shares of all ranks.
double mean(const std::vector<double>& share) {
  if (share.empty()) return 0;
  const double mine = std::accumulate(share.begin(), share.end(), 0.0) / double(share.size());
  double all = 0;
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  return all / size;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;

  std::vector<double> share;  // number i belongs to rank i % size
  for (int i = rank; i < total; i += size) share.push_back(double(i) * i);
  const double got = mean(share);

  // All ranks must have the same: 140 / 8 = 17.5 is exact.
  int right = got == 17.5 ? 1 : 0;
  MPI_Allreduce(MPI_IN_PLACE, &right, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (rank == 0) std::printf("%s: the mean is %.3f\n", right ? "RIGHT" : "WRONG", got);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("mean: standard output"), 1;
  return right ? 0 : 1;
}
