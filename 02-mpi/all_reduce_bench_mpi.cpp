// One number for a network: the all-reduce of a 500000 x 2000 matrix of floats (4 GB), ten times, over MPI.
//
//   mpicxx -std=c++20 -O2 all_reduce_bench_mpi.cpp -o all_reduce_bench_mpi
//   mpirun -n 4 ./all_reduce_bench_mpi 2000
//
// The argument is the number of rows; without it each rank needs 4 GB of memory.
// Exit status: 0 if every element is right, 1 if not.
// After: all_reduce.cpp.
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

  const std::size_t columns = 2000, rows = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 500000;
  if (rows < 1 || rows > 1000000) {  // the count of MPI_Allreduce is an int
    if (rank == 0) std::fprintf(stderr, "rows must be a number from 1 to 1000000, not '%s'\n", argv[1]);
    return MPI_Finalize(), 1;
  }
  const std::size_t count = rows * columns;
  std::vector<float> matrix(count);

  const int warm_up = 2, trials = 10;
  double algbw = 0;  // bytes per second, the mean over the trials
  long wrong = 0, sum_of_ranks = 0;
  for (int r = 0; r < size; ++r) sum_of_ranks += r % 8;
  for (int trial = -warm_up; trial < trials; ++trial) {
    // In place: what is in the matrix is the last sum.
    for (std::size_t i = 0; i < count; ++i) matrix[i] = float(rank % 8) + float(i % 8);

    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    MPI_Allreduce(MPI_IN_PLACE, matrix.data(), int(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    const double seconds = MPI_Wtime() - start;
    if (trial >= 0) algbw += 4.0 * double(count) / seconds / trials;

    for (std::size_t i = 0; i < count; ++i) wrong += matrix[i] != float(sum_of_ranks + size * long(i % 8));
  }

  // Each rank measures its own time. The result is the mean over the ranks, as in the original.
  MPI_Allreduce(MPI_IN_PLACE, &algbw, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  algbw /= size;
  const double busbw = algbw * 2 * (size - 1) / size;
  if (rank == 0) {
    std::printf("all_reduce, ranks: %d, trials: %d, payload: %.3g GB\n", size, trials, 4e-9 * double(count));
    std::printf("  algbw: %.3f GBps (%.1f Gbps)\n", algbw / 1e9, algbw * 8 / 1e9);
    std::printf("  busbw: %.3f GBps (%.1f Gbps)\n", busbw / 1e9, busbw * 8 / 1e9);
    std::printf("%s: %ld elements wrong\n", wrong == 0 ? "RIGHT" : "WRONG", wrong);
  }
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("all_reduce_bench_mpi: standard output"), 1;
  return wrong == 0 ? 0 : 1;
}
