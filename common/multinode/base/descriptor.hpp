// descriptor.hpp: owns a file descriptor and closes it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <multinode/base/check.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace multinode {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = other.release();
    }
    return *this;
  }
  ~Descriptor() { reset(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  void reset() noexcept {
    if (fd_ >= 0) ::close(release());
  }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

struct Pipe {
  Descriptor from, to;  // the read end and the write end
};

// Both ends are close-on-exec. Throws std::system_error.
inline Pipe make_pipe() {
  int ends[2];
  check_errno(::pipe2(ends, O_CLOEXEC), "pipe2");
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

}  // namespace multinode
