// arbiter.hpp: who is late, frozen or dead: the judgement on the ranks of one run, in the process that serves their
// store. It has no clock, thread or socket, so that tests play any order of events to it.
//
// It is in the process that serves the store because that one sees every heartbeat and every closed connection. Ranks
// that ask each other (a ring of pings, a vote) cost more messages and may name different culprits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <multinode/store/store_protocol.hpp>

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace multinode {

class Arbiter {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Returns the reason why the rank cannot join, "" if it has joined. A rank is taken as soon as it has sent its first
  // heartbeat, and stays so.
  std::string join(const protocol::Hello& hello, Time now);
  // Whether this hello repeats that of a connection that has sent no heartbeat: its process gave up waiting for the
  // answer, and connected again.
  bool repeats(const protocol::Hello& hello) const;
  void beat(int rank, protocol::Progress progress, Time now);
  // The rank ends because of `reason`. It may have failed only because another one died, so with exit status 1 that is
  // the verdict only if there is no other within 300 ms.
  void fail(int rank, int status, std::string reason, Time now);
  void leave(int rank);  // in peace
  // Its connection closed without a goodbye: its process has ended, unless the connection `broke` for this reason.
  void lose(int rank, const std::string& broke = {});

  // Judges; to be called every 50 ms or so while busy().
  void tick(Time now);
  bool busy() const { return !verdict_ && (candidate_ || expired_ || stalled_); }

  // The first verdict; there is no other.
  const std::optional<std::pair<int, std::string>>& verdict() const { return verdict_; }
  // Whether this rank prints the verdict: on each node the one that was heard last, because others may be frozen.
  bool prints_verdict(int rank);
  // A line that this rank prints, once.
  std::optional<std::pair<int, std::string>> take_notice() { return std::exchange(notice_, {}); }

 private:
  struct Rank {
    protocol::Hello hello;
    protocol::Progress progress;
    Time heard;
    bool alive = true;  // connected; else it has left
    bool heartbeat = false;
  };
  struct Candidate {
    int rank, status;
    std::string text;
    Time due;
  };
  struct LongWait {  // of a rank: the others are to be judged
    int rank;
    Time since;
  };
  struct Judgement {
    std::string text;
    std::optional<int> culprit{};  // none: no rank is behind the waiting one
  };

  void decide(int status, std::string text) {
    if (!verdict_) verdict_.emplace(status, std::move(text));
  }
  Judgement judge(const LongWait& wait, const std::string& waiting) const;

  std::map<int, Rank> ranks_;
  std::optional<Candidate> candidate_;
  std::optional<LongWait> expired_, stalled_;
  std::optional<Time> ticked_;
  std::set<std::tuple<int, protocol::Lane, std::uint64_t>> judged_, reported_;  // waits; states of late ranks
  std::optional<std::pair<int, std::string>> verdict_, notice_;
  std::map<std::string, int> printers_;  // by node
};

}  // namespace multinode
