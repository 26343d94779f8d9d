// faults.hpp: kills or stops one rank of a running program and looks at how the others end.
#pragma once

#include <testing/program_test.hpp>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace multinode::testing {

// How a program's ranks are started.
enum class Starter {
  bare,  // one process a rank, nobody watches over them: what ends them is their own watchdog
  mpirun,
  mnrun,  // --standalone; its path is in the environment variable MNRUN, or on the PATH
};
std::string name_of(Starter starter);

// The ranks of one program, running.
class Ranks {
 public:
  Ranks(Starter starter, int count, const std::vector<std::string>& command);

  // Waits until rank 0 printed what `pattern` is found in; returns the match's first group.
  std::optional<std::string> wait_for(const std::string& pattern, std::chrono::milliseconds timeout = patience);
  void signal(int rank, int number);

  // Of the whole job: the largest status of a surviving process, all output, seconds since the last signal().
  // `survivors_ended`: all but the signalled rank ended by themselves before `timeout`, none of them with status 0.
  struct End {
    bool survivors_ended = false;
    int status = 0;
    double seconds = 0;
    std::string output;
  };
  End wait(std::chrono::milliseconds timeout = patience);

 private:
  Starter starter_;
  int signalled_ = -1;
  std::chrono::steady_clock::time_point since_;
  std::vector<std::unique_ptr<Process>> processes_;
};

// Random rank, random step: starts the ranks, waits until `step` (a pattern whose first group is the step's number)
// shows a random number from first_step to last_step, kills the rank, and returns a line for each thing that is not as
// it must be: others end within 30 s, half of the default deadline, non-zero, and the output names the dead rank (under
// MPICH's mpirun, which ends all at once, nobody comes to say it). Empty: all right. `record`, if given, gets a line
// "rank R killed after step S: ended after T s, status X".
std::string kill_one(Starter starter, int count, const std::vector<std::string>& command, const std::string& step,
                     int first_step, int last_step, std::mt19937& random, std::string* record = nullptr);

// A TCP port on loopback that was free a moment ago.
std::uint16_t free_port();

}  // namespace multinode::testing
