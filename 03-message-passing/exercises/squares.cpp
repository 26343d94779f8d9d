// Write a program in which rank 0 hands out the numbers 1 to 100, one at a time, to whichever other rank is free. That
// rank sends the number's square back. Rank 0 checks each square, and after the last one it prints, with 4 processes,
//
//   RIGHT: the squares from 3 ranks have the sum 338350
//
// or WRONG in place of RIGHT, with the sum that it has. All ranks must end, also where there are more than 100.
//
//   mpicxx -std=c++20 -O2 squares.cpp -o squares
//   mpirun -n 4 ./squares
//
// Exit status: 0 if each square and the sum are right; 1 if not, with fewer than 2 processes, or with a full disk.
// SPDX-License-Identifier: Apache-2.0
