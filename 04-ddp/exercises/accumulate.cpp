// Gradient accumulation: several backward passes, then one all-reduce and one update. It trains with a batch whose
// activations do not fit into memory, and communicates less often. (PyTorch: no_sync.) In each step a rank gets some
// samples, and does not know how many the other ranks get.
//
//   mpicxx -std=c++20 -O2 accumulate.cpp -o accumulate
//   mpirun -n 4 ./accumulate
//
// Exit status: 0 if all ranks have the weights of one process, with one all-reduce per step, and no pass has
// more samples than memory has room for; 1 if not.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

constexpr std::size_t features = 16, steps = 50;
constexpr std::size_t room = 4;  // samples whose activations fit into memory

// A whole number in -8 ... 7, a function of its arguments alone.
double input(std::size_t sample, std::size_t feature) {
  std::uint64_t x = (sample * features + feature + 1) * 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  return double(x >> 60) - 8;
}

// To a multiple of 2^-20: sums of such numbers below 2^32 are exact in double, whatever their order.
double rounded(double x) { return (x + 0x1.8p32) - 0x1.8p32; }

struct Samples {
  std::size_t first, last;  // first ... last - 1
};

// Those of a rank in a step.
Samples samples_of(int rank, int size, std::size_t step) {
  const std::size_t all = 30 + 7 * step % 11, r = std::size_t(rank), n = std::size_t(size), begin = step * 41;
  return {begin + all * r * (r + 1) / (n * (n + 1)), begin + all * (r + 1) * (r + 2) / (n * (n + 1))};
}

std::size_t most = 0;  // samples in one pass

// A forward and a backward pass: adds the gradients of samples first ... last - 1 to the first elements of `gradient`.
// The model is a weighted sum of the inputs.
void pass(const std::vector<double>& weights, std::size_t first, std::size_t last, std::vector<double>& gradient) {
  most = std::max(most, last - first);
  for (std::size_t s = first; s < last; ++s) {
    double error = 0;
    for (std::size_t f = 0; f < features; ++f) error += (weights[f] - double(f % 5)) * input(s, f);
    for (std::size_t f = 0; f < features; ++f) gradient[f] += rounded(error * input(s, f));
  }
}

int all_reduces = 0;
void all_reduce(std::vector<double>& values, MPI_Comm comm) {
  MPI_Allreduce(MPI_IN_PLACE, values.data(), int(values.size()), MPI_DOUBLE, MPI_SUM, comm);
  ++all_reduces;
}

std::vector<double> train(MPI_Comm comm) {
  int rank = 0, size = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  std::vector<double> weights(features);
  for (std::size_t step = 0; step < steps; ++step) {
    const auto [first, last] = samples_of(rank, size, step);
    std::vector<double> gradient(features);
    // TODO (exercise): a pass may have at most `room` samples. Make several, and still one all-reduce per step. Divide
    // by the number of samples that all ranks have in this step.
    pass(weights, first, last, gradient);
    all_reduce(gradient, comm);
    for (std::size_t f = 0; f < features; ++f) weights[f] -= 0.01 * (gradient[f] / double(last - first));
  }
  return weights;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;
  const std::vector<double> weights = train(MPI_COMM_WORLD);
  const int calls = all_reduces;
  int right = weights == train(MPI_COMM_SELF) && calls == int(steps) && most <= room;
  MPI_Allreduce(MPI_IN_PLACE, &right, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (rank == 0)
    std::printf("%s: weight 4 is %.6f, %d all-reduces in %zu steps, at most %zu samples in a pass\n",
                right ? "RIGHT" : "WRONG", weights[4], calls, steps, most);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("accumulate: standard output"), 1;
  return right ? 0 : 1;
}
