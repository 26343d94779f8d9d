// The natural logarithm of 2, 0.6931471805599453, as the integral of 1/x from 1 to 2, shared by all processes. Write
// the whole program. Rank 0 prints one line, and nothing else is printed:
//
//   3 processes: ln 2 = 0.693147180560, 4000003 intervals
//
// with the number of processes that run. The error is below 1e-12 for each number of processes, and every interval
// belongs to exactly one of them.
//
//   mpicxx -std=c++20 -O2 ln_2.cpp -o ln_2
//   mpirun -n 3 ./ln_2
//
// Exit status: 0.
// SPDX-License-Identifier: Apache-2.0
