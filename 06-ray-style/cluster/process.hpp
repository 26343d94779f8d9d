// process.hpp: a process of a job, and what it writes.
#pragma once

#include <multinode/child_process.hpp>
#include <multinode/descriptor.hpp>

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cluster {

// Kills the process groups that a killed daemon leaves: a process of its own that waits for the daemon's end. (The
// kernel kills a daemon's children with it, PR_SET_PDEATHSIG, but not theirs.)
class Guard {
 public:
  // Forks: to be made before there are threads. The guard keeps `kept`, the daemon's lock, open.
  explicit Guard(int kept);
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  void watch(pid_t group);
  void forget(pid_t group);

 private:
  multinode::Descriptor pipe_;
  pid_t pid_ = 0;
};

using multinode::StartError;

// The file that a job's program is: `name` in the job folder, never elsewhere. Throws StartError.
std::filesystem::path find_program(const std::filesystem::path& jobs, const std::string& name);

struct Command {
  std::filesystem::path program;
  std::vector<std::string> arguments;    // without the program's name
  std::vector<std::string> environment;  // NAME=value
  std::string secret;                    // what can be read from CLUSTER_SECRET_FD, and a newline
};

// A running process, the leader of a group. Used by the thread that made it alone; when that thread ends, the kernel
// kills the process.
class Child {
 public:
  enum Stream { out, err, report, streams };
  static constexpr std::size_t longest_line = 64 << 10;  // bytes; longer ones come in pieces
  static constexpr std::size_t most_output = 64 << 20;   // bytes of stdout and stderr

  // Its working folder is this process's, stdin /dev/null, the signal mask empty; CLUSTER_REPORT_FD and
  // CLUSTER_SECRET_FD are added to the environment. Throws StartError.
  explicit Child(const Command& command, Guard* guard = nullptr);
  ~Child();  // kills what is left of the group
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return process_->pid(); }
  int descriptor() const { return pid_fd_.get(); }                      // readable when the process has ended
  int descriptor(Stream stream) const { return pipes_[stream].get(); }  // -1: closed

  // Whole lines, each with its newline, that came meanwhile, at most 64 KiB and a line; "" if none. After the process
  // has ended, what it left in the pipe, its last line too; the stream is closed behind it.
  std::string read(Stream stream);
  bool drained() const;  // it has ended, and all streams are closed

  // 128 + N for signal N; nothing while it runs. Once it has ended, the rest of its group is killed.
  std::optional<int> status();

  void signal(int number) const { process_->signal(number); }  // to the group

 private:
  Guard* guard_;
  std::optional<multinode::ChildProcess> process_;
  multinode::Descriptor pid_fd_;
  std::array<multinode::Descriptor, streams> pipes_;
  std::array<std::string, streams> begun_;  // lines without their ends
  std::size_t output_ = 0;                  // bytes of stdout and stderr so far
};

}  // namespace cluster
