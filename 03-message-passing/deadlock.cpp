// Every rank sends a block to its right neighbour and receives one from its left neighbour, all at the same time: in
// the obvious order, which can deadlock, and in three ways that cannot.
//
//   mpicxx -std=c++20 -O2 deadlock.cpp -o deadlock
//   mpirun -n 4 ./deadlock              the three repairs
//   mpirun -n 4 ./deadlock MPI_Send     send, then receive: ends only if MPI buffers the message
//   mpirun -n 4 ./deadlock MPI_Ssend    the same with a synchronous send: never ends
//
// Exit status: 0 if every element is right, 1 if not.
// After: send_mpi.cpp. New: MPI_Ssend, MPI_Sendrecv, MPI_Irecv, MPI_Issend, MPI_Request, MPI_Waitall.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <string>

constexpr int count = 1000, tag = 3;

struct Shift {
  int rank, left, right;
  int mine[count], got[count];
};

void send_then_receive(Shift& s) {
  MPI_Send(s.mine, count, MPI_INT, s.right, tag, MPI_COMM_WORLD);
  MPI_Recv(s.got, count, MPI_INT, s.left, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

// MPI_Ssend returns only after the receiver has begun to receive. Here every rank is in MPI_Ssend, so none receives.
void synchronous_send_then_receive(Shift& s) {
  MPI_Ssend(s.mine, count, MPI_INT, s.right, tag, MPI_COMM_WORLD);
  MPI_Recv(s.got, count, MPI_INT, s.left, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

// Repair 1: an order. Rank 1 receives while rank 0 sends. MPI_Ssend proves that no buffer of MPI is needed.
void even_ranks_send_first(Shift& s) {
  if (s.rank % 2 == 0) MPI_Ssend(s.mine, count, MPI_INT, s.right, tag, MPI_COMM_WORLD);
  MPI_Recv(s.got, count, MPI_INT, s.left, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  if (s.rank % 2 == 1) MPI_Ssend(s.mine, count, MPI_INT, s.right, tag, MPI_COMM_WORLD);
}

// Repair 2: one call that sends and receives at the same time.
void send_and_receive(Shift& s) {
  MPI_Sendrecv(s.mine, count, MPI_INT, s.right, tag, s.got, count, MPI_INT, s.left, tag, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
}

// Repair 3: non-blocking calls. They only start the messages and return a request. The program may compute, but not
// touch the blocks, until MPI_Waitall returns. (MPI_Issend is the synchronous MPI_Isend.)
void start_then_wait(Shift& s) {
  MPI_Request requests[2];
  MPI_Irecv(s.got, count, MPI_INT, s.left, tag, MPI_COMM_WORLD, &requests[0]);
  MPI_Issend(s.mine, count, MPI_INT, s.right, tag, MPI_COMM_WORLD, &requests[1]);
  MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
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
    return std::fprintf(stderr, "deadlock needs at least 2 processes: mpirun -n 2 ./deadlock\n"), MPI_Finalize(), 1;

  const struct {
    const char* name;
    void (*shift)(Shift&);
    bool repair;
  } ways[] = {{"MPI_Send", send_then_receive, false},
              {"MPI_Ssend", synchronous_send_then_receive, false},
              {"even ranks send first", even_ranks_send_first, true},
              {"MPI_Sendrecv", send_and_receive, true},
              {"MPI_Irecv, MPI_Issend, MPI_Waitall", start_then_wait, true}};
  const std::string wanted = argc > 1 ? argv[1] : "";
  long wrong = 0, ran = 0;
  for (const auto& way : ways) {
    if (wanted.empty() ? !way.repair : wanted != way.name) continue;
    Shift s{rank, (rank + size - 1) % size, (rank + 1) % size, {}, {}};
    for (int i = 0; i < count; ++i) s.mine[i] = 10000 * (rank + 1) + i;
    MPI_Barrier(MPI_COMM_WORLD);  // all ranks start at the same time
    way.shift(s);
    for (int i = 0; i < count; ++i) wrong += s.got[i] != 10000 * (s.left + 1) + i;
    if (rank == 0) std::printf("%s: returned\n", way.name);
    ++ran;
  }

  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  const bool right = wrong == 0 && ran > 0;
  if (rank == 0) std::printf("%s: %ld elements wrong in %ld exchanges\n", right ? "RIGHT" : "WRONG", wrong, ran);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("deadlock: standard output"), 1;
  return right ? 0 : 1;
}
