// Which samples a rank reads: each epoch has a new order of all samples, the same on all ranks without a message, and
// each rank reads its part of that order.
//
//   mpicxx -std=c++20 -O2 sampler.cpp -o sampler
//   mpirun -n 2 ./sampler
//
// Exit status: 0 if each epoch has its own order, and exactly one rank reads each sample; 1 if not.
// After: train_all_reduce.cpp.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <utility>
#include <vector>

constexpr std::size_t samples = 12, epochs = 3;
constexpr std::uint64_t seed = 1;

// A function of its arguments alone: no rank needs to know how many random numbers another one has drawn.
std::uint64_t random(std::uint64_t stream, std::uint64_t index) {
  std::uint64_t x = (stream << 32 | index) * 0x9e3779b97f4a7c15 + 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

// Fisher and Yates: each order is as likely as any other. (std::shuffle may differ between two C++ libraries.)
std::vector<std::size_t> order(std::uint64_t epoch) {
  std::vector<std::size_t> all(samples);
  std::iota(all.begin(), all.end(), std::size_t(0));
  for (std::size_t i = samples; i-- > 1;) std::swap(all[i], all[random(seed * epochs + epoch, i) % (i + 1)]);
  return all;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1, right = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;
  for (std::size_t epoch = 0; epoch < epochs; ++epoch) {
    const std::vector<std::size_t> all = order(epoch);
    if (epoch > 0 && all == order(epoch - 1)) right = 0;
    std::vector<int> readers(samples), reader(samples);  // of each sample: how many ranks, and the sum of their numbers
    for (std::size_t i = samples * std::size_t(rank) / std::size_t(size);
         i < samples * std::size_t(rank + 1) / std::size_t(size); ++i) {
      readers[all[i]] += 1;
      reader[all[i]] += rank;
    }
    MPI_Allreduce(MPI_IN_PLACE, readers.data(), int(samples), MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, reader.data(), int(samples), MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    for (const int ranks : readers) right &= ranks == 1;
    if (rank == 0) {
      std::printf("epoch %zu: samples 0 to %zu are read by rank", epoch, samples - 1);
      for (std::size_t s = 0; s < samples; ++s)
        if (readers[s] == 1)
          std::printf(" %d", reader[s]);
        else
          std::printf(" %s", readers[s] == 0 ? "-" : "many");
      std::printf("\n");
    }
  }
  MPI_Allreduce(MPI_IN_PLACE, &right, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (rank == 0)
    std::printf("%s: one rank reads each sample in each of %zu epochs\n", right ? "RIGHT" : "WRONG", epochs);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("sampler: standard output"), 1;
  return right ? 0 : 1;
}
