// A broadcast on a tree: in each round every rank that has the data sends it to one that has not, so that the number of
// rounds is log2 of the number of ranks.
//
//   mpicxx -std=c++20 -O2 tree_broadcast.cpp -o tree_broadcast
//   mpirun -n 4 ./tree_broadcast
//
// Exit status: 0 if every element is right and no rank sent more often than that, 1 if not.
// After: collectives.cpp.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <bit>
#include <cstdio>
#include <cstdlib>
#include <vector>

// Every rank gets the data of rank 0. Returns how often this rank sent it.
int broadcast(std::vector<float>& data, int rank, int size) {
  const int count = int(data.size());
  int sends = 0;
  // TODO (exercise): rank 0 sends size - 1 times while the other ranks wait. No rank may send more than log2(size)
  // times, rounded up.
  if (rank == 0) {
    for (int peer = 1; peer < size; ++peer, ++sends) MPI_Send(data.data(), count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD);
  } else {
    MPI_Recv(data.data(), count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  return sends;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;
  if (size < 4) {
    if (rank == 0) std::fprintf(stderr, "tree_broadcast needs at least 4 processes: mpirun -n 4 ./tree_broadcast\n");
    return MPI_Finalize(), 1;
  }

  const std::size_t count = 1 << 20;
  const int trials = 10;
  std::vector<float> data(count);
  int sends = 0;
  long wrong = 0;
  double seconds = 0;
  for (int trial = 0; trial < trials; ++trial) {
    for (std::size_t i = 0; i < count; ++i) data[i] = rank == 0 ? float(trial) + float(i % 8) : -1.0f;
    MPI_Barrier(MPI_COMM_WORLD);
    seconds -= MPI_Wtime();
    sends = broadcast(data, rank, size);
    MPI_Barrier(MPI_COMM_WORLD);  // a broadcast is over when the last rank has the data
    seconds += MPI_Wtime();
    for (std::size_t i = 0; i < count; ++i) wrong += data[i] != float(trial) + float(i % 8);
  }

  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, &sends, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  const int rounds = int(std::bit_width(unsigned(size - 1)));  // log2, rounded up
  const bool right = wrong == 0 && sends <= rounds;
  // Every rank receives the data once, so a broadcast's busbw is its algbw.
  const double busbw = 4.0 * double(count) * trials / seconds / 1e9;
  if (rank == 0) {
    std::printf("busbw: %.3f GB/s\n", busbw);
    std::printf("%s: %ld elements wrong, at most %d sends per rank, %d allowed\n", right ? "RIGHT" : "WRONG", wrong,
                sends, rounds);
  }
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("tree_broadcast: standard output"), 1;
  return right ? 0 : 1;
}
