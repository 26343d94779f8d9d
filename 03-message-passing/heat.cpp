// The heat equation on a rod, shared by all ranks. In every step each rank exchanges the cells at its ends with its
// neighbours: the halo exchange, in three ways. Every bit must be that of one process.
//
//   mpicxx -std=c++20 -O2 -ffp-contract=off heat.cpp -o heat
//   mpirun -n 4 ./heat [CELLS]
//
// Exit status: 0 if every cell has the bits of one process and is the known solution to within rounding, 1 if not.
// After: deadlock.cpp. New: MPI_PROC_NULL, computing while messages travel.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numbers>
#include <vector>

constexpr double r = 0.25;  // diffusivity x time step / cell width^2: stable up to 0.5
constexpr int steps = 200, tag = 5;

// u[0] and u[cells + 1] are the halo: copies of the neighbours' cells. At the ends of the rod they are 0, the wall.
struct Rod {
  explicit Rod(long first, long cells,
               long all)  // cells first + 1 ... first + cells of 1 ... all: a sine, 0 at the walls
      : old(std::size_t(cells) + 2), now(old), length(cells) {
    for (long i = 1; i <= cells; ++i)
      now[std::size_t(i)] = std::sin(std::numbers::pi * double(first + i) / double(all + 1));
  }
  void step(long first, long last) {
    for (long i = first; i <= last; ++i) {
      const double* u = &old[std::size_t(i)];
      now[std::size_t(i)] = u[0] + r * ((u[-1] - u[0]) + (u[1] - u[0]));
    }
  }
  std::vector<double> old, now;
  long length;
};

struct Neighbours {
  int left, right;  // MPI_PROC_NULL at the ends of the rod: a message from or to it does nothing
};

// Each call sends one end and receives one halo cell. The second message starts after the first has arrived.
void one_after_the_other(Rod& rod, Neighbours at) {
  double* u = rod.old.data();
  const long n = rod.length;
  MPI_Sendrecv(&u[n], 1, MPI_DOUBLE, at.right, tag, &u[0], 1, MPI_DOUBLE, at.left, tag, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
  MPI_Sendrecv(&u[1], 1, MPI_DOUBLE, at.left, tag, &u[n + 1], 1, MPI_DOUBLE, at.right, tag, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
  rod.step(1, rod.length);
}

// Starts the four messages of a step. MPI may send and fill the cells until MPI_Waitall returns.
struct Exchange {
  Exchange(Rod& rod, Neighbours at) {
    double* u = rod.old.data();
    const long n = rod.length;
    MPI_Irecv(&u[0], 1, MPI_DOUBLE, at.left, tag, MPI_COMM_WORLD, &requests[0]);
    MPI_Irecv(&u[n + 1], 1, MPI_DOUBLE, at.right, tag, MPI_COMM_WORLD, &requests[1]);
    MPI_Isend(&u[n], 1, MPI_DOUBLE, at.right, tag, MPI_COMM_WORLD, &requests[2]);
    MPI_Isend(&u[1], 1, MPI_DOUBLE, at.left, tag, MPI_COMM_WORLD, &requests[3]);
  }
  void wait() { MPI_Waitall(4, requests, MPI_STATUSES_IGNORE); }
  MPI_Request requests[4];
};

void exchange_then_compute(Rod& rod, Neighbours at) {
  Exchange(rod, at).wait();
  rod.step(1, rod.length);
}

// While the messages travel, compute the cells that need no halo. Then wait, and compute the two at the ends.
void compute_while_exchanging(Rod& rod, Neighbours at) {
  Exchange exchange(rod, at);
  rod.step(2, rod.length - 1);
  exchange.wait();
  rod.step(1, 1);
  if (rod.length > 1) rod.step(rod.length, rod.length);
}

void alone(Rod& rod, Neighbours) { rod.step(1, rod.length); }

double microseconds(Rod& rod, Neighbours at, void (*advance)(Rod&, Neighbours)) {  // per step
  const double start = MPI_Wtime();
  for (int i = 0; i < steps; ++i) {
    std::swap(rod.old, rod.now);
    advance(rod, at);
  }
  return (MPI_Wtime() - start) / steps * 1e6;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;
  const long all = argc > 1 ? std::atol(argv[1]) : 20000;
  if (all < size) {
    if (rank == 0) std::fprintf(stderr, "heat: every rank needs a cell: at least %d cells, not %s\n", size, argv[1]);
    return MPI_Finalize(), 1;
  }
  // Shares differ by one cell at most: the number of cells need not be a multiple of the number of ranks.
  const auto first_of = [&](long of) { return all * of / size; };
  const long first = first_of(rank), cells = first_of(rank + 1) - first;
  const Neighbours at{rank > 0 ? rank - 1 : MPI_PROC_NULL, rank < size - 1 ? rank + 1 : MPI_PROC_NULL};

  Rod whole(0, all, all);  // every rank computes the rod alone as well, for the comparison
  const double time_alone = microseconds(whole, at, alone);
  // A sine only shrinks, by the same factor in every step and in every cell. The bound: 4 roundings of at most 2^-53 a
  // step.
  const double sine = std::sin(std::numbers::pi / 2 / double(all + 1)),
               factor = std::pow(1 - 4 * r * sine * sine, steps);
  long wrong = 0;
  for (long i = 1; i <= all; ++i)
    wrong +=
        !(std::abs(whole.now[std::size_t(i)] - factor * std::sin(std::numbers::pi * double(i) / double(all + 1))) <=
          4 * (steps + 2) * 0x1p-53);

  void (*const ways[])(Rod&, Neighbours) = {one_after_the_other, exchange_then_compute, compute_while_exchanging};
  long differ[3] = {};
  double time[3] = {};
  for (int run = 0; run < 6; ++run) {  // twice each: the first message of two ranks sets up their connection
    const int way = run % 3;
    Rod own(first, cells, all);
    MPI_Barrier(MPI_COMM_WORLD);
    time[way] = microseconds(own, at, ways[way]);
    for (long i = 1; i <= cells; ++i) differ[way] += own.now[std::size_t(i)] != whole.now[std::size_t(first + i)];
  }
  MPI_Allreduce(MPI_IN_PLACE, differ, 3, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  const bool right = differ[0] + differ[1] + differ[2] + wrong == 0;
  if (rank == 0)
    std::printf(
        "time per step:\n"
        "%10.2f us  alone\n"
        "%10.2f us  one message after the other, then compute\n"
        "%10.2f us  all messages, then compute\n"
        "%10.2f us  compute while the messages travel\n"
        "%s: %ld + %ld + %ld of %ld cells differ from one process\n",
        time_alone, time[0], time[1], time[2], right ? "RIGHT" : "WRONG", differ[0], differ[1], differ[2], all);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("heat: standard output"), 1;
  return right ? 0 : 1;
}
