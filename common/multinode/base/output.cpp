// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/check.hpp>
#include <multinode/base/output.hpp>
#include <multinode/base/text.hpp>

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>

namespace multinode {

std::streamsize CleanOutput::xsputn(const char* text, std::streamsize size) {
  const std::string clean = without_controls({text, static_cast<std::size_t>(size)});
  const auto length = static_cast<std::streamsize>(clean.size());
  return before_->sputn(clean.data(), length) == length ? size : 0;
}

CleanOutput::int_type CleanOutput::overflow(int_type c) {
  const char one = traits_type::to_char_type(c);
  return xsputn(&one, 1) == 1 ? c : traits_type::eof();
}

void say(const std::string& program, std::string_view text) {
  std::cerr << program + ": " + one_line(text) + "\n" << std::flush;
}

int flush_output(const std::string& program, int status) {
  const bool written = std::cout.flush() && std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (written || status != exit_right) return status;
  // The stream does not keep the reason, so one more character asks for it.
  const int reason = ::write(STDOUT_FILENO, "\n", 1) < 0 ? errno : EIO;
  if (reason == EPIPE) return status;
  say(program, std::string("cannot write to standard output: ") + std::strerror(reason));
  return exit_wrong;
}

}  // namespace multinode
