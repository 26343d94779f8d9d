// A training in float16 with loss scaling: it begins with a large scale, and whenever gradients overflow, it leaves out
// the step and halves the scale. In one process it learns. On several ranks it does not.
//
//   mpicxx -std=c++20 -O2 skipped_step.cpp -o skipped_step
//   mpirun -n 2 ./skipped_step
//
// TODO (exercise): find out what the ranks disagree about, and repair it.
//
// Exit status: 0 if all ranks have learned the same weights; 1 if not.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

constexpr std::size_t features = 24, samples = 60, steps = 200;  // of all ranks
using Values = std::array<float, features>;

// -1 ... 1, a function of its arguments alone.
float input(std::size_t sample, std::size_t feature) {
  std::uint64_t x = (sample * features + feature + 1) * 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  return float(x >> 40) / float(1 << 23) - 1;
}

// Rounding matters less here than the largest number, 65504.
float as_float16(float x) { return std::abs(x) > 65504 ? std::copysign(INFINITY, x) : x; }

struct Result {
  Values weights{};
  float loss = 0;  // of the last step
  int skipped = 0;
};

Result train(MPI_Comm comm) {
  int rank = 0, size = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  Result result;
  float scale = 1 << 16;
  for (std::size_t step = 0; step < steps; ++step) {
    Values gradient{};
    result.loss = 0;
    for (std::size_t s = samples * std::size_t(rank) / std::size_t(size);
         s < samples * std::size_t(rank + 1) / std::size_t(size); ++s) {
      float error = 0;
      for (std::size_t f = 0; f < features; ++f) error += (result.weights[f] - float(f % 5)) * input(s, f);
      for (std::size_t f = 0; f < features; ++f) gradient[f] += error * input(s, f);
      result.loss += error * error / float(samples);
    }
    bool finite = true;
    for (float& value : gradient) {
      value = as_float16(value * scale);
      finite &= std::isfinite(value);
    }
    MPI_Allreduce(MPI_IN_PLACE, gradient.data(), int(features), MPI_FLOAT, MPI_SUM, comm);
    MPI_Allreduce(MPI_IN_PLACE, &result.loss, 1, MPI_FLOAT, MPI_SUM, comm);
    if (!finite) {
      scale /= 2;
      ++result.skipped;
      continue;
    }
    for (std::size_t f = 0; f < features; ++f) result.weights[f] -= gradient[f] / scale / float(samples);
  }
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
  const Result result = train(MPI_COMM_WORLD);
  Values of_rank_0 = result.weights;
  MPI_Bcast(of_rank_0.data(), int(features), MPI_FLOAT, 0, MPI_COMM_WORLD);
  int right = result.loss < 1e-3F && result.skipped > 0 && of_rank_0 == result.weights;
  MPI_Allreduce(MPI_IN_PLACE, &right, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (rank == 0)
    std::printf("%s: loss %.4f, %d steps skipped\n", right ? "RIGHT" : "WRONG", result.loss, result.skipped);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("skipped_step: standard output"), 1;
  return right ? 0 : 1;
}
