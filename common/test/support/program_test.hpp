// program_test.hpp: runs whole programs, as a user would, for tests. Link multinode::testing.
#pragma once

#include <multinode/base/descriptor.hpp>
#include <multinode/process/child_process.hpp>
#include <test/support/says.hpp>

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace multinode::testing {

// The longest wait of a test for an event that must happen: longer than on any slow machine, and shorter than ctest's
// TIMEOUT, so that a failing test can still print its output.
inline constexpr std::chrono::seconds patience{100};

struct Result {
  int status = -1;  // exit status; 128 + N for signal N, as in a shell
  std::string out;  // standard output
  std::string err;  // standard error
  std::chrono::duration<double> seconds{};
  std::string all() const { return out + err; }
};

// A running command in its own process group. The destructor kills the remaining processes of the group.
class Process {
 public:
  // argv[0] is looked up on the PATH. `environment` is added to this process's own; an empty value removes a variable.
  // Standard input is /dev/null. Throws StartError if the command cannot be started.
  explicit Process(std::vector<std::string> argv, const std::map<std::string, std::string>& environment = {});

  pid_t pid() const { return child_->pid(); }
  void signal(int number) const;  // only to the command itself

  // Waits until a line of either stream matches `pattern` and returns the match; nullopt if the command ended or
  // `timeout` passed before.
  std::optional<Match> wait_for(const std::string& pattern, std::chrono::milliseconds timeout = patience);

  // Waits for the end of the command, and kills it after `timeout`: then the status is 128 + SIGKILL.
  Result wait(std::chrono::milliseconds timeout = patience);

  // The process in this command's tree with VARIABLE=value in its environment, such as ("RANK", "2"). 0: none.
  pid_t find(const std::string& variable, const std::string& value) const;

 private:
  void read_all(const std::stop_token& stop, int fd, std::string& into);

  std::chrono::steady_clock::time_point start_;
  Descriptor pid_fd_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::string out_, err_;
  int open_ = 2;
  // Stop with the object even if a grandchild that left the group keeps the pipes open forever.
  std::jthread out_reader_, err_reader_;
  std::optional<ChildProcess> child_;  // until its end was waited for
};

// Runs a command to its end, or kills it after `timeout`.
Result run(std::vector<std::string> argv, const std::map<std::string, std::string>& environment = {},
           std::chrono::milliseconds timeout = patience);

// Waits until `condition` holds; false: it did not within `patience`.
bool soon(const std::function<bool()>& condition);

char state_of(pid_t pid);    // of a process in /proc: 'S' sleeping, 'T' stopped, 'Z' zombie ...; '?': there is none
bool is_running(pid_t pid);  // false for a zombie
bool ends(pid_t pid);        // soon

// The number of occurrences of `what` in `text`.
std::size_t occurrences(const std::string& text, const std::string& what);

// A program of the virtual environment with PyTorch, such as "torchrun": MULTINODE_TORCH, by default
// ~/.cache/multinode/torch. It may not exist.
std::string in_torch(const std::string& program);

// True if this was built with Open MPI; false: MPICH.
bool is_open_mpi();

// The variable in which mpirun sets the rank of a process.
const char* mpi_rank_variable();

// The command line of mpirun for `ranks` processes. It also works as root and with more ranks than cores.
std::vector<std::string> under_mpirun(int ranks, std::vector<std::string> command);

}  // namespace multinode::testing
