// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/check.hpp>

#include <sys/resource.h>

#include <cerrno>
#include <system_error>

namespace multinode {

std::string place(const source_location& at) {
  const std::string_view file = at.file_name();
  return std::string(file.substr(file.rfind('/') + 1)) + ":" + std::to_string(at.line()) + ": ";
}

std::string limit_of_files(int error) {
  rlimit limit{};
  if (error != EMFILE || getrlimit(RLIMIT_NOFILE, &limit) != 0) return "";
  return " (this process may have " + std::to_string(limit.rlim_cur) + " open files: see \"ulimit -n\")";
}

void detail::throw_errno(std::string_view what, const source_location& at) {
  const int error = errno;
  throw std::system_error(error, std::generic_category(), place(at) + std::string(what) + limit_of_files(error));
}

}  // namespace multinode
