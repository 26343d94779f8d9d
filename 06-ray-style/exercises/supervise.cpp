// supervise N COMMAND [ARGUMENT...] runs a command, and runs it again when it fails, at most N times in all. Write the
// whole program. It prints one line when the command has ended:
//
//   start 1: exit status 3
//   start 2: signal 9
//   start 3: exit status 0
//
// It fails with a status other than 0, or by a signal. A command that cannot be started has the exit status 127.
//
//   g++ -std=c++20 -O2 supervise.cpp -o supervise
//   ./supervise 5 sh -c 'exit 3'
//
// Exit status: that of the last start; 128 + N if signal N killed it.
// After: resume.cpp.
// SPDX-License-Identifier: Apache-2.0
