// signals.hpp: signals that a program reads, instead of being interrupted by them.
#pragma once

#include <multinode/descriptor.hpp>

#include <sys/signalfd.h>

#include <csignal>
#include <functional>
#include <optional>
#include <span>
#include <thread>

namespace multinode {

// Blocks signals in this thread, and in those that it starts, for as long as the object lives. What has come by then
// and was not read is dropped.
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
  int descriptor() const { return fd_.get(); }        // readable when a signal has come

  std::optional<signalfd_siginfo> next() const;  // nothing: none has come

  // Starts a thread that calls `function` with the number of each signal that comes, until the result is destroyed.
  std::jthread call(std::function<void(int)> function) const;

 private:
  sigset_t handled_{}, before_{};
  Descriptor fd_;
};

// A thread that no signal is delivered to: they are for the program's other threads.
std::thread quiet_thread(std::function<void()> function);

}  // namespace multinode
