// Manager and workers: rank 0 hands out tasks to whoever is free. Task k is to find the primes from k^2 to (k + 1)^2.
// The last task takes a thousand times as long as the first, and its result has another length.
//
//   mpicxx -std=c++20 -O2 manager_workers.cpp -o manager_workers
//   mpirun -n 4 ./manager_workers
//
//   rank 0                                   each other rank
//      ◄── ready ────────────────────────────  at first
//      ──── work: the number of a task ──────►
//      ◄── result: its primes, how many? ────  and so on, until
//      ──── stop ────────────────────────────►
//
// Exit status: 0 if each task has exactly its primes, 1 if not.
// After: send_mpi.cpp. New: MPI_Iprobe, MPI_Probe, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_Status, MPI_Get_count.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

constexpr int tasks = 1000;                               // the squares below 10^6
constexpr int ready = 1, result = 2, work = 3, stop = 4;  // tags: what a message is

std::vector<int> primes_of(int task) {
  std::vector<int> found;
  for (int i = std::max(2, task * task); i < (task + 1) * (task + 1); ++i) {
    bool prime = true;
    for (int d = 2; prime && d * d <= i; ++d) prime = i % d != 0;
    if (prime) found.push_back(i);
  }
  return found;
}

void be_worker() {
  MPI_Send(nullptr, 0, MPI_INT, 0, ready, MPI_COMM_WORLD);
  while (true) {
    int task = 0;
    MPI_Status status;
    MPI_Recv(&task, 1, MPI_INT, 0, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
    if (status.MPI_TAG == stop) return;
    const std::vector<int> primes = primes_of(task);
    MPI_Send(primes.data(), int(primes.size()), MPI_INT, 0, result, MPI_COMM_WORLD);
  }
}

// Fills the primes of each task, and the number of tasks that each rank did.
void be_manager(std::vector<std::vector<int>>& primes, std::vector<int>& done) {
  const int workers = int(done.size()) - 1;
  std::vector<int> task_of(done.size());
  int next = 0, working = workers;  // the next task, and how many workers have not been told to stop
  while (next < tasks || working > 0) {
    int arrived = 1;
    MPI_Status status;
    if (workers <= next && next < tasks)
      MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &arrived, &status);  // returns at once
    else  // at first, while the workers start, and when all tasks are handed out
      MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);  // waits for a message
    if (!arrived) {  // no worker is free, so the manager does a task itself
      primes[std::size_t(next)] = primes_of(next);
      ++next, ++done[0];
      continue;
    }
    // The message is still there. Its sender, tag and length are known now, so that it can be received.
    const int worker = status.MPI_SOURCE;
    int count = 0;
    MPI_Get_count(&status, MPI_INT, &count);
    std::vector<int> received(static_cast<std::size_t>(count));
    MPI_Recv(received.data(), count, MPI_INT, worker, status.MPI_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    int& task = task_of[std::size_t(worker)];
    if (status.MPI_TAG == result) primes[std::size_t(task)] = received, ++done[std::size_t(worker)];
    task = next;
    MPI_Send(&task, 1, MPI_INT, worker, next < tasks ? work : stop, MPI_COMM_WORLD);
    next < tasks ? ++next : --working;
  }
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1, wrong = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;

  if (rank > 0) {
    be_worker();
  } else {
    std::vector<std::vector<int>> primes(tasks);
    std::vector<int> done(static_cast<std::size_t>(size));
    be_manager(primes, done);
    for (int i = 0; i < size; ++i) std::printf("rank %d did %d tasks\n", i, done[std::size_t(i)]);

    std::vector<bool> composite(tasks * tasks);  // the sieve of Eratosthenes finds the same primes in another way
    std::size_t all = 0;
    for (int task = 0; task < tasks; ++task) {
      std::vector<int> expected;
      for (int i = std::max(2, task * task); i < (task + 1) * (task + 1); ++i) {
        if (composite[std::size_t(i)]) continue;
        expected.push_back(i);
        for (long m = long(i) * i; m < long(composite.size()); m += i) composite[std::size_t(m)] = true;
      }
      wrong += primes[std::size_t(task)] != expected;
      all += primes[std::size_t(task)].size();
    }
    const bool right = wrong == 0 && all == 78498;  // the known number of primes below 10^6
    std::printf("%s: %d of %d tasks wrong, %zu primes\n", right ? "RIGHT" : "WRONG", wrong, tasks, all);
    wrong = !right;
  }
  MPI_Bcast(&wrong, 1, MPI_INT, 0, MPI_COMM_WORLD);
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("manager_workers: standard output"), 1;
  return wrong == 0 ? 0 : 1;
}
