// program_test.hpp: runs whole programs, as a user would, for tests: #include <testing/program_test.hpp>, link
// multinode::testing.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <regex>
#include <string>
#include <thread>
#include <vector>

namespace multinode::testing {

// The longest that a test waits for what must come. No machine is so slow, and ctest's TIMEOUT is longer, so that a
// test whose event does not come can still print what it has.
inline constexpr std::chrono::seconds patience{100};

struct Result {
  int status = -1;  // exit status; 128 + N for signal N, as a shell says it
  std::string out;  // standard output
  std::string err;  // standard error
  std::chrono::duration<double> seconds{};
  std::string all() const { return out + err; }
};

// A running command in a process group of its own. What is left of the group is killed by the destructor.
class Process {
 public:
  // argv[0] is looked up on the PATH. `environment` is added to this process's own; an empty value removes a
  // variable. Standard input is /dev/null.
  explicit Process(std::vector<std::string> argv, const std::map<std::string, std::string>& environment = {},
                   const std::string& folder = {});
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;  // to the command itself

  // Waits for output (on either stream) that `pattern`, which does not reach over several lines, is found in, and
  // returns the match; nothing, if the command ended or `timeout` passed without.
  std::optional<std::smatch> wait_for(const std::string& pattern, std::chrono::milliseconds timeout = patience);

  // Ends with status 128 + SIGKILL where the command had not ended by itself after `timeout`.
  Result wait(std::chrono::milliseconds timeout = patience);

  // The process in this command's tree that has VARIABLE=value in its environment: ("RANK", "2"). 0: none.
  pid_t find(const std::string& variable, const std::string& value) const;

 private:
  void read_all(const std::stop_token& stop, int fd, std::string& into);

  pid_t pid_ = 0;
  int out_fd_ = -1, err_fd_ = -1, pid_fd_ = -1;
  std::chrono::steady_clock::time_point start_;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::string out_, err_, searched_;
  int open_ = 2;
  std::jthread out_reader_, err_reader_;
};

// Runs to the end, at most `timeout`.
Result run(std::vector<std::string> argv, const std::map<std::string, std::string>& environment = {},
           std::chrono::milliseconds timeout = patience);

// A program's output holds `what`.
#define EXPECT_SAYS(text, what) \
  EXPECT_NE((text).find(what), std::string::npos) << "looked for '" << (what) << "' in:\n" << (text)

// How often `what` stands in `text`.
std::size_t occurrences(const std::string& text, const std::string& what);

// Whether the MPI that this was built with is Open MPI; else it is MPICH.
bool is_open_mpi();

// In which variable its mpirun tells a process its rank.
const char* mpi_rank_variable();

// Its mpirun, and `ranks` processes, as root and with more ranks than cores where
// need be.
std::vector<std::string> under_mpirun(int ranks, std::vector<std::string> command);

}  // namespace multinode::testing
