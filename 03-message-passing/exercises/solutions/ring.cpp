// A block goes once around the ring: rank 0 sends it to rank 1, rank 1 to rank 2 ..., the last rank back to rank 0.
// Every rank adds 1 to every element before it passes the block on.
//
//   mpicxx -std=c++20 -O2 ring.cpp -o ring
//   mpirun -n 4 ./ring
//
// Exit status: 0 if every element is right when it is back on rank 0, 1 if not.
#include <mpi.h>

#include <cstdio>

constexpr int count = 1 << 20, tag = 3;
int block[count];

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size < 2) {
    std::fprintf(stderr, "ring needs at least 2 processes: mpirun -n 2 ./ring\n");
    MPI_Abort(MPI_COMM_WORLD, 1);
  }

  const int left = (rank + size - 1) % size, right = (rank + 1) % size;
  if (rank != 0) {
    MPI_Recv(block, count, MPI_INT, left, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int i = 0; i < count; ++i) block[i] += 1;
  } else {
    for (int i = 0; i < count; ++i) block[i] = i;
  }
  MPI_Send(block, count, MPI_INT, right, tag, MPI_COMM_WORLD);
  if (rank == 0) MPI_Recv(block, count, MPI_INT, left, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);

  int wrong = 0;
  for (int i = 0; rank == 0 && i < count; ++i) wrong += block[i] != i + size - 1;
  MPI_Bcast(&wrong, 1, MPI_INT, 0, MPI_COMM_WORLD);
  if (rank == 0) std::printf("%s: %d elements wrong\n", wrong == 0 ? "RIGHT" : "WRONG", wrong);
  MPI_Finalize();
  return wrong == 0 ? 0 : 1;
}
