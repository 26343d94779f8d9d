// stacks.hpp: the stacks of processes that who_waits did not start, or that are in no recorded call, and the ranks that
// have them in common. It reads them with eu-stack (elfutils), or gdb, and Python's lines with py-spy.
#pragma once

#include "queues.hpp"

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

namespace who_waits {

struct Frame {
  std::string function, place;  // "solve", "solver.cpp:120"; "": not known
  bool python = false;
  auto operator<=>(const Frame&) const = default;
  static void fields(auto& visit, auto& one) { visit(one.function, one.place, one.python); }
};
// main first; the last is a call of MPI, NCCL or CUDA, or what the program does there.
using Stack = std::vector<Frame>;

struct ProcessStacks {
  int rank = 0, pid = 0, world_size = 0, local_size = 0;  // sizes: 0 if not known
  std::string host{}, problem{};                          // why there is no stack, or what else is wrong
  double stopped = 0;                                     // s for which the process was stopped
  std::vector<Stack> threads{};  // the main one first; others only if they are in the program's own code or such a call
  Queues queues{};               // for --attach, as these:
  char process = '?';            // R, S, D ... as in /proc
  bool moves = false;            // its stacks or queues have changed meanwhile
  static void fields(auto& visit, auto& one) {
    visit(one.rank, one.pid, one.world_size, one.local_size, one.host, one.problem, one.stopped, one.threads);
    visit(one.queues, one.process, one.moves);
  }
};

// Stops the process for at most a second: a tool that needs longer is killed, and the process runs on. Where another
// one traces the process, such as the user's debugger, says so, and starts no tool. If the process is in a
// container, the tool runs in that container, or reads its files from outside.
ProcessStacks stacks_of(pid_t pid);
// The threads that eu-stack or gdb printed, and py-spy.
std::vector<Stack> parsed_stacks(const std::string& text);
std::vector<Stack> parsed_python(const std::string& py_spy);

// "ranks 0-2 in MPI_Allreduce, solver.cpp:120" for each group of ranks, the largest last, and, if they differ, the tree
// of their stacks.
std::vector<std::string> tree(const std::vector<ProcessStacks>& ranks);

// "in MPI_Recv <- load <- main" of the main thread; "": not known.
std::string stack_line(const ProcessStacks& process);
// " in pthread_mutex_lock, solver.cpp:120" of a thread that is in no such call; "": not known.
std::string outside_line(const ProcessStacks& process);

// R, S, D, T ... as in /proc: R if any thread runs; '?': there is no such process.
char state_of_threads(pid_t pid);

std::string link_of(const std::filesystem::path& link);  // where it leads to; "": not known
std::string program_of(pid_t pid);                       // the name of its file; "": not known
// The standard output of a command, "" if it is not installed. It is killed, with its process group, after 20 s, or
// when it has stopped the process `stops` for 0.9 s; `stopped` becomes the longest such time.
std::string output_of(const std::vector<std::string>& command, pid_t stops = 0, double* stopped = nullptr);

}  // namespace who_waits
