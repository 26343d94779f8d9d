// outbox.hpp: messages on their way to the other side of a call.
#pragma once

#include "lease.hpp"

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace cluster {

// Writes messages in order, on a thread of its own, so that a slow reader blocks nobody.
template <class Message>
class Outbox {
 public:
  static constexpr std::size_t most_output = 4 << 20;  // bytes

  // `write` writes one message; after it has returned false, nothing more is written. `beat`, if there is one, makes a
  // message that is written every `heartbeat`, before those that wait.
  explicit Outbox(std::function<bool(const Message&)> write, std::function<Message()> beat = nullptr)
      : write_(std::move(write)), beat_(std::move(beat)), thread_([this] { write_all(); }) {}

  // Waits until all messages are written, or the call is over. To end it at once, cancel the call first.
  ~Outbox() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    filled_.notify_one();
    thread_.join();
  }
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  void put(Message message) { put(std::move(message), 0); }

  // Returns false, and takes nothing, while more than most_output bytes of such messages wait.
  bool put_output(Message& message) {
    const std::size_t bytes = message.ByteSizeLong();
    {
      const std::lock_guard lock(mutex_);
      if (output_ + bytes > most_output) return false;
    }
    put(std::move(message), bytes);
    return true;
  }

 private:
  using Clock = std::chrono::steady_clock;

  void put(Message message, std::size_t output) {
    {
      const std::lock_guard lock(mutex_);
      if (over_) return;
      output_ += output;
      waiting_.emplace_back(std::move(message), output);
    }
    filled_.notify_one();
  }

  void write_all() {
    auto next_beat = beat_ ? Clock::now() + heartbeat : Clock::time_point::max();
    std::unique_lock lock(mutex_);
    while (!over_) {
      if (Clock::now() >= next_beat) {
        next_beat = Clock::now() + heartbeat;
        waiting_.emplace_front(beat_(), 0);
      }
      if (waiting_.empty()) {
        if (ended_) return;
        const auto ready = [this] { return ended_ || !waiting_.empty(); };
        beat_ ? void(filled_.wait_until(lock, next_beat, ready)) : filled_.wait(lock, ready);
        continue;
      }
      const auto [message, output] = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      const bool written = write_(message);
      lock.lock();
      output_ -= output;
      over_ = !written;
    }
    waiting_.clear();
  }

  const std::function<bool(const Message&)> write_;
  const std::function<Message()> beat_;
  std::mutex mutex_;  // of all below
  std::condition_variable filled_;
  std::deque<std::pair<Message, std::size_t>> waiting_;
  std::size_t output_ = 0;  // bytes that wait of put_output()
  bool ended_ = false, over_ = false;
  std::thread thread_;
};

}  // namespace cluster
