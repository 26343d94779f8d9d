// lease.hpp: how long each side of a node's call believes in the other one.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace cluster {

// A node's processes may run until `lease` after the node sent the last beat that came back. The head gives a node up
// `silence` after the last beat that it received. The beat was sent before it was received, so the node's processes are
// dead before the head starts their successors, whichever direction of the link is cut.
constexpr std::chrono::milliseconds heartbeat{500};  // between two beats
constexpr std::chrono::milliseconds lease{2000};
constexpr std::chrono::milliseconds silence{3000};
static_assert(heartbeat < lease && lease < silence);

// Calls `expired` once, from a thread of its own, when renew() has not been called for `limit`.
class Timeout {
 public:
  using Clock = std::chrono::steady_clock;

  Timeout(std::chrono::milliseconds limit, std::function<void()> expired)
      : end_(Clock::now() + limit),
        limit_(limit),
        expired_(std::move(expired)),
        thread_([this](auto stop) { watch(stop); }) {}

  void renew(Clock::time_point from = Clock::now()) { end_ = from + limit_; }

 private:
  void watch(const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any stopped;
    std::unique_lock lock(mutex);
    for (Clock::time_point end; (end = end_) > Clock::now();)
      if (stopped.wait_until(lock, stop, end, [&] { return stop.stop_requested(); })) return;
    if (!stop.stop_requested()) expired_();
  }

  std::atomic<Clock::time_point> end_;
  const std::chrono::milliseconds limit_;
  const std::function<void()> expired_;
  std::jthread thread_;
};

}  // namespace cluster
