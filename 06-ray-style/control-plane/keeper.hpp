// keeper.hpp: a process of a job, and the small process above it that leaves nothing of it behind.
#pragma once

#include <multinode/base/descriptor.hpp>
#include <multinode/process/child_process.hpp>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace cluster {

// `cluster keep FOLDER PROGRAM [ARGUMENT...]`: the keeper. Descriptor 0 is a socket to the node, from which it reads
// times, 8 bytes each: nanoseconds of the steady clock until which the program may run. At that time, or when the node
// closes the socket or dies, the keeper kills the program and all that it started, in whatever session.
int keep(int argc, const char* const* argv);

// A process under a keeper. For one thread.
class Child {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t longest_line = 64 << 10;  // bytes; longer ones come in pieces

  // `environment`: NAME=value. Throws StartError.
  Child(const std::vector<std::string>& command, const std::string& folder, std::vector<std::string> environment,
        Clock::time_point until);
  ~Child();  // kills it and what it started

  pid_t pid() const { return pid_; }
  int output() const { return output_.get(); }  // a descriptor: readable when it has written something; -1: closed
  // New whole lines of its stdout and stderr, at most 64 KiB and a line; "" if none.
  std::string read();
  // 128 + N for signal N; nothing while it, or anything that it started, runs.
  std::optional<int> status();
  void allow_until(Clock::time_point time) const;
  void terminate() const { keeper_->signal(SIGTERM); }  // SIGTERM to the process's group
  void kill() { keeper_end_.reset(); }                  // it and all that it started

 private:
  std::optional<multinode::ChildProcess> keeper_;
  pid_t pid_ = 0;
  multinode::Descriptor keeper_end_, output_;
  std::string begun_;  // a line without its end
};

}  // namespace cluster
