// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/check.hpp>

#include <cerrno>
#include <system_error>

namespace multinode {

std::string place(const source_location& at) {
  const std::string_view file = at.file_name();
  return std::string(file.substr(file.rfind('/') + 1)) + ":" + std::to_string(at.line()) + ": ";
}

void detail::throw_errno(std::string_view what, const source_location& at) {
  throw std::system_error(errno, std::generic_category(), place(at) + std::string(what));
}

}  // namespace multinode
