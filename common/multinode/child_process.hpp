// child_process.hpp: a process that this one starts, and ends.
#pragma once

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
  int signal = 0;  // not 0: this killed it
  int as_exit_status() const { return signal ? 128 + signal : status; }
  bool failed() const { return signal || status; }
};

// A program cannot be executed.
class StartError : public std::runtime_error {
 public:
  StartError(int status, const std::string& what, int error = 0)
      : std::runtime_error(what), status(status), error(error) {}
  const int status;  // as a shell has it: 127 not found, 126 cannot be executed
  const int error;   // errno, if that is the reason
};

struct ChildCommand {
  std::vector<std::string> arguments;                        // the first is the program's name
  std::string file = {};                                     // of the program; empty: the name, looked up on the PATH
  std::optional<std::vector<std::string>> environment = {};  // NAME=value; default: this process's own
  // The child's 0, 1, 2 ...: each is that number here too, or above all of them.
  std::vector<int> descriptors = {0, 1, 2};
  bool own_group = false;        // it leads a new process group
  int when_parent_dies = 0;      // the signal that it gets when the thread that started it ends
  sigset_t mask = {};            // its blocked signals
  bool default_signals = false;  // or it ignores the signals that this process ignores, but SIGPIPE
  bool only_these = false;       // nor does it get other descriptors that are open here
};

class ChildProcess {
 public:
  // Throws StartError where the program cannot be executed, std::system_error where no process can be made.
  explicit ChildProcess(const ChildCommand& command);
  ~ChildProcess();  // kills what is left of the process, and of its group
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  const std::optional<Ending>& ending() const { return ending_; }
  bool look();           // true: it has ended since the last look
  const Ending& wait();  // until it has ended

  // To the whole group, if it has one. The process's number is not given to another before ~ChildProcess.
  void signal(int number) const;

 private:
  bool look(int flags);

  pid_t pid_ = -1;
  bool own_group_;
  std::optional<Ending> ending_;
};

}  // namespace multinode
