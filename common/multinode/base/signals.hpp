// signals.hpp: signals that a program reads from a descriptor instead of being interrupted by them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <multinode/base/descriptor.hpp>

#include <sys/signalfd.h>

#include <csignal>
#include <functional>
#include <optional>
#include <span>
#include <thread>

namespace multinode {

// Blocks signals in this thread, and in threads that it starts, until the object is destroyed. The destructor discards
// signals that were not read. Throws std::system_error.
class Signals {
 public:
  explicit Signals(std::span<const int> numbers);
  Signals(std::initializer_list<int> numbers) : Signals(std::span(numbers.begin(), numbers.size())) {}
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  void block();
  void unblock();                                     // until block()
  const sigset_t& before() const { return before_; }  // this thread's mask without the object, for child processes
  int descriptor() const { return fd_.get(); }        // readable when a signal is pending

  std::optional<signalfd_siginfo> next() const;  // nullopt: none is pending

  // Starts a thread that calls `function` with the number of each signal, until the result is destroyed. The object
  // must outlive the result.
  std::jthread call(std::function<void(int)> function) const;

 private:
  sigset_t handled_{}, before_{};
  Descriptor fd_;
};

// Starts a thread with all signals blocked, so that the program's other threads get them.
std::thread quiet_thread(std::function<void()> function);

}  // namespace multinode
