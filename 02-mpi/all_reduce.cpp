// Every rank has a vector, and every rank gets the sum of all of them: MPI_Allreduce, checked and timed over sizes.
//
//   mpicxx -std=c++20 -O2 all_reduce.cpp -o all_reduce
//   mpirun -n 4 ./all_reduce
//
// Exit status: 0 if every element is right, 1 if not.
// After: sum_to_root.cpp.
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
    std::vector<float> mine(count), sum(count);
    for (std::size_t i = 0; i < count; ++i) mine[i] = float(rank % 8) + float(i % 8);

    const int warm_up = 5, trials = 20;  // the first calls open connections and are slower
    double seconds = 0;
    for (int trial = -warm_up; trial < trials; ++trial) {
      if (trial == 0) {
        MPI_Barrier(MPI_COMM_WORLD);  // all ranks start their timers together
        seconds = -MPI_Wtime();
      }
      MPI_Allreduce(mine.data(), sum.data(), int(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    }
    seconds = (seconds + MPI_Wtime()) / trials;

    for (std::size_t i = 0; i < count; ++i) wrong += sum[i] != float(sum_of_ranks + size * long(i % 8));

    // algbw is what the caller gets. busbw is what each rank's link carries if the ranks add the data themselves on a
    // ring: 2 (size - 1) / size of the data. It can be compared with the bandwidth of the link for any number of ranks.
    const double bytes = 4.0 * double(count), algbw = bytes / seconds / 1e9, busbw = algbw * 2 * (size - 1) / size;
    if (rank == 0) std::printf("%10.0f %12.1f %14.3f %14.3f\n", bytes, seconds * 1e6, algbw, busbw);
  }

  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) std::printf("%s: %ld elements wrong on %d processes\n", wrong == 0 ? "RIGHT" : "WRONG", wrong, size);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("all_reduce: standard output"), 1;
  return wrong == 0 ? 0 : 1;
}
