// output.hpp: what a program prints: nothing of it drives the terminal, and at its end, was all of it written?
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <streambuf>
#include <string>
#include <string_view>

namespace multinode {

// While it lives, what is written to a stream passes without_controls(): names, values and messages of other processes
// and files. main() has one for each of std::cout and std::cerr; what the programs print that it starts does not pass
// here.
class CleanOutput : std::streambuf {
 public:
  explicit CleanOutput(std::ostream& stream) : stream_(stream), before_(stream.rdbuf(this)) {}
  ~CleanOutput() override { stream_.rdbuf(before_); }
  CleanOutput(const CleanOutput&) = delete;

 private:
  std::streamsize xsputn(const char* text, std::streamsize size) override;
  int_type overflow(int_type c) override;
  int sync() override { return before_->pubsync(); }

  std::ostream& stream_;
  std::streambuf* const before_;
};

// Prints "PROGRAM: TEXT" as one line on standard error.
void say(const std::string& program, std::string_view text);

// Flushes standard output and returns the exit status `status`. If that is exit_right and some output is lost, such as
// on a full disk, prints a line on stderr and returns exit_wrong. A reader that has closed its pipe is no error.
int flush_output(const std::string& program, int status);

}  // namespace multinode
