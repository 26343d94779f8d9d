// The naive way to a sum that every rank has: all send to rank 0, which adds and sends the sum back, one rank after the
// other. all_reduce.cpp does the same with one call.
//
//   mpicxx -std=c++20 -O2 sum_to_root.cpp -o sum_to_root
//   mpirun -n 4 ./sum_to_root
//
// Exit status: 0 if every element is right, 1 if not.
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

  if (rank == 0) std::printf("%10s %12s %14s %14s\n", "bytes", "time (us)", "algbw (GB/s)", "busbw (GB/s)");
  long wrong = 0, sum_of_ranks = 0;
  for (int r = 0; r < size; ++r) sum_of_ranks += r % 8;
  for (std::size_t count = 2; count <= 1 << 20; count *= 8) {
    // Small integers: with up to a million ranks every partial sum is below 2^24 and exact in float, and the
    // result does not depend on the order of the additions.
    std::vector<float> mine(count), sum(count), other(count);
    for (std::size_t i = 0; i < count; ++i) mine[i] = float(rank % 8) + float(i % 8);

    const int warm_up = 5, trials = 20;  // the first calls open connections and are slower
    double seconds = 0;
    for (int trial = -warm_up; trial < trials; ++trial) {
      if (trial == 0) {
        MPI_Barrier(MPI_COMM_WORLD);  // all ranks start their timers together
        seconds = -MPI_Wtime();
      }
      if (rank == 0) {
        // Rank 0's link carries (size - 1) vectors in and as many out; every other link carries one each way.
        sum = mine;
        for (int peer = 1; peer < size; ++peer) {
          MPI_Recv(other.data(), int(count), MPI_FLOAT, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
          for (std::size_t i = 0; i < count; ++i) sum[i] += other[i];
        }
        for (int peer = 1; peer < size; ++peer) MPI_Send(sum.data(), int(count), MPI_FLOAT, peer, 0, MPI_COMM_WORLD);
      } else {
        MPI_Send(mine.data(), int(count), MPI_FLOAT, 0, 0, MPI_COMM_WORLD);
        MPI_Recv(sum.data(), int(count), MPI_FLOAT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      }
    }
    seconds = (seconds + MPI_Wtime()) / trials;

    for (std::size_t i = 0; i < count; ++i) wrong += sum[i] != float(sum_of_ranks + size * long(i % 8));

    const double bytes = 4.0 * double(count), algbw = bytes / seconds / 1e9, busbw = algbw * 2 * (size - 1) / size;
    if (rank == 0) std::printf("%10.0f %12.1f %14.3f %14.3f\n", bytes, seconds * 1e6, algbw, busbw);
  }

  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) std::printf("%s: %ld elements wrong on %d processes\n", wrong == 0 ? "RIGHT" : "WRONG", wrong, size);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("sum_to_root: standard output"), 1;
  return wrong == 0 ? 0 : 1;
}
