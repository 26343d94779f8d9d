// Write it from nothing. Rank r has r + 1 lines. All ranks together write them into one file, whose name is the first
// argument: first those of rank 0, then those of rank 1, and so on. Each line has the rank, and the line's number in
// the whole file, which begins with 1. With 3 processes the file is
//
//   rank 0 line 1
//   rank 1 line 2
//   rank 1 line 3
//   rank 2 line 4
//   rank 2 line 5
//   rank 2 line 6
//
// No rank may send its lines to another one.
//
//   mpicxx -std=c++20 -O2 numbered_lines.cpp -o numbered_lines
//   mpirun -n 3 ./numbered_lines lines.txt && cat lines.txt
//
// After: uneven_shares.cpp.
// SPDX-License-Identifier: Apache-2.0
