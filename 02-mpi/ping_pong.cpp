// What does one message cost? The first and the last rank send messages of growing size to and fro. A line is then
// fitted to the times: latency + size / bandwidth.
//
//   mpicxx -std=c++20 -O2 ping_pong.cpp -o ping_pong
//   mpirun -n 2 ./ping_pong 65536
//
// The argument is the largest size in bytes, without it 4 MiB. gnuplot can plot the output.
// Exit status: 0 if every byte is right and no other line fits better, 1 if not.
// After: sum_to_root.cpp.
// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

struct Point {
  double bytes, seconds;  // of one message, one way
};

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, asked = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const char* name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"})
    if (const char* value = std::getenv(name)) asked = std::atoi(value);  // the innermost launcher comes last
  if (size == 1 && asked > 1) return std::printf("WRONG: %d processes, MPI says 1: use this MPI's mpirun\n", asked), 1;
  const std::size_t largest = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 4 << 20;
  if (size < 2 || largest < 1 << 16 || largest > 1 << 30) {
    if (rank == 0)
      std::fprintf(stderr, "ping_pong needs two processes, and a largest size of 64 KiB to 1 GiB in bytes\n");
    return MPI_Finalize(), 1;
  }
  const int last = size - 1;  // on another node than rank 0, if there are several

  std::vector<Point> points;
  long wrong = 0;
  for (std::size_t bytes = 8; bytes <= largest; bytes *= 2) {
    const int count = int(bytes), rounds = bytes > 1 << 16 ? 20 : 100;
    std::vector<char> message(bytes), answer(bytes);
    double fastest = HUGE_VAL;  // the first rounds open connections, and other programs disturb: both only add time
    for (int round = 0; round < rounds; ++round) {
      if (rank == 0) {
        for (std::size_t i = 0; i < bytes; ++i) message[i] = char((i + std::size_t(round)) % 100);
        const double start = MPI_Wtime();
        MPI_Send(message.data(), count, MPI_CHAR, last, 0, MPI_COMM_WORLD);
        MPI_Recv(answer.data(), count, MPI_CHAR, last, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        fastest = std::min(fastest, (MPI_Wtime() - start) / 2);
        for (std::size_t i = 0; i < bytes; ++i) wrong += answer[i] != message[i];
      } else if (rank == last) {
        MPI_Recv(message.data(), count, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(message.data(), count, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
      }
    }
    points.push_back({double(bytes), fastest});
  }

  // Least squares of the relative deviations, so that the small messages count as much as the large ones: the sum over
  // the points of (1 - (latency + slope * bytes) / seconds)^2 is smallest where its two derivatives are 0.
  double aa = 0, ab = 0, bb = 0, a = 0, b = 0;
  for (const auto& [bytes, seconds] : points) {
    const double x = 1 / seconds, y = bytes / seconds;
    aa += x * x, ab += x * y, bb += y * y, a += x, b += y;
  }
  const double latency = (a * bb - b * ab) / (aa * bb - ab * ab), slope = (b * aa - a * ab) / (aa * bb - ab * ab);
  double by_latency = 0, by_slope = 0;  // the derivatives
  for (const auto& [bytes, seconds] : points) {
    const double deviation = 1 - (latency + slope * bytes) / seconds;
    by_latency += deviation / seconds / a, by_slope += deviation * bytes / seconds / b;
  }
  const bool best = std::abs(by_latency) < 1e-6 && std::abs(by_slope) < 1e-6;

  int right = wrong == 0 && best ? 1 : 0;
  MPI_Bcast(&right, 1, MPI_INT, 0, MPI_COMM_WORLD);  // only rank 0 has checked
  if (rank == 0) {
    std::printf("# ranks 0 and %d: latency %.2f us, bandwidth %.3f GB/s\n", last, latency * 1e6, 1e-9 / slope);
    std::printf("#%9s %14s %14s\n", "bytes", "one way (us)", "fitted (us)");
    for (const auto& [bytes, seconds] : points)
      std::printf("%10.0f %14.2f %14.2f\n", bytes, seconds * 1e6, (latency + slope * bytes) * 1e6);
    std::printf("# %s: %ld bytes wrong\n", right ? "RIGHT" : "WRONG", wrong);
  }
  MPI_Finalize();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("ping_pong: standard output"), 1;
  return right ? 0 : 1;
}
