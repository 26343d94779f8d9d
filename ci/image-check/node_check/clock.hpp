// clock.hpp: how far the clocks of two ranks are apart.
#pragma once

#include "finding.hpp"

#include <multinode/store/tcp_store.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>

namespace node_check {

// One question and its answer, in nanoseconds: sent and returned by the clock of who asks, received and answered by
// the other's.
struct Exchange {
  std::int64_t sent, received, answered, returned;
};

// The asker's clock is ahead of the other's by `seconds`, give or take `bound`: from the exchange that took the
// shortest time (RFC 5905, section 8, the offset with its sign turned, and half the delay).
struct Skew {
  double seconds, bound;
};
Skew skew_of(std::span<const Exchange> exchanges);

// Over a store, where `key` is this pair's alone: one rank asks, the other one answers.
using ClockNow = std::function<std::int64_t()>;
std::int64_t real_time();
std::vector<Exchange> ask(multinode::TcpStore& store, const std::string& key, const ClockNow& now,
                          std::chrono::milliseconds timeout);
void answer(multinode::TcpStore& store, const std::string& key, const ClockNow& now, std::chrono::milliseconds timeout);

// Its value is what is certain, in steps of 10 ms: 0 between clocks that are kept. Wrong where that is more than 1 s.
Finding judge(const Skew& skew);

}  // namespace node_check
