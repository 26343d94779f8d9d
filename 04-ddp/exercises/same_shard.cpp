// The samples lie in order, class after class, and each rank reads its shard of them. This training was written for
// torchrun. Under mpirun it looks as healthy: its loss falls to 0, and all ranks end with the same weights.
//
//   mpicxx -std=c++20 -O2 same_shard.cpp -o same_shard
//   mpirun -n 4 ./same_shard
//
// TODO (exercise): find out why it does not learn all classes on several ranks, and repair it.
//
// Exit status: 0 if all ranks have the weights of one process, but for rounding; 1 if not.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

constexpr std::size_t classes = 24, samples = 480, steps = 30;  // of all ranks
using Weights = std::array<double, classes>;                    // one for each class

// 0.5 ... 1.5, a function of its argument alone.
double input(std::size_t sample) {
  std::uint64_t x = (sample + 1) * 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  return 0.5 + double(x >> 40) / (1 << 24);
}
std::size_t class_of(std::size_t sample) { return sample * classes / samples; }
double error(const Weights& weights, std::size_t sample) {
  const std::size_t c = class_of(sample);
  return (weights[c] - double(1 + c % 5)) * input(sample);
}

struct Shard {  // the samples that a rank reads
  std::size_t first, last;
};

Shard shard(MPI_Comm comm) {
  int rank = 0, size = 0;
  MPI_Comm_size(comm, &size);
  if (const char* variable = std::getenv("RANK"); variable && size > 1) rank = std::atoi(variable);
  return {samples * std::size_t(rank) / std::size_t(size), samples * std::size_t(rank + 1) / std::size_t(size)};
}

struct Result {
  Weights weights{};
  double loss = 0;  // of the last step
};

Result train(MPI_Comm comm) {
  const auto [first, last] = shard(comm);
  Result result;
  for (std::size_t step = 0; step < steps; ++step) {
    Weights gradient{};
    result.loss = 0;
    for (std::size_t s = first; s < last; ++s) {
      gradient[class_of(s)] += error(result.weights, s) * input(s);
      result.loss += error(result.weights, s) * error(result.weights, s) / samples;
    }
    MPI_Allreduce(MPI_IN_PLACE, gradient.data(), int(classes), MPI_DOUBLE, MPI_SUM, comm);
    for (std::size_t c = 0; c < classes; ++c) result.weights[c] -= 5 * (gradient[c] / double(samples));
  }
  MPI_Allreduce(MPI_IN_PLACE, &result.loss, 1, MPI_DOUBLE, MPI_SUM, comm);
  return result;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;
  if (size < 2)
    return std::fprintf(stderr, "same_shard needs at least 2 processes: mpirun -n 2 ./same_shard\n"), MPI_Finalize(), 1;
  const Result result = train(MPI_COMM_WORLD), alone = train(MPI_COMM_SELF);
  double all = 0;
  int right = 1;
  for (std::size_t s = 0; s < samples; ++s) all += error(result.weights, s) * error(result.weights, s) / samples;
  for (std::size_t c = 0; c < classes; ++c)
    if (!(std::abs(result.weights[c] - alone.weights[c]) < 1e-9)) right = 0;
  MPI_Allreduce(MPI_IN_PLACE, &right, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (rank == 0)
    std::printf("%s: the training's loss is %.4f, that of all samples %.4f\n", right ? "RIGHT" : "WRONG", result.loss,
                all);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("same_shard: standard output"), 1;
  return right ? 0 : 1;
}
