// From nothing: a token, one int, goes once around all ranks. Rank 0 begins with the value 1 and sends it to rank 1.
// Each rank adds 1 and sends it on, the last one to rank 0, which prints, with 4 processes:
//
//   RIGHT: the token came back with the value 4
//
// It prints WRONG and the value if that is not the number of processes. With one process there is no other rank.
//
//   mpicxx -std=c++20 -O2 token.cpp -o token
//   mpirun -n 4 ./token
//
// Exit status: 0 if the value is right, 1 if not, or if the output cannot be written.
// After: six_calls.cpp.
// SPDX-License-Identifier: Apache-2.0
