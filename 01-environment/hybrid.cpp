// MPI between processes, OpenMP between the threads of each: which cores may they use, and how fast do they read and
// write memory?
//
//   mpicxx -std=c++20 -O2 -fopenmp hybrid.cpp -o hybrid
//   OMP_NUM_THREADS=2 mpirun -n 2 --bind-to none ./hybrid
//
// Exit status: 0 if every element is right, 1 if not.
// After: hello_mpi.cpp. New since hello_mpi: threads, MPI_Init_thread, first touch.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <string>

static_assert(_OPENMP, "without -fopenmp, the compiler ignores all lines with #pragma omp");
constexpr long count = 1L << 22;  // elements of each vector: 32 MiB

// Which CPUs the calling thread may use, such as 0-3,8, and where it runs.
std::string this_thread() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  std::string cpus;
  for (int first = 0, last = 0; first < CPU_SETSIZE; first = last + 1) {
    last = first;
    if (!CPU_ISSET(first, &set)) continue;
    while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, &set)) ++last;
    cpus += (cpus.empty() ? "" : ",") + std::to_string(first) + (last > first ? "-" + std::to_string(last) : "");
  }
  unsigned cpu = 0, numa_node = 0;
  getcpu(&cpu, &numa_node);
  return "  a thread may use CPUs " + cpus + ", and runs on " + std::to_string(cpu) + ", NUMA node " +
         std::to_string(numa_node) + "\n";
}

int main(int argc, char** argv) {
  // FUNNELED: there are threads, and only the one that calls MPI_Init_thread calls MPI.
  int rank = 0, size = 0, asked = 1, provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;
  if (provided < MPI_THREAD_FUNNELED) return std::fprintf(stderr, "hybrid: this MPI was built without threads\n"), 1;

  // `new` writes nothing here. The thread that first writes to a page of memory decides where it lies: in this loop,
  // whose threads have the same elements in the loops below.
  const std::unique_ptr<double[]> a(new double[count]), b(new double[count]);
#pragma omp parallel for schedule(static)
  for (long i = 0; i < count; ++i) a[i] = 0, b[i] = double(i);

  double fastest = HUGE_VAL;
  for (int round = 1; round <= 5; ++round) {
    const double start = MPI_Wtime();
#pragma omp parallel for schedule(static)
    for (long i = 0; i < count; ++i) a[i] += b[i] + rank;
    fastest = std::min(fastest, MPI_Wtime() - start);
  }
  long wrong = 0;
#pragma omp parallel for schedule(static) reduction(+ : wrong)
  for (long i = 0; i < count; ++i) wrong += a[i] != 5.0 * double(i + rank);

  std::string threads;
#pragma omp parallel
#pragma omp critical
  threads += this_thread();

  char line[64];  // an element is read twice and written once
  std::snprintf(line, sizeof line, "rank %d: %.1f GB/s\n", rank, 3e-9 * sizeof(double) * count / fastest);
  std::string report = line + threads;
  if (rank > 0) {
    MPI_Send(report.data(), int(report.size()), MPI_CHAR, 0, 0, MPI_COMM_WORLD);
    MPI_Send(&wrong, 1, MPI_LONG, 0, 1, MPI_COMM_WORLD);
  }
  long all_wrong = wrong;
  if (rank == 0) std::fputs(report.c_str(), stdout);
  for (int peer = 1; rank == 0 && peer < size; ++peer) {
    MPI_Status status;
    int length = 0;
    report.resize(1 << 20);
    MPI_Recv(report.data(), 1 << 20, MPI_CHAR, peer, 0, MPI_COMM_WORLD, &status);
    MPI_Get_count(&status, MPI_CHAR, &length);
    MPI_Recv(&wrong, 1, MPI_LONG, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    std::fwrite(report.data(), 1, std::size_t(length), stdout);
    all_wrong += wrong;
  }
  if (rank == 0)
    std::printf("%s: %ld of %ld elements wrong\n", all_wrong == 0 ? "RIGHT" : "WRONG", all_wrong, size * count);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("hybrid: standard output"), 1;
  return all_wrong == 0 ? 0 : 1;
}
