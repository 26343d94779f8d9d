// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/check.hpp>
#include <multinode/base/output.hpp>

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>

namespace multinode {

int flush_output(const std::string& program, int status) {
  const bool written = std::cout.flush() && std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (written || status != exit_right) return status;
  // The stream does not keep the reason, so one more character asks for it.
  const int reason = ::write(STDOUT_FILENO, "\n", 1) < 0 ? errno : EIO;
  if (reason == EPIPE) return status;
  std::cerr << program + ": cannot write to standard output: " + std::strerror(reason) + "\n" << std::flush;
  return exit_wrong;
}

}  // namespace multinode
