// Two processes exchange bytes, with the six calls that every MPI program has: rank 0 sends the alphabet to each other
// rank, and rank r returns it without the first r letters.
//
//   rank 0                      rank r
//   MPI_Send  ──abcd...z──►     MPI_Recv
//   MPI_Recv  ◄───bcd...z──     MPI_Send
//
//   mpicxx -std=c++20 -O2 six_calls.cpp -o six_calls
//   mpirun -n 3 ./six_calls
//
// With a rank as argument, that rank ends with exit status 3 and without an answer.
// Exit status: 0 if every byte is right, 1 if not.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

constexpr int tag = 7;
constexpr char alphabet[] = "abcdefghijklmnopqrstuvwxyz";
constexpr int letters = 26;

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;
  if (size < 2)
    return std::fprintf(stderr, "six_calls needs 2 processes: mpirun -n 2 ./six_calls\n"), MPI_Finalize(), 1;

  char text[letters] = {};
  int bytes = 0, wrong = 0;
  if (rank > 0) {
    MPI_Recv(text, letters, MPI_CHAR, 0, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (argc > 1 && std::atoi(argv[1]) == rank) return 3;
    const int first = std::min(rank, letters);
    MPI_Send(text + first, letters - first, MPI_CHAR, 0, tag, MPI_COMM_WORLD);
  }
  for (int peer = 1; rank == 0 && peer < size; ++peer) {
    MPI_Send(alphabet, letters, MPI_CHAR, peer, tag, MPI_COMM_WORLD);
    MPI_Status status;
    int came = 0;
    MPI_Recv(text, letters, MPI_CHAR, peer, tag, MPI_COMM_WORLD, &status);
    MPI_Get_count(&status, MPI_CHAR, &came);
    std::printf("%d bytes from rank %d: %.*s\n", came, status.MPI_SOURCE, came, text);
    const int first = std::min(peer, letters);
    wrong += came != letters - first;
    for (int i = 0; i < std::min(came, letters - first); ++i) wrong += text[i] != alphabet[first + i];
    bytes += came;
  }
  if (rank == 0) std::printf("%s: %d of %d bytes wrong\n", wrong == 0 ? "RIGHT" : "WRONG", wrong, bytes);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("six_calls: standard output"), 1;
  return wrong == 0 ? 0 : 1;
}
