// child.hpp: one process that mnrun started.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <optional>
#include <string>
#include <vector>

namespace mnrun {

// How a process ended.
struct Ending {
  int status = 0;  // exit status
  int signal = 0;  // not 0: this killed it
  int as_exit_status() const { return signal ? 128 + signal : status; }
  bool failed() const { return signal || status; }
  std::string text() const;  // "was killed by signal 9 (SIGKILL)", "ended with exit status 3"
};

std::string signal_name(int signal);  // "SIGKILL"

// The file that a program's name stands for, looked up on the PATH as a shell does. Throws ProgramError.
class ProgramError : public std::exception {
 public:
  ProgramError(int status, std::string text) : status(status), text(std::move(text)) {}
  const char* what() const noexcept override { return text.c_str(); }
  const int status;  // 127: not found, 126: cannot be executed
  const std::string text;
};
std::string find_program(const std::string& name, const std::string& path_variable);

struct Command {
  std::string file;
  std::vector<std::string> arguments;    // arguments[0] is the program's name
  std::vector<std::string> environment;  // NAME=value
  int streams[3] = {0, 1, 2};
  bool own_group = true;  // a process group of its own
  sigset_t mask;          // of the process
};

class Child {
 public:
  // Throws ProgramError where the file cannot be executed, std::system_error where no process can be made.
  explicit Child(const Command& command);
  ~Child();  // kills what is left of the process, and of its group
  Child(Child&& other) noexcept;
  Child(const Child&) = delete;

  pid_t pid() const { return pid_; }
  const std::optional<Ending>& ending() const { return ending_; }
  bool look();  // true: it has ended since the last look
  // Its end has begun: others can see its connections closed, and it cannot be waited for yet.
  bool ending_now() const;

  // To the whole group, grandchildren included. The process's id is not given to another before ~Child.
  void signal(int number) const;

 private:
  pid_t pid_ = -1;
  bool own_group_;
  std::optional<Ending> ending_;
};

}  // namespace mnrun
