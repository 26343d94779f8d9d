// Each rank keeps the optimizer's memory for its part of the parameters only, as ZeRO stage 1 and PyTorch's
// ZeroRedundancyOptimizer do: 1 / ranks of the memory, for the same number of bytes on the network.
//
//   mpicxx -std=c++20 -O2 sharded_update.cpp -o sharded_update
//   mpirun -n 4 ./sharded_update
//
// Exit status: 0 if all ranks have the weights of one process, and no rank keeps more than its part; 1 if not.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

constexpr std::size_t features = 25, samples = 50, steps = 50;  // of all ranks

// A whole number in -8 ... 7, a function of its arguments alone.
double input(std::size_t sample, std::size_t feature) {
  std::uint64_t x = (sample * features + feature + 1) * 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  return double(x >> 60) - 8;
}

// To a multiple of 2^-20: sums of such numbers below 2^32 are exact in double, whatever their order.
double rounded(double x) { return (x + 0x1.8p32) - 0x1.8p32; }

// Adds the gradients of samples first ... last - 1 to the first elements of `gradient`. The model is a weighted sum of
// the inputs.
void backward(const std::vector<double>& weights, std::size_t first, std::size_t last, std::vector<double>& gradient) {
  for (std::size_t s = first; s < last; ++s) {
    double error = 0;
    for (std::size_t f = 0; f < features; ++f) error += (weights[f] - double(f % 5)) * input(s, f);
    for (std::size_t f = 0; f < features; ++f) gradient[f] += rounded(error * input(s, f));
  }
}

// The update of SGD with momentum, of all elements.
void update(double* weights, std::vector<double>& velocity, const double* gradient) {
  for (std::size_t i = 0; i < velocity.size(); ++i) {
    velocity[i] = 0.9 * velocity[i] + gradient[i] / double(samples);
    weights[i] -= 0.001 * velocity[i];
  }
}

struct Result {
  std::vector<double> weights;
  std::size_t kept;  // elements of velocity
};

Result train(MPI_Comm comm) {
  int rank = 0, size = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  // TODO (exercise): let each rank keep features / size velocities, rounded up, and update the weights that belong to
  // them. All ranks need all weights for the next step. Send no more bytes than the all-reduce does.
  std::vector<double> weights(features), velocity(features);
  for (std::size_t step = 0; step < steps; ++step) {
    std::vector<double> gradient(features);
    backward(weights, step * samples + samples * std::size_t(rank) / std::size_t(size),
             step * samples + samples * std::size_t(rank + 1) / std::size_t(size), gradient);
    MPI_Allreduce(MPI_IN_PLACE, gradient.data(), int(features), MPI_DOUBLE, MPI_SUM, comm);
    update(weights.data(), velocity, gradient.data());
  }
  return {weights, velocity.size()};
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;
  if (size < 2) {
    std::fprintf(stderr, "sharded_update needs at least 2 processes: mpirun -n 2 ./sharded_update\n");
    return MPI_Finalize(), 1;
  }
  const Result result = train(MPI_COMM_WORLD);
  int right = result.weights == train(MPI_COMM_SELF).weights && (result.kept - 1) * std::size_t(size) < features;
  MPI_Allreduce(MPI_IN_PLACE, &right, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (rank == 0)
    std::printf("%s: weight 4 is %.6f, each rank keeps %zu of %zu velocities\n", right ? "RIGHT" : "WRONG",
                result.weights[4], result.kept, features);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("sharded_update: standard output"), 1;
  return right ? 0 : 1;
}
