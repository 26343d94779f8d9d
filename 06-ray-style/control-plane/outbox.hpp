// outbox.hpp: messages that a separate thread writes, in order, so that a slow reader blocks nobody.
#pragma once

#include "lease.hpp"

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace cluster {

template <class Message>
class Outbox {
 public:
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

  void put(Message message) {
    {
      const std::lock_guard lock(mutex_);
      if (!over_) waiting_.push_back(std::move(message));
    }
    filled_.notify_one();
  }
  std::size_t waiting() const {
    const std::lock_guard lock(mutex_);
    return waiting_.size();
  }

 private:
  using Clock = std::chrono::steady_clock;

  void write_all() {
    auto next_beat = Clock::now() + heartbeat;
    const auto ready = [this] { return ended_ || !waiting_.empty(); };
    for (std::unique_lock lock(mutex_); !over_;) {
      if (!beat_)
        filled_.wait(lock, ready);
      else if (!filled_.wait_until(lock, next_beat, ready) || Clock::now() >= next_beat) {
        next_beat = Clock::now() + heartbeat;
        waiting_.push_front(beat_());
      }
      if (waiting_.empty()) return;  // and ended
      const Message message = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      const bool written = write_(message);
      lock.lock();
      over_ = !written;
    }
    waiting_.clear();
  }

  const std::function<bool(const Message&)> write_;
  const std::function<Message()> beat_;
  mutable std::mutex mutex_;  // of all below
  std::condition_variable filled_;
  std::deque<Message> waiting_;
  bool ended_ = false, over_ = false;
  std::thread thread_;
};

}  // namespace cluster
