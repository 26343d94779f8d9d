// process.hpp: a process of a job, and what it writes.
#pragma once

#include <multinode/child_process.hpp>
#include <multinode/descriptor.hpp>

#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace cluster {

using multinode::StartError;

// The file of a job's program: `name` in the job folder, never elsewhere. Throws StartError.
std::filesystem::path find_program(const std::filesystem::path& jobs, const std::string& name);

struct Command {
  std::filesystem::path program;
  std::vector<std::string> arguments;    // without the program's name
  std::vector<std::string> environment;  // NAME=value
};

// A running process under a job_keeper (keeper.cpp). For one thread.
class Child {
 public:
  using Clock = std::chrono::steady_clock;
  enum Stream { out, err, streams };
  static constexpr std::size_t longest_line = 64 << 10;  // bytes; longer ones come in pieces

  // Its working folder is this process's, stdin is /dev/null, the signal mask is empty. At `until` the keeper kills it.
  // Throws StartError.
  Child(const Command& command, const std::filesystem::path& keeper, Clock::time_point until);
  ~Child();  // kills it and what it started
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  int descriptor() const { return pid_fd_.get(); }                      // readable when the process has ended
  int descriptor(Stream stream) const { return pipes_[stream].get(); }  // -1: closed

  // New whole lines, each with its newline, at most 64 KiB and a line; "" if none. After the process has ended, also
  // the rest of what it wrote; then the stream is closed.
  std::string read(Stream stream);
  bool drained() const;  // it has ended, and both streams are closed

  // 128 + N for signal N; nothing while it, or anything that it started, runs.
  std::optional<int> status();

  void allow_until(Clock::time_point time) const;
  void terminate() const { keeper_->signal(SIGTERM); }  // SIGTERM to the process's group
  void kill() { lease_.reset(); }                       // it and all that it started

 private:
  std::optional<multinode::ChildProcess> keeper_;
  pid_t pid_ = 0;
  multinode::Descriptor pid_fd_, lease_;
  std::array<multinode::Descriptor, streams> pipes_;
  std::array<std::string, streams> begun_;  // lines without their ends
};

}  // namespace cluster
