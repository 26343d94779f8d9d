// check.hpp: errors, and the exit status that each of them becomes.
//
// The folder base has what everything else uses and what knows nothing of ranks. Errors are exceptions, and a program
// has one place that turns them into a line and a status (run() in world/program.hpp). Results at every call, as
// absl::Status, were rejected: nearly no caller can do anything but pass the error on.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <version>
#ifdef __cpp_lib_source_location
#include <source_location>
#endif
#include <stdexcept>
#include <string>
#include <string_view>

namespace multinode {

#ifdef __cpp_lib_source_location
using source_location = std::source_location;
#else
// clang before 16 lacks std::source_location; clang-tidy uses such a clang.
class source_location {
 public:
  static constexpr source_location current(const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) {
    source_location here;
    here.file_ = file;
    here.line_ = line;
    return here;
  }
  constexpr const char* file_name() const { return file_; }
  constexpr unsigned line() const { return line_; }

 private:
  const char* file_ = "";
  unsigned line_ = 0;
};
#endif

// Exit statuses of programs, the same on every rank.
enum ExitStatus : int {
  exit_right = 0,
  exit_wrong = 1,             // wrong, failed or timed out
  exit_usage = 2,             // bad command line or environment
  exit_untestable = 3,        // could not test
  exit_hardware_absent = 77,  // required hardware is missing
};

// A wrong option, variable or file name: exit status 2. what() is one line that names it and says what to do.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// This machine lacks hardware that the program needs, such as a GPU or an RDMA device: exit status 77.
class HardwareAbsent : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// "file.cpp:12: ", without the folders.
std::string place(const source_location& at);

// " (this process may have 64 open files: see "ulimit -n")" if that is the reason of this errno; else "".
std::string limit_of_files(int error);

namespace detail {
[[noreturn]] void throw_errno(std::string_view what, const source_location& at);
}

// If `result` is negative, throws std::system_error with errno, `what` and the caller's source location. Otherwise
// returns `result`.
template <class Integer>
Integer check_errno(Integer result, std::string_view what, source_location at = source_location::current()) {
  if (result < 0) detail::throw_errno(what, at);
  return result;
}

}  // namespace multinode
