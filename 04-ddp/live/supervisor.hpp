// supervisor.hpp: starts the ranks of a training on this host, replaces those that die, and kills those that hang.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace live {

struct Supervision {
  std::string program;                 // its name in messages
  std::vector<std::string> arguments;  // of a rank; it is this executable
  int ranks = 1;
  int restarts = 10;  // at most, of all ranks together
  std::chrono::milliseconds timeout{60'000};
};

// A rank is the executable with `arguments`, and reads one line from its standard input: rank, number of ranks, port of
// the store on 127.0.0.1, its token. A rank that a signal ends is replaced. One that exits with another status than 0
// ends the training, because its replacement would do the same. Returns what the ranks gave Member::finish() as the
// result. Throws std::runtime_error, which says what ended the training.
std::string supervise(const Supervision& how);

}  // namespace live
