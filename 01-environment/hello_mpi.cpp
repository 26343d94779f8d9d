// Every process says who it is: rank, host, local rank. Checked: the ranks are 0 to size - 1, and none is missing.
//
//   mpicxx -std=c++20 -O2 hello_mpi.cpp -o hello_mpi
//   mpirun -n 4 ./hello_mpi
//
// Exit status: 0 if the numbers are right, 1 if not.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

struct Who {
  int rank, local_rank, local_size;
  char host[MPI_MAX_PROCESSOR_NAME];
};

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int size = 0, length = 0;
  Who me{};
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_rank(MPI_COMM_WORLD, &me.rank);
  MPI_Get_processor_name(me.host, &length);

  // Processes that can share memory are on the same node. The rank in a communicator of these processes is the local
  // rank, which says which GPU of the node to use.
  MPI_Comm node = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
  MPI_Comm_rank(node, &me.local_rank);
  MPI_Comm_size(node, &me.local_size);
  MPI_Comm_free(&node);

  // Every process gets the whole list, so that all of them come to the same verdict and exit status.
  std::vector<Who> all(static_cast<std::size_t>(size));
  MPI_Allgather(&me, sizeof me, MPI_BYTE, all.data(), sizeof me, MPI_BYTE, MPI_COMM_WORLD);

  // Each node has one process with local rank 0. Their local sizes are the sizes of the nodes.
  int nodes = 0, processes = 0, wrong = 0;
  for (int i = 0; i < size; ++i) {
    const Who& process = all[static_cast<std::size_t>(i)];
    if (me.rank == 0)
      std::printf("rank %d of %d on host %s, local rank %d of %d\n", process.rank, size, process.host,
                  process.local_rank, process.local_size);
    wrong += process.rank != i || process.local_rank >= process.local_size;
    if (process.local_rank == 0) {
      ++nodes;
      processes += process.local_size;
    }
  }

  const long long mine = me.rank;
  long long sum = 0;
  MPI_Allreduce(&mine, &sum, 1, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
  const bool right = wrong == 0 && processes == size && sum == size * (size - 1LL) / 2;

  // The mpirun of another MPI (OMPI: Open MPI, PMI: MPICH and Intel MPI) starts processes that do not find each other.
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
    if (const char* started = std::getenv(variable); size == 1 && started && std::atoi(started) > 1) {
      std::printf("WRONG: %s says %s processes, MPI says 1: use the mpirun of the MPI that compiled the program\n",
                  variable, started);
      MPI_Finalize();
      return 1;
    }
  if (me.rank == 0)
    std::printf("%s: %d process%s on %d node%s, the sum of the ranks is %lld\n", right ? "RIGHT" : "WRONG", size,
                size == 1 ? "" : "es", nodes, nodes == 1 ? "" : "s", sum);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("hello_mpi: standard output"), 1;
  return right ? 0 : 1;
}
