// outbox.hpp: what is on its way to the other side of a call.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace cluster {

constexpr std::chrono::milliseconds heartbeat{500};  // between two messages at most
constexpr std::chrono::milliseconds silence{3000};   // after which the other side is dead

// Writes messages in order, on a thread of its own, so that nobody waits for a slow reader; and an empty message, the
// heartbeat, where there was none for half a second.
template <class Message>
class Outbox {
 public:
  static constexpr std::size_t most_output = 4 << 20;  // bytes

  // `write` writes one message, and returns false when the call is over: then nothing more is written.
  explicit Outbox(std::function<bool(const Message&)> write)
      : write_(std::move(write)), thread_([this] { write_all(); }) {}

  // Waits until what was put is written, or the call is over. To end it at once, cancel the call first.
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

  // For output of jobs: false, and the message is lost, where more than most_output bytes are waiting already.
  bool put_output(Message message) {
    const std::size_t bytes = message.ByteSizeLong();
    {
      const std::lock_guard lock(mutex_);
      if (output_ + bytes > most_output) return false;
    }
    put(std::move(message), bytes);
    return true;
  }

 private:
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
    std::unique_lock lock(mutex_);
    while (!over_) {
      if (waiting_.empty()) {
        if (ended_) return;
        if (filled_.wait_for(lock, heartbeat, [this] { return ended_ || !waiting_.empty(); })) continue;
        waiting_.emplace_back(Message(), 0);
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

  std::function<bool(const Message&)> write_;
  std::mutex mutex_;  // of all below
  std::condition_variable filled_;
  std::deque<std::pair<Message, std::size_t>> waiting_;
  std::size_t output_ = 0;  // bytes of output that wait
  bool ended_ = false, over_ = false;
  std::thread thread_;
};

}  // namespace cluster
