// child.hpp: a process of a job, and what it writes.
#pragma once

#include <multinode/base/descriptor.hpp>
#include <multinode/process/child_process.hpp>

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace cluster {

using multinode::StartError;

// The file of a job's program: `name` in the job folder, never elsewhere. Throws StartError.
std::filesystem::path job_program(const std::filesystem::path& jobs, const std::string& name);

// A running process under a job_keeper. For one thread.
class Child {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t longest_line = 64 << 10;  // bytes; longer ones come in pieces

  // `command`: the program's path, and its arguments. `environment`: NAME=value. Its working folder is this process's,
  // stdin is /dev/null, the signal mask is empty. At `until` the keeper kills it. Throws StartError.
  Child(const std::vector<std::string>& command, const std::vector<std::string>& environment,
        const std::filesystem::path& keeper, Clock::time_point until);
  ~Child();  // kills it and what it started
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  int end() const { return pid_fd_.get(); }     // a descriptor: readable when it, and all that it started, has ended
  int output() const { return output_.get(); }  // a descriptor: readable when it has written something; -1: closed

  // New whole lines of its stdout and stderr, each with its newline, at most 64 KiB and a line; "" if none. After the
  // end, also the rest of what it wrote; then the stream is closed.
  std::string read();

  // 128 + N for signal N; nothing while it, or anything that it started, runs.
  std::optional<int> status();

  void allow_until(Clock::time_point time) const;
  void terminate() const { keeper_->signal(SIGTERM); }  // SIGTERM to the process's group
  void kill() { lease_.reset(); }                       // it and all that it started

 private:
  std::optional<multinode::ChildProcess> keeper_;
  pid_t pid_ = 0;
  multinode::Descriptor pid_fd_, lease_, output_;
  std::string begun_;  // a line without its end
};

}  // namespace cluster
