// child_process.hpp: starts a child process, waits for it, and kills it with its object.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <csignal>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace multinode {

// How a process ended.
struct Ending {
  int status = 0;  // exit status
  int signal = 0;  // the signal that killed it; 0: none
  int as_exit_status() const { return signal ? 128 + signal : status; }
  bool failed() const { return signal || status; }
};

// A program cannot be executed.
class StartError : public std::runtime_error {
 public:
  StartError(int status, const std::string& what, int error = 0)
      : std::runtime_error(what), status(status), error(error) {}
  const int status;  // as in a shell: 127 not found, 126 cannot be executed
  const int error;   // errno; 0: another reason
};

// The file that a program's name stands for, looked up in the folders of `path_variable`, as a shell does with PATH.
// Throws StartError.
std::string find_program(const std::string& name, const std::string& path_variable);

struct ChildCommand {
  std::vector<std::string> arguments;                        // the first is the program's name
  std::string file = {};                                     // its path; empty: arguments[0], looked up on the PATH
  std::optional<std::vector<std::string>> environment = {};  // NAME=value; default: this process's own
  // The child's descriptors 0, 1, 2 ...: descriptors[i] must be i, or larger than every index. O_CLOEXEC does not
  // matter.
  std::vector<int> descriptors = {0, 1, 2};
  bool own_group = false;                 // make it the leader of a new process group
  int when_parent_dies = 0;               // signal that it gets when the thread that started it ends; 0: none
  sigset_t mask = {};                     // its blocked signals
  std::optional<rlimit> open_files = {};  // its limits of open files; default: this process's own
  bool default_signals = false;           // false: it ignores the signals that this process ignores, except SIGPIPE
  bool only_these = false;                // close all other descriptors in it
};

class ChildProcess {
 public:
  // Throws StartError if the program cannot be executed, std::system_error if no process can be created. If this
  // process ignores SIGCHLD it no longer does, because the kernel would keep no ending.
  explicit ChildProcess(const ChildCommand& command);
  ~ChildProcess();  // kills the process, or its whole group if it has one, and waits for it
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  const std::optional<Ending>& ending() const { return ending_; }
  bool poll();           // does not block; true: it has ended since the last call
  const Ending& wait();  // blocks until it has ended

  // Signals the process, or its whole group if it has one. Its pid is not reused before ~ChildProcess.
  void signal(int number) const;
  // From now on signal() and ~ChildProcess are for the process alone: what it started may outlive it.
  void leave_group_alone() { own_group_ = false; }

 private:
  bool poll(int flags);

  pid_t pid_ = -1;
  bool own_group_;
  std::optional<Ending> ending_;
};

}  // namespace multinode
