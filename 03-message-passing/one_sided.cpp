// One-sided communication: every rank writes a block into the memory of its right neighbour with MPI_Put. The neighbour
// does not receive it. It only has to know when the block is there: after MPI_Win_fence.
//
//   mpicxx -std=c++20 -O2 one_sided.cpp -o one_sided
//   mpirun -n 4 ./one_sided
//   mpirun -n 4 ./one_sided early      the wrong order: reads before the fence
//
// Exit status: 0 if every element is right, 1 if not, 2 bad command line.
// After: deadlock.cpp. New: MPI_Win_allocate, MPI_Put, MPI_Win_fence.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

constexpr int count = 1000;

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;
  const bool early = argc > 1 && argv[1] == std::string("early");
  if (argc > 1 && !early) {
    if (rank == 0) std::fprintf(stderr, "one_sided: unknown argument '%s': early, or none\n", argv[1]);
    return MPI_Finalize(), 2;
  }
  const int left = (rank + size - 1) % size, right = (rank + 1) % size;

  // The window is the memory that the other ranks may write. (MPI_Win_create takes memory that the program has.)
  int* window = nullptr;
  MPI_Win handle;
  MPI_Win_allocate(count * sizeof(int), sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &window, &handle);
  std::fill_n(window, count, -1);
  int mine[count] = {};
  for (int i = 0; i < count; ++i) mine[i] = 10000 * (rank + 1) + i;
  const auto count_wrong = [&] {
    long wrong = 0;
    for (int i = 0; i < count; ++i) wrong += window[i] != 10000 * (left + 1) + i;
    return wrong;
  };

  long wrong = 0;
  MPI_Win_fence(0, handle);  // all windows are filled: from here on, ranks may put
  if (early) {
    // The left neighbour may put at any time up to the fence. Here it puts late: after the barrier. Otherwise chance
    // decides, and the mistake shows on one day in a hundred.
    wrong = count_wrong();
    MPI_Barrier(MPI_COMM_WORLD);
  }
  const int first = 0;  // of the neighbour's elements, those from here on
  MPI_Put(mine, count, MPI_INT, right, first, count, MPI_INT, handle);
  MPI_Win_fence(0, handle);  // all blocks have arrived, and `mine` may be reused
  if (!early) wrong = count_wrong();

  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) std::printf("%s: %ld of %d elements wrong\n", wrong == 0 ? "RIGHT" : "WRONG", wrong, size * count);
  MPI_Win_free(&handle);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("one_sided: standard output"), 1;
  return wrong == 0 ? 0 : 1;
}
