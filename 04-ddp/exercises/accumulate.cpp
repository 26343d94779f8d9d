// Gradient accumulation: several backward passes, then one all-reduce and one update. It trains with a batch whose
// activations do not fit into memory, and communicates less often. (PyTorch: no_sync.)
//
//   mpicxx -std=c++20 -O2 accumulate.cpp -o accumulate
//   mpirun -n 4 ./accumulate
//
// Exit status: 0 if all ranks have the weights of one process, with one all-reduce per step; 1 if not.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

constexpr std::size_t features = 16, batch = 40, steps = 50;  // the batch of all ranks

// A whole number in -8 ... 7, a function of its arguments alone.
double input(std::size_t sample, std::size_t feature) {
  std::uint64_t x = (sample * features + feature + 1) * 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  return double(x >> 60) - 8;
}

// To a multiple of 2^-20: sums of such numbers below 2^32 are exact in double, whatever their order.
double rounded(double x) { return (x + 0x1.8p32) - 0x1.8p32; }

// Adds the gradients of samples first ... last - 1 to `gradient`. The model is a weighted sum of the inputs.
void backward(const std::vector<double>& weights, std::size_t first, std::size_t last, std::vector<double>& gradient) {
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

// With each step in `passes` parts.
std::vector<double> train(MPI_Comm comm, std::size_t passes) {
  int rank = 0, size = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  const std::size_t samples = batch / passes;  // of all ranks in a pass
  std::vector<double> weights(features);
  for (std::size_t step = 0; step < steps; ++step) {
    std::vector<double> gradient(features);
    for (std::size_t pass = 0; pass < passes; ++pass) {
      const std::size_t begin = (step * passes + pass) * samples;
      const std::size_t first = begin + samples * std::size_t(rank) / std::size_t(size);
      const std::size_t last = begin + samples * std::size_t(rank + 1) / std::size_t(size);
      backward(weights, first, last, gradient);
      // TODO (exercise): an all-reduce after every pass adds up sums that contain each other. Reduce once per step, and
      // divide by the number of samples that the sum has.
      all_reduce(gradient, comm);
    }
    for (std::size_t f = 0; f < features; ++f) weights[f] -= 0.01 * (gradient[f] / double(samples));
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
  const std::vector<double> weights = train(MPI_COMM_WORLD, 4);
  const int calls = all_reduces;
  int right = weights == train(MPI_COMM_SELF, 1) && calls == int(steps);
  MPI_Allreduce(MPI_IN_PLACE, &right, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (rank == 0)
    std::printf("%s: weight 4 is %.6f, %d all-reduces in %zu steps\n", right ? "RIGHT" : "WRONG", weights[4], calls,
                steps);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("accumulate: standard output"), 1;
  return right ? 0 : 1;
}
