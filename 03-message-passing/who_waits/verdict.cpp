#include "verdict.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

namespace who_waits {

std::string size_of(std::uint64_t bytes) {
  for (const auto& [unit, name] :
       {std::pair<std::uint64_t, const char*>{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}})
    if (bytes >= unit && bytes % unit == 0) return fmt::format("{} {}", bytes / unit, name);
  return fmt::format("{} B", bytes);
}

namespace {

using Ranks = std::set<int>;

std::string rank_text(const Ranks& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + ranges({ranks.begin(), ranks.end()});
}

// Whether a receive that is posted for this peer and tag takes a message with those.
bool takes(const Call& receive, int peer, int tag) {
  const int from = receive.from(), wanted = receive.wanted_tag();
  return (from == any || from == peer) && (wanted == any || wanted == tag);
}
// As its stack shows: otherwise such a rank seems to compute. A name that is recorded is another library's wrapper.
bool in_unrecorded_call(const RankState& rank_state) {
  const std::size_t at = rank_state.stack.find("MPI_");
  if (!rank_state.waits.empty() || rank_state.polled || at == std::string::npos) return false;
  const std::string name = rank_state.stack.substr(at, rank_state.stack.find(' ', at) - at);
  for (auto kind = 0u; kind < static_cast<unsigned>(Kind::count); ++kind)
    if (name == name_of(static_cast<Kind>(kind))) return false;
  return true;
}
bool receives(const Call& call) {
  const Role role = role_of(call.kind);
  return role == Role::receive || role == Role::both;
}

// Each clause must come true for a rank to move on, and needs one of its ranks.
struct Need {
  Ranks one_of;
  std::string why;  // what is missing
};
using Needs = std::optional<std::vector<Need>>;  // none: nothing is missing that a rank could give

class Explanation {
 public:
  explicit Explanation(std::vector<RankState> ranks);

  Verdict verdict();
  std::vector<std::string> groups(std::size_t most) const;

 private:
  const RankState* state(int rank) const {
    const auto found = by_rank_.find(rank);
    return found == by_rank_.end() ? nullptr : found->second;
  }
  bool certain(int rank) const {  // its record says all that it has done
    const RankState* const rank_state = state(rank);
    return rank_state && !rank_state->incomplete && !rank_state->unknown_calls;
  }
  std::string communicator(std::uint64_t id) const;
  std::string describe(const Call& call) const;
  std::string doing(int rank) const;

  std::uint64_t count(int rank, std::uint64_t communicator, int peer, int tag, std::uint64_t Traffic::*what) const;
  Needs receive_needs(const RankState& rank_state, const Call& call) const;
  Needs send_needs(const RankState& rank_state, const Call& call) const;
  Needs collective_needs(const RankState& rank_state, const Call& call) const;
  Needs device_needs(const RankState& rank_state) const;
  Needs needs(const RankState& rank_state, const Call& call) const;
  Needs needs(const RankState& rank_state, const Wait& wait) const;
  Needs needs(const RankState& rank_state) const;

  bool mismatch(Verdict& verdict) const;
  std::map<int, std::vector<Need>> that_cannot_move(std::map<int, std::vector<Need>> blocked) const;
  void stuck(Verdict& verdict, const std::map<int, std::vector<Need>>& blocked) const;
  void moving(Verdict& verdict, const std::map<int, std::vector<Need>>& blocked) const;
  void say_who_lacks_calls(Verdict& verdict) const;
  std::string other_messages(int from, int to, const Call& call) const;

  bool uncertain(std::uint64_t id) const { return (id & uncertain_id) || ambiguous_.contains(id); }

  std::vector<RankState> states_;
  std::map<int, const RankState*> by_rank_;
  std::set<std::uint64_t> ambiguous_;  // communicators with several ranks in one process
  std::map<std::uint64_t, std::map<int, const CommunicatorState*>> members_;
};

Explanation::Explanation(std::vector<RankState> ranks) : states_(std::move(ranks)) {
  std::map<std::pair<std::uint64_t, int>, int> ranks_of_nccl;  // communicator and rank in it: the process's rank
  for (const RankState& state : states_) {
    by_rank_[state.rank] = &state;
    for (const CommunicatorState& one : state.communicators) {
      if (!members_[one.id].emplace(state.rank, &one).second) ambiguous_.insert(one.id);
      if (one.of_nccl) ranks_of_nccl[{one.id, one.rank}] = state.rank;
    }
  }
  const auto translate = [&](std::uint64_t id, std::int32_t& peer) {
    const auto members = members_.find(id);
    if (peer < 0 || members == members_.end() || !members->second.begin()->second->of_nccl) return;
    const auto found = ranks_of_nccl.find({id, peer});
    peer = found == ranks_of_nccl.end() ? unknown : found->second;
  };
  for (RankState& state : states_) {
    for (Traffic& one : state.traffic) translate(one.communicator, one.peer);
    for (Wait& wait : state.waits) translate(wait.call.communicator, wait.call.peer);
  }
}

std::string Explanation::communicator(std::uint64_t id) const {
  if (id == world_id) return "MPI_COMM_WORLD";
  const auto found = members_.find(id);
  if (found == members_.end()) return "a communicator";
  Ranks ranks;
  for (const auto& [rank, member] : found->second) ranks.insert(rank);
  return (found->second.begin()->second->of_nccl ? "NCCL's communicator of " : "the communicator of ") +
         rank_text(ranks);
}

std::string Explanation::describe(const Call& call) const {
  std::string text = name_of(call.kind);
  const auto peer = [](int rank) {
    return rank == any ? "any rank" : rank < 0 ? "an unknown rank" : fmt::format("rank {}", rank);
  };
  const auto tag = [](int value) { return value == any ? std::string("any tag") : fmt::format("tag {}", value); };
  const std::string where =
      call.communicator <= world_id || by_rank_.empty() ? "" : " in " + communicator(call.communicator);
  switch (role_of(call.kind)) {
    case Role::send:
      return text + fmt::format(" to {}, {}, {}{}", peer(call.peer), tag(call.tag), size_of(call.bytes), where);
    case Role::receive:
      return text + fmt::format(" from {}, {}{}", peer(call.peer), tag(call.tag), where);
    case Role::both:
      return text + fmt::format(" to {}, {}, and from {}, {}{}", peer(call.peer), tag(call.tag),
                                peer(call.receive_peer), tag(call.receive_tag), where);
    case Role::collective:
      if (call.communicator == start_id || call.communicator == end_id || call.sequence == 0) return text;
      text += fmt::format(", call {} of {}", call.sequence, communicator(call.communicator));
      if (call.root >= 0) text += fmt::format(", root {}", call.root);
      return call.bytes ? text + ", " + size_of(call.bytes) : text;
    default:
      return text;
  }
}

// What a rank does, after "rank 3 is": "in MPI_Allreduce, call 57 of MPI_COMM_WORLD, 4 MiB".
std::string Explanation::doing(int rank) const {
  const RankState* const rank_state = state(rank);
  if (!rank_state) return "unknown";
  if (rank_state->ended && *rank_state->ended > 128)
    return fmt::format("gone: killed by signal {}", *rank_state->ended - 128);
  if (rank_state->ended) return fmt::format("gone: exit status {}", *rank_state->ended);
  if (rank_state->finalized) return "past MPI_Finalize";
  if (!rank_state->waits.empty()) {
    const Wait& wait = rank_state->waits.front();
    std::string text = "in " + describe(wait.call);
    if (!wait.requests.empty()) text += " for " + describe(wait.requests.front());
    return text + (wait.requests.size() > 1 ? fmt::format(" and {} more", wait.requests.size() - 1) : "");
  }
  if (rank_state->polled) return "testing again and again for " + describe(*rank_state->polled);
  if (in_unrecorded_call(*rank_state)) return "in a call of MPI that is not recorded";
  const char* const state = rank_state->process == 'R'   ? "computing"
                            : rank_state->process == 'D' ? "in the kernel (state D), as for a file,"
                            : rank_state->process == 'T' ? "stopped by a signal"
                                                         : "sleeping";
  return fmt::format("{} outside of {}", state,
                     rank_state->recorded ? "MPI and NCCL" : "MPI and NCCL, which it has not called yet");
}

std::uint64_t Explanation::count(int rank, std::uint64_t communicator, int peer, int tag,
                                 std::uint64_t Traffic::*what) const {
  std::uint64_t sum = 0;
  if (const RankState* const rank_state = state(rank))
    for (const Traffic& one : rank_state->traffic)
      if (one.communicator == communicator && one.peer == peer && (tag == any || one.tag == tag)) sum += one.*what;
  return sum;
}

Needs Explanation::receive_needs(const RankState& rank_state, const Call& call) const {
  const int from = call.from(), tag = call.wanted_tag();
  if (from == no_rank) return Needs{std::vector<Need>{}};
  const auto members = members_.find(call.communicator);
  if (from == unknown || members == members_.end() || uncertain(call.communicator)) return {};
  Ranks senders;
  for (const auto& [rank, one] : members->second)
    if (from == any ? rank != rank_state.rank : rank == from) senders.insert(rank);
  const auto size = static_cast<std::size_t>(members->second.begin()->second->size);
  if (senders.empty() || (from == any && members->second.size() < size)) return {};  // a rank has not made it yet
  // Receives that were posted before this one get the earlier messages.
  const auto before = static_cast<std::uint64_t>(std::ranges::count_if(rank_state.outstanding, [&](const Call& other) {
    return receives(other) && other.communicator == call.communicator &&
           (call.sequence == 0 || other.sequence < call.sequence) &&
           std::ranges::any_of(senders, [&](int sender) { return takes(other, sender, tag == any ? other.tag : tag); });
  }));
  std::uint64_t sent = 0, received = 0;
  for (const int sender : senders) {
    if (!certain(sender)) return {};
    sent += count(sender, call.communicator, rank_state.rank, tag, &Traffic::sent);
    received += count(rank_state.rank, call.communicator, sender, tag, &Traffic::received);
  }
  if (!certain(rank_state.rank) || sent > received + before) return {};
  return Needs{{{std::move(senders), from == any ? fmt::format("no rank sends to {}", rank_state.rank)
                                                 : fmt::format("rank {} does not send to {}", from, rank_state.rank)}}};
}

Needs Explanation::send_needs(const RankState& rank_state, const Call& call) const {
  if (call.peer == no_rank || call.kind == Kind::MPI_Bsend || call.kind == Kind::MPI_Ibsend ||
      call.kind == Kind::MPI_Bsend_init)
    return Needs{std::vector<Need>{}};
  const RankState* const peer = state(call.peer);
  if (!peer || !certain(call.peer) || !certain(rank_state.rank) || uncertain(call.communicator)) return {};
  std::uint64_t posted = 0;
  for (const Wait& wait : peer->waits)
    posted += receives(wait.call) && wait.call.communicator == call.communicator &&
              takes(wait.call, rank_state.rank, call.tag);
  for (const Call& other : peer->outstanding)
    posted += receives(other) && other.communicator == call.communicator && takes(other, rank_state.rank, call.tag);
  const std::uint64_t sent = count(rank_state.rank, call.communicator, call.peer, call.tag, &Traffic::sent);
  const std::uint64_t received = count(call.peer, call.communicator, rank_state.rank, call.tag, &Traffic::received);
  if (sent <= received + posted) return {};
  return Needs{{{{call.peer}, fmt::format("rank {} does not receive from {}", call.peer, rank_state.rank)}}};
}

Needs Explanation::collective_needs(const RankState&, const Call& call) const {
  Ranks missing;
  const bool nccl = call.kind == Kind::ncclCommInitRank || call.kind == Kind::ncclCommInitRankConfig;
  if (nccl && call.tag != static_cast<int>(states_.size())) return {};  // it is not known who is to call it
  if (nccl || call.communicator == start_id || call.communicator == end_id) {
    for (const RankState& other : states_) {
      const auto same = [&](const auto& id) { return id == call.communicator; };
      const bool there =
          std::ranges::any_of(other.waits, same, [](const Wait& wait) { return wait.call.communicator; });
      const bool past = nccl ? std::ranges::any_of(other.communicators, same, &CommunicatorState::id)
                        : call.communicator == start_id ? other.world_size > 0
                                                        : other.finalized;
      if (!there && !past) missing.insert(other.rank);
    }
  } else {
    const auto members = members_.find(call.communicator);
    if (members == members_.end() || uncertain(call.communicator)) return {};
    for (const auto& [rank, member] : members->second)
      if (member->collectives < call.sequence) missing.insert(rank);
  }
  if (missing.empty()) return {};
  std::vector<Need> all;
  for (const int rank : missing) all.push_back({{rank}, fmt::format("rank {} is not in {}", rank, name_of(call.kind))});
  return all;
}

// What a rank has queued on its GPUs and others have not.
Needs Explanation::device_needs(const RankState& rank_state) const {
  std::vector<Need> all;
  for (const CommunicatorState& one : rank_state.communicators) {
    if (!one.of_nccl || uncertain(one.id)) continue;
    for (const auto& [rank, other] : members_.at(one.id))
      if (other->collectives < one.collectives)
        all.push_back({{rank},
                       fmt::format("rank {} has made {} calls of collectives of {}, rank {} {}", rank,
                                   other->collectives, communicator(one.id), rank_state.rank, one.collectives)});
    for (const Traffic& traffic : rank_state.traffic)
      if (traffic.communicator == one.id && state(traffic.peer)) {
        if (traffic.received > count(traffic.peer, one.id, rank_state.rank, any, &Traffic::sent))
          all.push_back(
              {{traffic.peer}, fmt::format("rank {} has not called ncclSend to {}", traffic.peer, rank_state.rank)});
        if (traffic.sent > count(traffic.peer, one.id, rank_state.rank, any, &Traffic::received))
          all.push_back(
              {{traffic.peer}, fmt::format("rank {} has not called ncclRecv from {}", traffic.peer, rank_state.rank)});
      }
  }
  if (all.empty()) return {};
  return all;
}

Needs Explanation::needs(const RankState& rank_state, const Call& call) const {
  switch (role_of(call.kind)) {
    case Role::send:
      return std::string_view(name_of(call.kind)).starts_with("nccl") ? device_needs(rank_state)
                                                                      : send_needs(rank_state, call);
    case Role::receive:
      return std::string_view(name_of(call.kind)).starts_with("nccl") ? device_needs(rank_state)
                                                                      : receive_needs(rank_state, call);
    case Role::both: {
      Needs out = send_needs(rank_state, call), in = receive_needs(rank_state, call);
      if (!out || out->empty()) return in;
      if (in) out->insert(out->end(), in->begin(), in->end());
      return out;
    }
    case Role::collective:
      return collective_needs(rank_state, call);
    case Role::device:
      return device_needs(rank_state);
    default:
      return {};
  }
}

Needs Explanation::needs(const RankState& rank_state, const Wait& wait) const {
  const Role role = role_of(wait.call.kind);
  if (role != Role::wait_all && role != Role::wait_any) return needs(rank_state, wait.call);
  if (!wait.all_requests || wait.requests.empty()) return {};
  std::vector<Need> all;
  for (const Call& request : wait.requests) {
    Needs its_needs = needs(rank_state, request);
    if (role == Role::wait_any && !its_needs) return {};
    if (its_needs) all.insert(all.end(), its_needs->begin(), its_needs->end());
  }
  if (all.empty()) return {};
  if (role == Role::wait_any) {  // any of them may move it
    for (std::size_t i = 1; i < all.size(); ++i) all[0].one_of.insert(all[i].one_of.begin(), all[i].one_of.end());
    all.resize(1);
  }
  return all;
}

Needs Explanation::needs(const RankState& rank_state) const {
  if (rank_state.ended || rank_state.finalized) return Needs{std::vector<Need>{}};  // it gives nothing more to others
  if (rank_state.waits.empty() || rank_state.other_thread) return {};
  std::vector<Need> all;
  for (const Wait& wait : rank_state.waits) {
    const Needs one = needs(rank_state, wait);
    if (!one) return {};
    all.insert(all.end(), one->begin(), one->end());
  }
  return all;
}

// Collectives that differ between the ranks of a communicator: the first in their histories. If none is there, how many
// they have made of each kind until the last call that all have reached.
bool Explanation::mismatch(Verdict& verdict) const {
  for (const auto& [id, members] : members_) {
    if (uncertain(id)) continue;
    std::map<std::uint64_t, std::map<std::tuple<Kind, int, std::uint64_t>, Ranks>> calls;
    std::uint64_t reached = UINT64_MAX;
    for (const auto& [rank, member] : members) {
      for (const Call& call : member->history) calls[call.sequence][{call.kind, call.root, call.bytes}].insert(rank);
      reached = std::min(reached, member->collectives);
    }
    std::vector<std::pair<Ranks, std::string>> groups;
    std::string what = "the ranks make different calls";
    const auto first = std::ranges::find_if(calls, [](const auto& one) { return one.second.size() > 1; });
    if (first != calls.end()) {
      for (const auto& [call, ranks] : first->second) {
        const auto& [kind, root, bytes] = call;
        groups.emplace_back(
            ranks,
            describe({.kind = kind, .root = root, .communicator = id, .sequence = first->first, .bytes = bytes}));
      }
    } else {
      what = fmt::format("before call {}, the ranks have made different calls", reached);
      std::map<std::vector<std::uint32_t>, Ranks> numbers;
      for (const auto& [rank, member] : members) {
        std::vector<std::uint32_t> of_kind = member->of_kind;
        if (of_kind.empty() || member->collectives - reached > member->history.size()) continue;  // it is too far ahead
        for (const Call& call : member->history)
          if (call.sequence > reached) --of_kind.at(static_cast<std::size_t>(call.kind));
        numbers[of_kind].insert(rank);
      }
      for (const auto& [of_kind, ranks] : numbers) {
        std::vector<std::string> texts;
        for (std::size_t kind = 0; kind < of_kind.size(); ++kind)
          if (of_kind[kind] != numbers.begin()->first[kind] || of_kind[kind] != numbers.rbegin()->first[kind])
            texts.push_back(fmt::format("{} {}", of_kind[kind], name_of(static_cast<Kind>(kind))));
        groups.emplace_back(ranks, fmt::format("{}", fmt::join(texts, ", ")));
      }
    }
    if (groups.size() < 2) continue;
    std::ranges::stable_sort(groups, {}, [](const auto& one) { return one.first.size(); });
    verdict.cause = "mismatch";
    verdict.certain = std::ranges::none_of(states_, [](const RankState& rank_state) {
      return !rank_state.ended && !rank_state.finalized && (rank_state.waits.empty() || rank_state.other_thread);
    });
    verdict.lines.push_back(fmt::format("{} in {}:", what, communicator(id)));
    for (std::size_t i = 0; i < groups.size() && i < 4; ++i)
      verdict.lines.push_back(fmt::format("  {}: {}", rank_text(groups[i].first), groups[i].second));
    verdict.culprits.assign(groups[0].first.begin(), groups[0].first.end());
    return true;
  }
  return false;
}

// Messages of `from` that `to` has not received and that do not fit its receive.
std::string Explanation::other_messages(int from, int to, const Call& call) const {
  const RankState* const rank_state = state(from);
  if (!rank_state || !receives(call)) return "";
  for (const Traffic& one : rank_state->traffic) {
    if (one.peer != to || one.sent <= count(to, one.communicator, from, one.tag, &Traffic::received)) continue;
    const int wanted = call.wanted_tag();
    if (one.communicator != call.communicator)
      return fmt::format("; it has sent one in another communicator, {}", communicator(one.communicator));
    if (wanted != any && one.tag != wanted)
      return fmt::format("; it has sent one with tag {}, and {} wants tag {}", one.tag, to, wanted);
  }
  return "";
}

void Explanation::say_who_lacks_calls(Verdict& verdict) const {
  for (const auto& [id, members] : members_) {
    std::map<std::uint64_t, Ranks> by_count;
    for (const auto& [rank, member] : members) by_count[member->collectives].insert(rank);
    if (by_count.size() < 2 || uncertain(id)) continue;
    const auto& [least, late] = *by_count.begin();
    const auto& [most, others] = *by_count.rbegin();
    if (late.size() > 8) continue;
    std::string name = "collectives";
    for (const Call& call : members.at(*others.begin())->history)
      if (call.sequence == least + 1) name = name_of(call.kind);
    verdict.lines.push_back(fmt::format("first difference: {} {} made {} calls in {}, {} {}: call {} is {}",
                                        rank_text(late), late.size() == 1 ? "has" : "have", least, communicator(id),
                                        others.size() > 8 ? "the others" : rank_text(others), most, least + 1, name));
  }
}

// Explains the ranks that cannot move: a rank that has ended, a cycle, or both.
void Explanation::stuck(Verdict& verdict, const std::map<int, std::vector<Need>>& blocked) const {
  // Follow, from the first stuck rank, the first clause that only stuck or ended ranks could fulfil.
  std::vector<int> path;
  int at = blocked.begin()->first;
  while (std::ranges::find(path, at) == path.end()) {
    path.push_back(at);
    const auto found = blocked.find(at);
    if (found == blocked.end()) break;  // it has ended
    at = *found->second.front().one_of.begin();
  }
  const auto why = [&](int rank, int next) {
    const Need& need = blocked.at(rank).front();
    std::string text = fmt::format("{}: rank {} is {}", need.why, next, doing(next));
    const RankState& rank_state = *state(rank);
    if (rank_state.waits.empty()) return text + other_messages(next, rank, *rank_state.polled);
    const Wait& wait = rank_state.waits.front();
    return text + other_messages(next, rank, wait.requests.size() == 1 ? wait.requests.front() : wait.call);
  };
  if (!blocked.contains(path.back())) {
    verdict.cause = "ended";
    verdict.culprits = {path.back()};
  } else {
    path.erase(path.begin(), std::ranges::find(path, at));
    verdict.cause = "deadlock";
    verdict.culprits = path;
  }
  const std::size_t shown = std::min<std::size_t>(path.size(), 6);
  if (verdict.cause == "deadlock") {
    std::string text;
    for (std::size_t i = 0; i < shown; ++i)
      text += fmt::format("{}{} waits for {}", i ? ", " : "", path[i], path[(i + 1) % path.size()]);
    verdict.lines.push_back(text + (shown < path.size() ? " ...: deadlock" : ": deadlock"));
  }
  for (std::size_t i = 0; i < shown; ++i)
    if (blocked.contains(path[i]) && (i + 1 < path.size() || verdict.cause == "deadlock"))
      verdict.lines.push_back(why(path[i], path[(i + 1) % path.size()]));
}

// Nobody is stuck for certain: who makes the others wait?
void Explanation::moving(Verdict& verdict, const std::map<int, std::vector<Need>>& blocked) const {
  std::map<int, int> waiting_for;  // rank that is not blocked, how many blocked ranks wait for it directly
  for (const auto& [rank, needs] : blocked)
    for (const Need& need : needs)
      for (const int other : need.one_of)
        if (!blocked.contains(other)) ++waiting_for[other];
  std::vector<int> late;
  for (const auto& [rank, number] : waiting_for) late.push_back(rank);
  if (blocked.empty())
    for (const RankState& rank_state : states_)
      if (rank_state.waits.empty() && !rank_state.ended && !rank_state.finalized) late.push_back(rank_state.rank);
  const bool waits =
      std::ranges::any_of(states_, [](const RankState& rank_state) { return !rank_state.waits.empty(); });
  if (late.empty()) {
    for (const RankState& rank_state : states_)
      if (rank_state.ended && waits) {
        verdict.cause = "ended";
        verdict.culprits.push_back(rank_state.rank);
        verdict.lines.push_back(
            fmt::format("rank {} is {}; another may wait for it", rank_state.rank, doing(rank_state.rank)));
      }
    if (!verdict.culprits.empty()) return;
    verdict.cause = waits ? "network" : "cannot tell";
    verdict.lines.push_back(
        waits ? "every message and collective that a rank waits for has been started by its peers: the network, the "
                "library or a GPU is slow or broken"
              : "no rank waits in a call that is recorded");
    return;
  }
  std::ranges::stable_sort(late, std::greater<>(), [&](int rank) { return waiting_for[rank]; });
  std::ranges::stable_partition(late, [&](int rank) { return !in_unrecorded_call(*state(rank)); });
  verdict.cause = "late";
  verdict.culprits = late;
  for (std::size_t i = 0; i < late.size() && i < 6; ++i) {
    const int rank = late[i];
    const RankState& rank_state = *state(rank);
    std::string text = fmt::format("rank {} ({}, pid {}) is {} for {:.0f} s", rank, rank_state.host, rank_state.pid,
                                   doing(rank), rank_state.quiet);
    if (rank_state.waits.empty() && !rank_state.polled && rank_state.process == 'R' && !in_unrecorded_call(rank_state))
      text += ": computing, not waiting";
    if (rank_state.incomplete) text += "; it has more operations under way than are recorded";
    if (rank_state.unknown_calls) text += "; it makes calls that are not recorded";
    verdict.lines.push_back(text);
    if (!rank_state.stack.empty()) verdict.lines.push_back("  " + rank_state.stack);
  }
  if (late.size() > 6) verdict.lines.push_back(fmt::format("and {} more ranks", late.size() - 6));
}

std::vector<std::string> Explanation::groups(std::size_t most) const {
  struct Group {
    std::vector<int> ranks;
    double seconds = 0;
  };
  const auto collect = [this](bool with_peers) {
    std::map<std::string, Group> found;
    for (const RankState& rank_state : states_) {
      const bool waits = !rank_state.ended && !rank_state.finalized && !rank_state.waits.empty();
      Group& group = found[waits && !with_peers ? std::string("in ") + name_of(rank_state.waits.front().call.kind)
                                                : doing(rank_state.rank)];
      group.ranks.push_back(rank_state.rank);
      group.seconds = std::max(group.seconds, waits ? rank_state.waits.front().seconds : rank_state.quiet);
    }
    return found;
  };
  auto found = collect(true);
  if (found.size() > most) found = collect(false);
  std::vector<std::pair<std::string, Group>> sorted(found.begin(), found.end());
  std::ranges::sort(sorted, {}, [](const auto& one) {  // the largest first
    return std::pair(-static_cast<long>(one.second.ranks.size()), one.second.ranks[0]);
  });
  std::vector<std::string> lines;
  for (const auto& [text, group] : sorted) {
    if (lines.size() == most) {
      lines.push_back(fmt::format("... and {} more groups", sorted.size() - most));
      break;
    }
    const RankState& first = *state(group.ranks[0]);
    lines.push_back(group.ranks.size() == 1
                        ? fmt::format("rank {} {}, for {:.0f} s   ({}, pid {})", first.rank, text, group.seconds,
                                      first.host, first.pid)
                        : fmt::format("{} ranks {}, for up to {:.0f} s   (ranks {})", group.ranks.size(), text,
                                      group.seconds, ranges(group.ranks)));
  }
  return lines;
}

// Of the ranks that wait, those whose every way on depends on ranks that wait like them, or have ended.
std::map<int, std::vector<Need>> Explanation::that_cannot_move(std::map<int, std::vector<Need>> blocked) const {
  const auto moves = [&](int rank) {
    const RankState* const rank_state = state(rank);
    return !blocked.contains(rank) && !(rank_state && (rank_state->ended || rank_state->finalized));
  };
  for (std::size_t before = 0; before != blocked.size();) {
    before = blocked.size();
    for (auto it = blocked.begin(); it != blocked.end();) {
      std::erase_if(it->second, [&](const Need& need) { return std::ranges::any_of(need.one_of, moves); });
      it = it->second.empty() ? blocked.erase(it) : std::next(it);
    }
  }
  return blocked;
}

Verdict Explanation::verdict() {
  Verdict verdict;
  if (states_.size() > 1 &&
      std::ranges::all_of(states_, [](const RankState& rank_state) { return rank_state.world_size == 1; })) {
    verdict.cause = "separate";
    verdict.certain = true;
    verdict.lines.push_back(
        fmt::format("each of the {} processes is alone: MPI says 1 process to each, as with an mpirun of another MPI",
                    states_.size()));
    return verdict;
  }
  std::map<int, std::vector<Need>> blocked;
  for (const RankState& rank_state : states_)
    if (Needs all = needs(rank_state); all && !all->empty()) blocked.emplace(rank_state.rank, std::move(*all));
  std::map<int, std::vector<Need>> all_blocked = blocked;
  for (const RankState& rank_state : states_)  // a rank that only tests may do anything, but it is not who is late
    if (rank_state.polled && rank_state.waits.empty() && !rank_state.ended && !rank_state.finalized)
      if (Needs all = needs(rank_state, *rank_state.polled); all && !all->empty())
        all_blocked.emplace(rank_state.rank, std::move(*all));
  if (mismatch(verdict)) return verdict;
  if (const auto ranks = that_cannot_move(blocked); !ranks.empty()) {
    stuck(verdict, ranks);
    verdict.certain = true;
  } else if (const auto maybe = that_cannot_move(all_blocked); !maybe.empty()) {
    stuck(verdict, maybe);
    verdict.cause = "polling";
    verdict.lines.push_back("this is so unless a rank that tests again and again does something else");
  } else {
    moving(verdict, all_blocked);
  }
  say_who_lacks_calls(verdict);
  return verdict;
}

}  // namespace

Verdict explain(const std::vector<RankState>& ranks) { return Explanation(ranks).verdict(); }
std::vector<std::string> groups(const std::vector<RankState>& ranks, std::size_t most) {
  return Explanation(ranks).groups(most);
}

std::string ranges(std::vector<int> ranks) {
  std::ranges::sort(ranks);
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", ranks[i]);
    if (last > i) text += fmt::format("{}{}", last == i + 1 ? ", " : "-", ranks[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace who_waits
