#include "clock.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <sstream>

namespace node_check {

namespace {

constexpr int rounds = 20;

std::int64_t delay(const Exchange& e) { return (e.returned - e.sent) - (e.answered - e.received); }

}  // namespace

Skew skew_of(std::span<const Exchange> exchanges) {
  const Exchange& best =
      *std::ranges::min_element(exchanges, [](const Exchange& l, const Exchange& r) { return delay(l) < delay(r); });
  const double offset = static_cast<double>((best.received - best.sent) + (best.answered - best.returned)) / 2;
  return {-offset / 1e9, static_cast<double>(delay(best)) / 2 / 1e9};
}

std::int64_t real_time() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::vector<Exchange> ask(multinode::TcpStore& store, const std::string& key, const ClockNow& now,
                          std::chrono::milliseconds timeout) {
  std::vector<Exchange> exchanges;
  for (int round = 0; round < rounds; ++round) {
    const std::string at = key + "/" + std::to_string(round);
    Exchange one{};
    one.sent = now();
    store.set(at + "/question", "?");
    std::istringstream times(store.get(at + "/answer", timeout));
    one.returned = now();
    times >> one.received >> one.answered;
    exchanges.push_back(one);
  }
  return exchanges;
}

void answer(multinode::TcpStore& store, const std::string& key, const ClockNow& now,
            std::chrono::milliseconds timeout) {
  for (int round = 0; round < rounds; ++round) {
    const std::string at = key + "/" + std::to_string(round);
    store.get(at + "/question", timeout);
    const std::int64_t received = now();
    store.set(at + "/answer", std::to_string(received) + " " + std::to_string(now()));
  }
}

Finding judge(const Skew& skew) {
  const double certain = std::max(0.0, std::abs(skew.seconds) - skew.bound);
  Finding finding{"clock_skew", std::round(certain * 100) * 10, "ms", "less", certain <= 1, ""};
  finding.why = fmt::format("its clock is {:.3g} ms {} rank 0's, give or take {:.3g} ms{}",
                            std::abs(skew.seconds) * 1e3, skew.seconds > 0 ? "ahead of" : "behind", skew.bound * 1e3,
                            *finding.ok ? "" : ": start chronyd or ntpd (builds, keys and logs go by the clock)");
  return finding;
}

}  // namespace node_check
