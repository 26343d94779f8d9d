// faults.hpp: kills or stops one rank of a running program and checks how the others end.
#pragma once

#include <multinode/net/address.hpp>
#include <test/support/program_test.hpp>

#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace multinode::testing {

// How a program's ranks are started.
enum class Starter {
  bare,  // one process per rank without a launcher: only their own watchdogs end them
  mpirun,
  mnrun,  // --standalone; its path is the environment variable MNRUN, or it is on the PATH
};
std::string name_of(Starter starter);

// The running ranks of one program. The destructor kills them.
class Ranks {
 public:
  Ranks(Starter starter, int count, const std::vector<std::string>& command,
        std::map<std::string, std::string> environment = {});

  // Waits until rank 0, or the launcher, has printed a line that matches `pattern`. Returns the first group of the
  // match, or the match if there is no group; nullopt after `timeout`.
  std::optional<std::string> wait_for(const std::string& pattern, std::chrono::milliseconds timeout = patience);
  // Sends a signal to one rank. Throws std::runtime_error if its process is not found.
  void signal(int rank, int number);

  // The result of the whole job: the largest status of a surviving process, all output, seconds since the last
  // signal(). `survivors_ended`: all but the signalled rank ended on their own before `timeout`, none of them with
  // status 0.
  struct End {
    bool survivors_ended = false;
    int status = 0;
    double seconds = 0;
    std::string output;
  };
  End wait(std::chrono::milliseconds timeout = patience);

 private:
  Starter starter_;
  std::optional<FreePort> port_;
  int signalled_ = -1;
  std::chrono::steady_clock::time_point since_;
  std::vector<std::unique_ptr<Process>> processes_;
};

// Starts the ranks, waits until the output matches `step` (a pattern whose first group, (\d+), is the step) with a
// random number from first_step to last_step, and kills a random rank. Returns "" or one line per failed check: the
// other ranks end within 30 s, half of the default deadline, with a status that is not 0, and the output names the dead
// rank (not checked with MPICH's mpirun, which kills all ranks before they can print it). `record`, if given, gets a
// line "rank R killed after step S (last printed: L): ended after T s with status X".
std::string kill_one(Starter starter, int count, const std::vector<std::string>& command, const std::string& step,
                     int first_step, int last_step, std::mt19937& random, std::string* record = nullptr);

using multinode::FreePort;

}  // namespace multinode::testing
