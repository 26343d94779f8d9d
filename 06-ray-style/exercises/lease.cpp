// A node runs a training, and tells the head every 500 ms that it lives. When the link is cut, the head hears nothing
// for 3 s, gives the node up, and starts the training elsewhere. By then the node must have ended its own processes:
// two trainings that write the same checkpoints destroy them. So the node may run them for 2 s, its lease, from ...
// when?
//
//   g++ -std=c++20 -O2 lease.cpp -o lease
//   ./lease
//
// Exit status: 0 if never two trainings run, and none ends without need; 1 if not.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>

using Time = std::uint64_t;  // milliseconds
constexpr Time heartbeat = 500, lease = 2000, silence = 3000;

// A function of its arguments alone, below `limit`.
Time random(std::uint64_t stream, std::uint64_t index, Time limit) {
  std::uint64_t x = (stream << 32 | index) * 0x9e3779b97f4a7c15 + 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  return (x >> 32) % limit;
}

// What a node knows of its lease. Messages have numbers; the head's answer has the number of the message.
class Lease {
 public:
  void sent(std::uint64_t, Time) {}
  // TODO (exercise): this answer may have been on its way for seconds. Since when has the head heard nothing, at the
  // latest?
  void answered(std::uint64_t, Time now) { end_ = std::max(end_, now + lease); }

  Time end() const { return end_; }

 private:
  Time end_ = lease;
};

struct Run {
  Time node_ends, head_starts;
};

// Each message and each answer takes up to `delay`, in order; at `cut` all that are under way are lost.
Run simulate(std::uint64_t seed, Time delay, Time cut) {
  enum class Event { send, hear, answer };
  std::multimap<Time, std::pair<Event, std::uint64_t>> events;
  for (std::uint64_t n = 0; n * heartbeat < cut; ++n) events.emplace(n * heartbeat, std::pair(Event::send, n));
  Lease node;
  Time heard = 0, answer = 0, at_head = 0;
  for (; !events.empty() && events.begin()->first < cut; events.erase(events.begin())) {
    const auto [now, what] = *events.begin();
    const auto [event, n] = what;
    if (now > node.end() || now > heard + silence) break;  // the node has ended its processes, or the head gave it up
    if (event == Event::send) {
      node.sent(n, now);
      at_head = std::max(at_head, now + random(seed, 2 * n, delay));
      events.emplace(at_head, std::pair(Event::hear, n));
    } else if (event == Event::hear) {
      heard = now;
      answer = std::max(answer, now + random(seed, 2 * n + 1, delay));
      events.emplace(answer, std::pair(Event::answer, n));
    } else {
      node.answered(n, now);
    }
  }
  return {node.end(), heard + silence};
}

int main() {
  constexpr std::uint64_t runs = 10000;
  std::uint64_t both = 0, early = 0;
  for (std::uint64_t seed = 0; seed < runs; ++seed) {
    const Run slow = simulate(seed, 1800, 5000 + random(seed, 1 << 20, 5000));  // a busy network
    both += slow.node_ends >= slow.head_starts;
    constexpr Time cut = 20000;
    early += simulate(seed, 200, cut).node_ends < cut + lease - 2 * 200 - heartbeat;
  }
  const bool right = both == 0 && early == 0;
  std::printf("%s: two trainings at once in %llu of %llu runs, ended without need in %llu\n", right ? "RIGHT" : "WRONG",
              static_cast<unsigned long long>(both), static_cast<unsigned long long>(runs),
              static_cast<unsigned long long>(early));
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("lease: standard output"), 1;
  return right ? 0 : 1;
}
