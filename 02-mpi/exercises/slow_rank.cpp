// Which rank is slow? Rank 0 plays ping-pong with each of the others: the slow one needs longer to answer.
//
//   mpicxx -std=c++20 -O2 slow_rank.cpp -o slow_rank
//   mpirun -n 4 ./slow_rank
//
// Exit status: 0 if rank 0 finds the slow rank, 1 if not.
// After: ping_pong.cpp.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

constexpr int rounds = 10;
constexpr double never = 1e9;  // seconds

// On every rank but 0: sends back what rank 0 sends, until that is negative. The slow rank hesitates first, as if its
// link had a delay.
void answer(bool slow) {
  for (;;) {
    int ball = 0;
    MPI_Recv(&ball, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (ball < 0) return;
    if (slow) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    MPI_Send(&ball, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
  }
}

// On rank 0: the seconds of the fastest of `rounds` round trips to this rank and back.
double round_trip(int peer) {
  double fastest = never;
  // TODO (exercise): measure it. Why does the fastest round count, and not the mean?
  static_cast<void>(peer);
  return fastest;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1, slowest = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;
  if (size < 2)
    return std::fprintf(stderr, "slow_rank needs at least 2 processes: mpirun -n 2 ./slow_rank\n"), MPI_Finalize(), 1;

  const int slow = size / 2;  // to be found without using this
  int right = 1;
  if (rank == 0) {
    double longest = 0;
    for (int peer = 1; peer < size; ++peer) {
      const double seconds = round_trip(peer);
      const int end = -1;
      MPI_Send(&end, 1, MPI_INT, peer, 0, MPI_COMM_WORLD);
      std::printf("rank %d: %.3f ms\n", peer, seconds * 1e3);
      if (seconds > longest) longest = seconds, slowest = peer;
    }
    right = slowest == slow && longest < never ? 1 : 0;
    std::printf("%s: rank %d is the slowest\n", right ? "RIGHT" : "WRONG", slowest);
  } else {
    answer(rank == slow);
  }
  MPI_Bcast(&right, 1, MPI_INT, 0, MPI_COMM_WORLD);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("slow_rank: standard output"), 1;
  return right ? 0 : 1;
}
