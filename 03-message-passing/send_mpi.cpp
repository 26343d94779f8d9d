// Rank 0 sends a block of integers to every other rank with MPI_Send. Each receiver checks every element.
//
//   mpicxx -std=c++20 -O2 send_mpi.cpp -o send_mpi
//   mpirun -n 4 ./send_mpi
//
// Exit status: 0 if every element is right, 1 if not.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <initializer_list>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;
  if (size < 2)
    return std::fprintf(stderr, "send_mpi needs at least 2 processes: mpirun -n 2 ./send_mpi\n"), MPI_Finalize(), 1;

  // An element depends on its receiver and on its position: a block that another rank should have had is wrong, and so
  // is a shifted one.
  constexpr int count = 1000, tag = 3;
  int block[count] = {};
  long wrong = 0;
  if (rank == 0) {
    for (int peer = 1; peer < size; ++peer) {
      for (int i = 0; i < count; ++i) block[i] = 10000 * peer + i;
      MPI_Send(block, count, MPI_INT, peer, tag, MPI_COMM_WORLD);  // when it returns, `block` may be reused
      std::printf("Rank 0 sent data to Rank %d\n", peer);
    }
  } else {
    MPI_Recv(block, count, MPI_INT, 0, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int i = 0; i < count; ++i) wrong += block[i] != 10000 * rank + i;
    std::printf("Rank %d has received data from rank 0\n", rank);
  }

  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0)
    std::printf("%s: %ld of %d elements wrong\n", wrong == 0 ? "RIGHT" : "WRONG", wrong, (size - 1) * count);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("send_mpi: standard output"), 1;
  return wrong == 0 ? 0 : 1;
}
