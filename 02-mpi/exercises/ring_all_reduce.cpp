// An all-reduce on a ring: each rank sends to the next one only, and only 2 (n - 1) / n of its data.
//
//   mpicxx -std=c++20 -O2 ring_all_reduce.cpp -o ring_all_reduce
//   mpirun -n 4 ./ring_all_reduce
//
// Exit status: 0 if every element is right and no rank sent more than that, 1 if not.
// After: all_reduce.cpp.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

// The data has one block per rank, all of the same length.
struct Ring {
  int rank = 0, size = 0;
  std::vector<float> data;
  long sent = 0;  // elements

  int length() const { return int(data.size()) / size; }
  float* block(int number) { return data.data() + (number + size) % size * length(); }

  // Sends block number `mine` to the next rank, and receives a block from the rank before it into `to`.
  void exchange(int mine, float* to) {
    MPI_Sendrecv(block(mine), length(), MPI_FLOAT, (rank + 1) % size, 0, to, length(), MPI_FLOAT,
                 (rank + size - 1) % size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    sent += length();
  }

  void all_reduce() {
    // TODO (exercise): make `data` the sum of all ranks' data, by exchange() alone. No rank may send more than
    // 2 (size - 1) blocks.
  }
};

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  Ring ring;
  int asked = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &ring.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ring.size);
  const int rank = ring.rank, size = ring.size, count = size * 1000;
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;
  if (size < 2)
    return std::fprintf(stderr, "ring_all_reduce needs at least 2 processes: mpirun -n 2 ./ring_all_reduce\n"),
           MPI_Finalize(), 1;
  for (int i = 0; i < count; ++i) ring.data.push_back(float(rank % 8 + i % 8));

  ring.all_reduce();

  long wrong = 0, sum_of_ranks = 0;
  for (int r = 0; r < size; ++r) sum_of_ranks += r % 8;
  for (int i = 0; i < count; ++i) wrong += ring.data[std::size_t(i)] != float(sum_of_ranks + size * (i % 8));
  long sent = ring.sent;
  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, &sent, 1, MPI_LONG, MPI_MAX, MPI_COMM_WORLD);
  const bool right = wrong == 0 && sent * size == 2L * (size - 1) * count;
  if (rank == 0)
    std::printf("%s: %ld elements wrong, each rank sent %.3f of its data\n", right ? "RIGHT" : "WRONG", wrong,
                double(sent) / count);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("ring_all_reduce: standard output"), 1;
  return right ? 0 : 1;
}
