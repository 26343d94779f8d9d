// silence.hpp: sees that the other side of a call is frozen, or cut off.
#pragma once

#include "cluster/outbox.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace cluster {

// Calls `dead` once, from a thread of its own, when nothing was heard for cluster::silence.
class Silence {
 public:
  explicit Silence(std::function<void()> dead) : dead_(std::move(dead)), thread_([this](auto stop) { watch(stop); }) {}

  void heard() { last_ = Clock::now(); }
  // Until the next heard() it is this side that does not listen.
  void pause() { last_ = Clock::now() + std::chrono::hours(24 * 365); }

 private:
  using Clock = std::chrono::steady_clock;

  void watch(const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any stopped;
    std::unique_lock lock(mutex);
    for (Clock::time_point end; (end = last_.load() + silence) > Clock::now();)
      if (stopped.wait_until(lock, stop, std::min(end, Clock::now() + heartbeat),
                             [&] { return stop.stop_requested(); }))
        return;
    dead_();
  }

  std::function<void()> dead_;
  std::atomic<Clock::time_point> last_{Clock::now()};
  std::jthread thread_;
};

}  // namespace cluster
