// process.hpp: commands that leave nothing behind.
#pragma once

#include "node_check/findings.hpp"

#include <multinode/base/deadline.hpp>
#include <multinode/base/descriptor.hpp>

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace image_check {

using Command = std::vector<std::string>;  // program and arguments
using Variables = std::map<std::string, std::string>;

// As one types it into a shell.
std::string shell_words(const Variables& variables, const Command& command);

struct Outcome {
  int exit_status = 0;     // 128 + signal if it was killed
  bool timed_out = false;  // the deadline ended it
  int left_over = 0;       // processes that outlived the command, and were killed
  int stuck = 0;           // processes that SIGKILL did not end: they wait in the kernel (state D)
  double other_work = -1;  // on this machine meanwhile: node_check::other_work_since()
  std::chrono::duration<double> seconds{0};
  double waited_for_cpus = 0;  // seconds, of all its threads on this machine, when they were last looked at
};

// Whether a command that a deadline ended had too little of the CPU to be judged: less than half of `limit`, the
// seconds that it has on a quiet node. A command that waits for anything else than a CPU hangs, also on a busy node.
bool had_no_cpu(const Outcome& outcome, double limit);

// After the deadline: how long the command may take to end after SIGTERM, and then all processes after SIGKILL.
struct KillDelays {
  std::chrono::milliseconds terminated{5000}, killed{5000};
};

// Holds what processes write, on no disk: a full or read-only one is a fault to be found.
class MemoryFile {
 public:
  MemoryFile();
  std::string path() const;  // by which other processes of this user open it, too
  std::string text() const;

 private:
  multinode::Descriptor file_;
};

// A command, with everything that it starts in turn. A keeper process adopts what it leaves, and kills it: when the
// command has ended, at the deadline (SIGTERM to the command, which ends what it started on other hosts; later SIGKILL
// to all), when the Processes is destroyed, and when this process dies. What moved to another host is its launcher's
// to end.
class Processes {
 public:
  // Output of all, both streams, goes to the end of `log`. Throws std::system_error.
  Processes(const Command& command, const Variables& variables, const std::filesystem::path& log,
            std::chrono::milliseconds deadline, KillDelays kill_delays = {});
  ~Processes();

  // Waits at most so long; nothing: it still runs. An outcome comes soon after `deadline` and `kill_delays` at the
  // latest.
  std::optional<Outcome> wait(std::chrono::milliseconds at_most);
  Outcome end();  // waits for it
  void stop();    // as at the deadline; wait() tells when it is done

 private:
  pid_t keeper_ = -1;
  multinode::Descriptor result_;  // the pipe's end from which the outcome is read
  std::chrono::steady_clock::time_point started_;
  multinode::Deadline latest_;
  node_check::Ticks at_start_ = node_check::ticks();
  std::optional<Outcome> outcome_;
};

}  // namespace image_check
