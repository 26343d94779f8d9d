// From nothing: all ranks together fit a line, by gradient descent.
//
//   mpicxx -std=c++20 -O2 fit.cpp -o fit
//   mpirun -n 4 ./fit
//
// There are 1000 points: point i has x = i / 1000 and y = 3 x - 1. Of n ranks, rank r has the points r, r + n, r + 2 n
// and so on. Begin with slope 0 and offset 0. The loss is the mean of (slope x + offset - y)^2 over all points. In each
// of 100 steps, subtract 0.5 times its derivative by the slope from the slope, and the same for the offset. Each step
// has one all-reduce. Then every rank does it alone, with all points, and compares. Rank 0 prints
//
//   RIGHT: slope 2.9969, offset -0.9984 on 4 ranks
//
// or WRONG, where a rank has a result that differs by more than 1e-9.
//
// Exit status: 0 RIGHT; 1 WRONG, or the line cannot be written.
// SPDX-License-Identifier: Apache-2.0
