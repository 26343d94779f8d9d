// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/check.hpp>
#include <multinode/base/text.hpp>
#include <multinode/net/socket.hpp>
#include <multinode/store/arbiter.hpp>

#include <algorithm>

namespace multinode {

using namespace std::chrono_literals;
using protocol::Progress;

namespace {

constexpr auto silence_limit = 2s;     // a rank that sends no heartbeat for so long, four of them, is silent
constexpr auto judging_delay = 300ms;  // see fail()
constexpr auto longest_gap = 1s;       // between ticks: if it was longer, this process itself was frozen
constexpr std::size_t named_at_most = 16;

std::string rank_text(int rank, const protocol::Hello& hello) {
  return "rank " + std::to_string(rank) + " (" + hello.where + ")";
}

std::string operation(const Progress& p) {
  if (p.peer == nobody) return p.name;
  if (p.peer != everyone) return p.name + " with rank " + std::to_string(p.peer);
  return p.name + " (collective number " + std::to_string(p.collectives) + ")";
}

std::string doing(const Progress& p) {
  if (p.is_inside()) return "in " + operation(p);
  return p.sequence == 0 ? "in its own code, before the first operation" : "in its own code, after " + operation(p);
}

// For a rank in a collective the wait of all its ranks is the same one.
std::tuple<int, protocol::Lane, std::uint64_t> wait_of(int rank, const Progress& p) {
  return p.peer == everyone ? std::tuple(-1, p.lane, p.collectives) : std::tuple(rank, p.lane, p.sequence);
}

}  // namespace

std::string Arbiter::join(const protocol::Hello& hello, Time now) {
  if (const auto found = ranks_.find(hello.rank); found != ranks_.end())
    return "rank " + std::to_string(hello.rank) + " is taken by " + found->second.hello.where;
  ranks_[hello.rank] = {.hello = hello, .progress = {.name = "start"}, .heard = now};
  return "";
}

bool Arbiter::repeats(const protocol::Hello& hello) const {
  const auto found = ranks_.find(hello.rank);
  return found != ranks_.end() && !found->second.heartbeat && found->second.hello == hello;
}

void Arbiter::beat(int rank, Progress progress, Time now) {
  auto& state = ranks_.at(rank);
  state.progress = std::move(progress);
  state.heard = now;
  state.heartbeat = true;
  const LongWait wait{rank, now};
  if (state.progress.wait == Progress::Wait::expired && !expired_) expired_ = wait;
  if (state.progress.wait == Progress::Wait::long_one && !stalled_ &&
      judged_.insert(wait_of(rank, state.progress)).second)
    stalled_ = wait;
}

void Arbiter::fail(int rank, int status, std::string reason, Time now) {
  std::string text = rank_text(rank, ranks_.at(rank).hello) + ": " + reason;
  if (status != exit_wrong) return decide(status, std::move(text));
  if (!candidate_) candidate_ = {rank, status, std::move(text), now + judging_delay};
}

void Arbiter::leave(int rank) { ranks_.at(rank).alive = false; }

void Arbiter::lose(int rank, const std::string& broke) {
  auto& state = ranks_.at(rank);
  if (!state.alive) return;
  if (!state.heartbeat) {  // it only tried to connect, and will come again
    ranks_.erase(rank);
    return;
  }
  state.alive = false;
  if (candidate_ && candidate_->rank == rank) return decide(candidate_->status, candidate_->text);
  decide(exit_wrong,
         broke.empty() ? rank_text(rank, state.hello) + " is gone: it was killed, or it exited without an error message"
                       : "the connection to " + rank_text(rank, state.hello) + " broke: " + broke);
}

void Arbiter::tick(Time now) {
  if (ticked_ && now - *ticked_ > longest_gap)  // heartbeats may wait in this process's sockets
    for (auto* wait : {&expired_, &stalled_})
      if (*wait) (*wait)->since = now;
  ticked_ = now;
  if (candidate_ && now >= candidate_->due) decide(candidate_->status, candidate_->text);
  // A rank that no longer says so has moved on.
  const auto still = [this](const LongWait& one, Progress::Wait kind) {
    const Rank& state = ranks_.at(one.rank);
    return state.alive && state.progress.wait >= kind;
  };
  if (expired_ && !still(*expired_, Progress::Wait::expired)) expired_.reset();
  if (!verdict_ && expired_ && now >= expired_->since + silence_limit) {
    const auto& [hello, progress, heard, alive, heartbeat] = ranks_.at(expired_->rank);
    decide(exit_wrong, judge(*expired_, "timed out after " + to_text(std::chrono::milliseconds(hello.timeout_ms)) +
                                            ": " + rank_text(expired_->rank, hello) + " waits " + doing(progress))
                           .text);
  }
  if (!verdict_ && stalled_ && now >= stalled_->since + silence_limit) {
    const auto& state = ranks_.at(stalled_->rank);
    if (still(*stalled_, Progress::Wait::long_one)) {
      const auto [text, culprit] =
          judge(*stalled_, "stalled: " + rank_text(stalled_->rank, state.hello) + " has waited for " +
                               std::to_string(state.progress.waited_ms / 1000) + " s " + doing(state.progress));
      const auto late = ranks_.find(culprit.value_or(stalled_->rank));
      const Progress progress = late == ranks_.end() ? Progress() : late->second.progress;
      if (culprit && reported_.emplace(*culprit, progress.lane, progress.sequence).second)
        notice_.emplace(stalled_->rank, text);
    }
    stalled_.reset();
  }
  if (!busy()) ticked_.reset();
}

bool Arbiter::prints_verdict(int rank) {
  if (printers_.empty())
    for (const auto& [other, state] : ranks_) {
      if (!state.alive) continue;
      const auto [at, first] = printers_.emplace(state.hello.node, other);
      if (!first && state.heard > ranks_.at(at->second).heard) at->second = other;
    }
  return printers_.emplace(ranks_.at(rank).hello.node, rank).first->second == rank;
}

// Finds the rank that the waiting one waits for.
Arbiter::Judgement Arbiter::judge(const LongWait& wait, const std::string& waiting) const {
  const int me = wait.rank;
  const Rank& waiter = ranks_.at(me);
  const auto late_text = [](int rank, const Rank& state) {
    return rank_text(rank, state.hello) + " is late: it " + (state.alive ? "is " : "has already ended; it was ") +
           doing(state.progress);
  };
  std::vector<std::string> missing;
  std::optional<int> first_missing;
  for (int r = 0; r < waiter.hello.world_size; ++r)
    if (!ranks_.contains(r)) {
      if (missing.empty()) first_missing = r;
      missing.push_back(std::to_string(r));
    }
  if (!missing.empty()) {
    const std::size_t more = missing.size() > named_at_most ? missing.size() - named_at_most : 0;
    missing.resize(missing.size() - more);
    return {waiting + "; " + rank_list(missing) + (more ? " and " + std::to_string(more) + " more" : "") + " of " +
                std::to_string(waiter.hello.world_size) + " never came",
            first_missing};
  }
  std::vector<int> silent;
  for (const auto& [rank, state] : ranks_)
    if (state.alive && state.heard <= wait.since) silent.push_back(rank);
  if (!silent.empty()) {
    const Rank& first = ranks_.at(silent[0]);
    std::string text = waiting + "; " + rank_text(silent[0], first.hello) +
                       " is frozen, or cut off: it gives no sign of life, and was last " + doing(first.progress);
    for (std::size_t i = 1; i < std::min(silent.size(), named_at_most); ++i)
      text += (i == 1 ? "; the same of rank " : ", ") + rank_text(silent[i], ranks_.at(silent[i]).hello).substr(5);
    if (silent.size() > named_at_most) text += " and " + std::to_string(silent.size() - named_at_most) + " more";
    return {text, silent[0]};
  }
  if (waiter.progress.peer == nobody) return {waiting, me};
  if (waiter.progress.peer != everyone) {
    // Between two ranks: follow the chain of peers to the rank that waits for no other.
    int at = me;
    for (std::size_t hops = 0; hops < ranks_.size(); ++hops) {
      const auto found = ranks_.find(at);
      if (found == ranks_.end()) break;  // a peer outside of the world
      const Progress& p = found->second.progress;
      if (!p.is_inside() || p.peer < 0) {
        if (at == me) break;
        return {waiting + "; " + late_text(at, found->second), at};
      }
      at = p.peer;
    }
    const auto peer = ranks_.find(waiter.progress.peer);
    if (peer == ranks_.end()) return {waiting};
    const Progress& other = peer->second.progress;
    const std::string names = waiter.progress.name + " " + other.name;  // such as send and recv, MPI_Recv and MPI_Isend
    const bool lost =
        other.is_inside() && other.peer == me && names.find("end") != names.npos && names.find("ecv") != names.npos;
    return {waiting + "; " + rank_text(peer->first, peer->second.hello) + " is " + doing(other) +
            (lost ? ": what one sends does not reach the other (another tag, a firewall, or an MTU that the network "
                    "does not carry)"
                  : "")};
  }
  // A collective: the rank that has entered the fewest.
  const auto entered = [&](const Rank& state) { return state.progress.collectives_in(waiter.progress.lane); };
  const auto late = std::ranges::min_element(ranks_, {}, [&](const auto& r) { return entered(r.second); });
  if (entered(late->second) < entered(waiter))
    return {waiting + "; " + late_text(late->first, late->second), late->first};
  return {
      waiting +
      "; every rank has entered it: the library or the network is stuck (a firewall, or an MTU that the network does "
      "not carry)"};
}

}  // namespace multinode
