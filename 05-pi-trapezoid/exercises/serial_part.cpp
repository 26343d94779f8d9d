// How much faster can it become? Four programs were timed with 1 and with p processes, and Amdahl's law says the rest.
//
//   g++ -std=c++20 -O2 serial_part.cpp -o serial_part
//   ./serial_part
//
// Exit status: 0 if all answers are right, 1 if not.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdio>

// TODO (exercise): the fraction of the run on one process that cannot be shared, if the run takes `one` seconds on one
// process and `seconds` on `processes`.
double serial_part(double one, double seconds, int processes) { return one - seconds * processes; }

// TODO (exercise): the largest number of processes with an efficiency of at least `efficiency`, if `serial` cannot be
// shared; at most 1,000,000.
int processes_for(double efficiency, double serial) { return int(efficiency + serial); }

int main() {
  const struct {
    double one, seconds;
    int processes;
    double serial;
    int half;  // the most processes of which half the time is useful
  } runs[] = {{100, 100, 8, 1, 2}, {100, 62.5, 4, 0.5, 3}, {100, 11.5625, 16, 0.0567, 18}, {64, 1, 64, 0, 1'000'000}};
  bool right = true;
  for (const auto& [one, seconds, processes, known, half] : runs) {
    const double serial = serial_part(one, seconds, processes);
    const int most = processes_for(0.5, serial);
    std::printf("%g s on 1, %g s on %d: %.4f is serial, half of %d processes works\n", one, seconds, processes, serial,
                most);
    right = right && std::abs(serial - known) < 1e-3 && most == half;
  }
  std::printf("%s\n", right ? "RIGHT" : "WRONG");
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("serial_part: standard output"), 1;
  return right ? 0 : 1;
}
