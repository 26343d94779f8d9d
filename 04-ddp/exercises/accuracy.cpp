// The accuracy of a model, counted by all ranks: each rank tests its own part of the images, and the parts differ in
// size.
//
//   mpicxx -std=c++20 -O2 accuracy.cpp -o accuracy
//   mpirun -n 4 ./accuracy
//
// Exit status: 0 if all ranks have the accuracy that one process finds; 1 if not.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

constexpr std::size_t images = 1000;

// Whether the model recognises an image, a function of its argument alone. The last images are the hardest.
bool recognised(std::size_t image) {
  std::uint64_t x = (image + 1) * 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  return (x >> 32) % images > image / 2;
}

double accuracy(MPI_Comm comm) {
  int rank = 0, size = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  const std::size_t r = std::size_t(rank), n = std::size_t(size);
  const std::size_t first = images * r * (r + 1) / (n * (n + 1)), last = images * (r + 1) * (r + 2) / (n * (n + 1));
  // TODO (exercise): the mean of the ranks' accuracies is not the accuracy over all images. Return that, on every rank.
  double right = 0, sum = 0;
  for (std::size_t i = first; i < last; ++i) right += recognised(i);
  const double own = right / double(last - first);
  MPI_Allreduce(&own, &sum, 1, MPI_DOUBLE, MPI_SUM, comm);
  return sum / size;
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
    return std::fprintf(stderr, "accuracy needs at least 2 processes: mpirun -n 2 ./accuracy\n"), MPI_Finalize(), 1;
  const double all = accuracy(MPI_COMM_WORLD), alone = accuracy(MPI_COMM_SELF);
  int right = all == alone;
  MPI_Allreduce(MPI_IN_PLACE, &right, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (rank == 0)
    std::printf("%s: %.2f %% of the images are recognised, one process finds %.2f %%\n", right ? "RIGHT" : "WRONG",
                100 * all, 100 * alone);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("accuracy: standard output"), 1;
  return right ? 0 : 1;
}
