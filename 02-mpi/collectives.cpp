// The collective operations of MPI, one after the other. All ranks make the same calls in the same order, and every
// element that arrives is checked.
//
//   mpicxx -std=c++20 -O2 collectives.cpp -o collectives
//   mpirun -n 4 ./collectives
//
// Exit status: 0 if every element is right, 1 if not.
// After: all_reduce.cpp.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

constexpr int root = 0, count = 1000;  // elements of a block

// Element i of the block that rank `from` has for rank `to`.
int element(int from, int to, int i) { return 100 * (from % 100) + 10 * (to % 10) + i % 10; }

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;

  std::vector<int> blocks, got;  // blocks: one for each rank. Where an operation takes one block, it is the first.
  for (int to = 0; to < size; ++to)
    for (int i = 0; i < count; ++i) blocks.push_back(element(rank, to, i));
  int* const mine = blocks.data();
  long wrong = 0;
  const auto fresh = [&] { got.assign(blocks.size(), -1); };
  const auto expect = [&](int block,
                          auto value) {  // block number `block` of got has the elements value(0), value(1), ...
    for (int i = 0; i < count; ++i) wrong += got[std::size_t(block) * count + std::size_t(i)] != value(i);
  };
  const auto sum = [&](int to, int i) {  // over all ranks, of block number `to`
    int of_all = 0;
    for (int from = 0; from < size; ++from) of_all += element(from, to, i);
    return of_all;
  };

  // One block of the root goes to every rank. The root gives the buffer that it has, the others the buffer to fill.
  fresh();
  if (rank == root) got.assign(blocks.begin(), blocks.end());
  MPI_Bcast(got.data(), count, MPI_INT, root, MPI_COMM_WORLD);
  expect(0, [&](int i) { return element(root, 0, i); });

  // The root's block number r goes to rank r. The counts are those of one block.
  fresh();
  MPI_Scatter(mine, count, MPI_INT, got.data(), count, MPI_INT, root, MPI_COMM_WORLD);
  expect(0, [&](int i) { return element(root, rank, i); });

  // The opposite: the block of rank r becomes the root's block number r.
  fresh();
  MPI_Gather(mine, count, MPI_INT, got.data(), count, MPI_INT, root, MPI_COMM_WORLD);
  for (int from = 0; rank == root && from < size; ++from) expect(from, [&](int i) { return element(from, 0, i); });

  // The same for every rank, as if each were the root once.
  fresh();
  MPI_Allgather(mine, count, MPI_INT, got.data(), count, MPI_INT, MPI_COMM_WORLD);
  for (int from = 0; from < size; ++from) expect(from, [&](int i) { return element(from, 0, i); });

  // Block number s of rank r becomes block number r of rank s.
  fresh();
  MPI_Alltoall(mine, count, MPI_INT, got.data(), count, MPI_INT, MPI_COMM_WORLD);
  for (int from = 0; from < size; ++from) expect(from, [&](int i) { return element(from, rank, i); });

  // The root gets the sum of all blocks, element by element.
  fresh();
  MPI_Reduce(mine, got.data(), count, MPI_INT, MPI_SUM, root, MPI_COMM_WORLD);
  if (rank == root) expect(0, [&](int i) { return sum(0, i); });

  // Every rank gets it. With MPI_IN_PLACE, the result replaces the input, and no second buffer is needed.
  got.assign(blocks.begin(), blocks.end());
  MPI_Allreduce(MPI_IN_PLACE, got.data(), count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  expect(0, [&](int i) { return sum(0, i); });

  // Rank r gets the sum of all blocks number r: half of an all-reduce. MPI_Allgather of the sums is the other half.
  fresh();
  MPI_Reduce_scatter_block(mine, got.data(), count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  expect(0, [&](int i) { return sum(rank, i); });

  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) std::printf("%s: %ld elements wrong\n", wrong == 0 ? "RIGHT" : "WRONG", wrong);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("collectives: standard output"), 1;
  return wrong == 0 ? 0 : 1;
}
