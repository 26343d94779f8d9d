// Horovod's first example without Horovod: one training step of Linear(10, 10) on all ranks, call by call.
//
//   mpicxx -std=c++20 -O2 one_step.cpp -o one_step
//   mpirun -n 2 ./one_step
//
// Exit status: 0 if each rank's model is that of one process with all samples, up to rounding; 1 if not.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <random>
#include <vector>

constexpr std::size_t units = 10, batch = 20;
using Matrix = std::array<double, units * units>;  // the tutorial's layer also has a bias

Matrix random_model(unsigned seed) {
  std::minstd_rand generator(seed + 1);
  std::uniform_real_distribution<double> uniform(-1, 1);
  Matrix model{};
  std::ranges::generate(model, [&] { return uniform(generator); });
  return model;
}

// The gradient of the mean square error over one rank's samples.
Matrix backward(const Matrix& model, int rank) {
  std::mt19937 generator(unsigned(rank) + 1000);
  std::normal_distribution<double> normal;
  Matrix gradient{};
  for (std::size_t sample = 0; sample < batch; ++sample) {
    std::array<double, units> x{};
    std::ranges::generate(x, [&] { return normal(generator); });
    for (std::size_t o = 0; o < units; ++o) {
      double error = -normal(generator);  // the output minus the label
      for (std::size_t i = 0; i < units; ++i) error += model[o * units + i] * x[i];
      for (std::size_t i = 0; i < units; ++i) gradient[o * units + i] += 2 * error * x[i] / double(batch * units);
    }
  }
  return gradient;
}

void update(Matrix& model, const Matrix& gradients, int size) {  // with the mean over the ranks
  for (std::size_t i = 0; i < model.size(); ++i) model[i] -= 0.001 * gradients[i] / size;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);  // hvd.init()
  int rank = 0, size = 0, local_rank = 0, local_size = 0;
  MPI_Comm node = MPI_COMM_NULL;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
  MPI_Comm_rank(node, &local_rank);  // cudaSetDevice(local_rank), where there are GPUs
  MPI_Comm_size(node, &local_size);
  std::vector<int> local_ranks(std::size_t(size), 0);  // for rank 0, which alone prints
  MPI_Gather(&local_rank, 1, MPI_INT, local_ranks.data(), 1, MPI_INT, 0, MPI_COMM_WORLD);
  if (rank == 0) std::printf("total number of processes: %d\nnumber on this node: %d\n", size, local_size);
  for (int r = 0; r < size && rank == 0; ++r) std::printf("rank: %d, local rank: %d\n", r, local_ranks[std::size_t(r)]);

  Matrix model = random_model(unsigned(rank));                                // create a local model
  MPI_Bcast(model.data(), int(model.size()), MPI_DOUBLE, 0, MPI_COMM_WORLD);  // distribute parameters
  Matrix gradient = backward(model, rank);                                    // run a forward and a backward pass
  MPI_Allreduce(MPI_IN_PLACE, gradient.data(), int(gradient.size()), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  update(model, gradient, size);          // update parameters using the optimizer
  Matrix alone = random_model(0), sum{};  // one process
  for (int other = 0; other < size; ++other)
    std::ranges::transform(sum, backward(alone, other), sum.begin(), std::plus<>());
  update(alone, sum, size);
  int wrong = 0;
  for (std::size_t i = 0; i < alone.size(); ++i) wrong += !(std::abs(model[i] - alone[i]) < 1e-12);
  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) std::printf("done\n%s: %d parameters differ from one process\n", wrong ? "WRONG" : "RIGHT", wrong);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("one_step: standard output"), 1;
  return wrong ? 1 : 0;
}
