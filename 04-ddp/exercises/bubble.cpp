// Write this program from nothing. Its ranks are the stages of a pipeline, and eight micro-batches go from rank 0 to
// the last rank. A stage works on one micro-batch at a time, for one slot, and cannot begin before the stage before it
// has finished that micro-batch. Rank 0 prints for 3 processes
//
//   3 stages: 10 slots, idle 20.0 %
//
// with the number of slots until the last stage has finished, as the ranks have found it by their messages, and the
// part of them in which a rank idles.
//
//   mpicxx -std=c++20 -O2 bubble.cpp -o bubble
//   mpirun -n 3 ./bubble
//
// Exit status: 0 if the slots are as many as micro-batches and stages, less one; 1 if not.
// SPDX-License-Identifier: Apache-2.0
