#include "verdict.hpp"

#include <multinode/base/text.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string_view>

namespace who_waits {

std::string size_of(std::uint64_t bytes) {
  for (const auto& [unit, name] :
       {std::pair<std::uint64_t, const char*>{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}})
    if (bytes >= unit && bytes % unit == 0) return fmt::format("{} {}", bytes / unit, name);
  return fmt::format("{} B", bytes);
}

std::string rank_text(const std::set<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + multinode::ranges(ranks, ", ");
}

namespace {

using Ranks = std::set<int>;

bool is(const Call& call, Role role) { return role_of(call.kind) == role; }
bool receives(const Call& call) { return is(call, Role::receive) || is(call, Role::both); }
// Whether a receive that is posted for this communicator, peer and tag takes a message with those.
bool takes(const Call& receive, std::uint64_t communicator, int peer, int tag) {
  const int from = receive.from(), wanted = receive.wanted_tag();
  return receives(receive) && receive.communicator == communicator && (from == any || from == peer) &&
         (wanted == any || wanted == tag);
}

bool gone(const RankState& rank) { return rank.ended || rank.finalized; }  // it gives nothing more to others
bool outside(const RankState& rank) { return !gone(rank) && (rank.waits.empty() || rank.other_thread); }
bool polls(const RankState& rank) { return !gone(rank) && rank.waits.empty() && rank.polled; }
// As its stack shows: otherwise such a rank seems to compute. A name that is recorded is another library's wrapper.
bool in_unrecorded_call(const RankState& rank) {
  const std::size_t at = rank.stack.find("MPI_");
  if (!rank.waits.empty() || rank.polled || at == std::string::npos) return false;
  const std::string name = rank.stack.substr(at, rank.stack.find(' ', at) - at);
  return std::ranges::none_of(calls, [&](const auto& call) { return name == call.name; });
}

// Must come true for a rank to move on, by one of these ranks.
struct Need {
  Ranks one_of;
  std::string why;  // what is missing
};
using Needs = std::optional<std::vector<Need>>;  // all of them; none: nothing is missing that a rank could give
using Blocked = std::map<int, std::vector<Need>>;
const Needs nothing = std::vector<Need>{};

class Explanation {
 public:
  explicit Explanation(std::vector<RankState> ranks) : states_(std::move(ranks)) {
    std::map<std::pair<std::uint64_t, int>, int> ranks_of_nccl;  // communicator and rank in it: the process's rank
    for (const RankState& state : states_) {
      by_rank_[state.rank] = &state;
      for (const CommunicatorState& one : state.communicators) {
        if (!members_[one.id].emplace(state.rank, &one).second) ambiguous_.insert(one.id);
        if (one.of_nccl) ranks_of_nccl[{one.id, one.rank}] = state.rank;
      }
    }
    const auto translate = [&](std::uint64_t id, std::int32_t& peer) {
      if (peer < 0 || !of_nccl(id)) return;
      const auto found = ranks_of_nccl.find({id, peer});
      peer = found == ranks_of_nccl.end() ? unknown : found->second;
    };
    for (RankState& state : states_) {
      for (Traffic& one : state.traffic) translate(one.communicator, one.peer);
      for (Wait& wait : state.waits) translate(wait.call.communicator, wait.call.peer);
    }
  }

  Verdict verdict() const {
    Verdict verdict;
    if (states_.size() > 1 &&
        std::ranges::all_of(states_, [](const RankState& rank) { return rank.world_size == 1; })) {
      verdict = {.cause = "separate", .certain = true};
      verdict.lines.push_back(
          fmt::format("each of the {} processes is alone: MPI says 1 process to each, as with an mpirun of another MPI",
                      states_.size()));
      return verdict;
    }
    if (mismatch(verdict)) return verdict;
    Blocked blocked, all_blocked;  // with those that only test: they may do anything, but they are not who is late
    for (const RankState& rank : states_) {
      if (Needs all = needs(rank); all && !all->empty())
        blocked.emplace(rank.rank, *all), all_blocked[rank.rank] = *all;
      if (!polls(rank)) continue;
      if (Needs all = needs(rank, *rank.polled); all && !all->empty()) all_blocked.emplace(rank.rank, *all);
    }
    if (const Blocked ranks = that_cannot_move(blocked); !ranks.empty()) {
      stuck(verdict, ranks);
      verdict.certain = true;
    } else if (const Blocked maybe = that_cannot_move(all_blocked); !maybe.empty()) {
      stuck(verdict, maybe);
      verdict.cause = "polling";
      verdict.lines.push_back("this is so unless a rank that tests again and again does something else");
    } else {
      moving(verdict, all_blocked);
    }
    say_who_lacks_calls(verdict);
    return verdict;
  }

  std::vector<std::string> groups(std::size_t most, bool with_peers = true) const {
    struct Group {
      Ranks ranks;
      double seconds = 0;
    };
    std::map<std::string, Group> found;
    for (const RankState& rank : states_) {
      const bool waits = !gone(rank) && !rank.waits.empty();
      const std::string text =
          waits && !with_peers ? std::string("in ") + name_of(rank.waits[0].call.kind) : doing(rank);
      found[text].ranks.insert(rank.rank);
      found[text].seconds = std::max(found[text].seconds, waits ? rank.waits[0].seconds : rank.quiet);
    }
    if (found.size() > most && with_peers) return groups(most, false);
    std::vector<std::pair<std::string, Group>> sorted(found.begin(), found.end());
    std::ranges::sort(sorted, {}, [](const auto& one) {  // the largest first
      return std::pair(-static_cast<long>(one.second.ranks.size()), *one.second.ranks.begin());
    });
    std::vector<std::string> lines;
    for (const auto& [text, group] : sorted) {
      const RankState& first = *state(*group.ranks.begin());
      lines.push_back(group.ranks.size() == 1
                          ? fmt::format("rank {} {}, for {:.0f} s   ({}, pid {})", first.rank, text, group.seconds,
                                        first.host, first.pid)
                          : fmt::format("{} ranks {}, for up to {:.0f} s   (ranks {})", group.ranks.size(), text,
                                        group.seconds, multinode::ranges(group.ranks, ", ")));
    }
    if (lines.size() > most) {
      lines.resize(most);
      lines.push_back(fmt::format("... and {} more groups", sorted.size() - most));
    }
    return lines;
  }

 private:
  const RankState* state(int rank) const {
    const auto found = by_rank_.find(rank);
    return found == by_rank_.end() ? nullptr : found->second;
  }
  bool of_nccl(std::uint64_t id) const {
    const auto found = members_.find(id);
    return found != members_.end() && found->second.begin()->second->of_nccl;
  }
  bool uncertain(std::uint64_t id) const {
    return (id & uncertain_id) || ambiguous_.contains(id) || !members_.contains(id);
  }
  static bool certain(const RankState* rank) {  // its record says all that it has done
    return rank && !rank->incomplete && !rank->unknown_calls;
  }

  std::string communicator(std::uint64_t id) const {
    if (id == world_id) return "MPI_COMM_WORLD";
    const auto found = members_.find(id);
    if (found == members_.end()) return "a communicator";
    Ranks ranks;
    for (const auto& [rank, member] : found->second) ranks.insert(rank);
    return (of_nccl(id) ? "NCCL's communicator of " : "the communicator of ") + rank_text(ranks);
  }

  std::string describe(const Call& call) const {
    const auto end = [](int rank, int tag) {
      return (rank == any ? "any rank"
              : rank < 0  ? "an unknown rank"
                          : fmt::format("rank {}", rank)) +
             (tag == any ? ", any tag" : fmt::format(", tag {}", tag));
    };
    std::string text = name_of(call.kind);
    if (is(call, Role::collective)) {
      if (call.communicator == start_id || call.communicator == end_id || call.sequence == 0) return text;
      text += fmt::format(", call {} of {}", call.sequence, communicator(call.communicator));
      if (call.root >= 0) text += fmt::format(", root {}", call.root);
      return call.bytes ? text + ", " + size_of(call.bytes) : text;
    }
    if (is(call, Role::send) || is(call, Role::both)) text += " to " + end(call.peer, call.tag);
    if (is(call, Role::send)) text += ", " + size_of(call.bytes);
    if (is(call, Role::both)) text += ", and";
    if (receives(call)) text += " from " + end(call.from(), call.wanted_tag());
    return call.communicator <= world_id ? text : text + " in " + communicator(call.communicator);
  }

  // What a rank does, after "rank 3 is": "in MPI_Allreduce, call 57 of MPI_COMM_WORLD, 4 MiB".
  std::string doing(const RankState& rank) const {
    if (rank.ended && *rank.ended > 128) return fmt::format("gone: killed by signal {}", *rank.ended - 128);
    if (rank.ended) return fmt::format("gone: exit status {}", *rank.ended);
    if (rank.finalized) return "past MPI_Finalize";
    if (!rank.waits.empty()) {
      const Wait& wait = rank.waits.front();
      std::string text = "in " + describe(wait.call);
      if (!wait.requests.empty()) text += " for " + describe(wait.requests.front());
      return text + (wait.requests.size() > 1 ? fmt::format(" and {} more", wait.requests.size() - 1) : "");
    }
    if (rank.polled) return "testing again and again for " + describe(*rank.polled);
    if (in_unrecorded_call(rank)) return "in a call of MPI that is not recorded";
    const char* const process = rank.process == 'R'   ? "computing"
                                : rank.process == 'D' ? "in the kernel (state D), as for a file,"
                                : rank.process == 'T' ? "stopped by a signal"
                                                      : "sleeping";
    return fmt::format("{} outside of MPI and NCCL{}", process, rank.recorded ? "" : ", which it has not called yet");
  }
  std::string doing(int rank) const { return state(rank) ? doing(*state(rank)) : "unknown"; }

  std::uint64_t count(int rank, std::uint64_t communicator, int peer, int tag, std::uint64_t Traffic::*what) const {
    std::uint64_t sum = 0;
    if (const RankState* const found = state(rank))
      for (const Traffic& one : found->traffic)
        if (one.communicator == communicator && one.peer == peer && (tag == any || one.tag == tag)) sum += one.*what;
    return sum;
  }

  Needs receive_needs(const RankState& rank, const Call& call) const {
    const int from = call.from(), tag = call.wanted_tag();
    if (from == no_rank) return nothing;
    if (from == unknown || uncertain(call.communicator) || !certain(&rank)) return {};
    const auto& members = members_.at(call.communicator);
    Ranks senders;
    for (const auto& [sender, one] : members)
      if (from == any ? sender != rank.rank : sender == from) senders.insert(sender);
    const auto size = static_cast<std::size_t>(members.begin()->second->size);
    if (senders.empty() || (from == any && members.size() < size)) return {};  // a rank has not made it yet
    std::uint64_t sent = 0, received = 0;
    for (const int sender : senders) {
      if (!certain(state(sender))) return {};
      sent += count(sender, call.communicator, rank.rank, tag, &Traffic::sent);
      received += count(rank.rank, call.communicator, sender, tag, &Traffic::received);
    }
    for (const Call& other : rank.outstanding)  // receives that were posted before this one get the earlier messages
      received += (call.sequence == 0 || other.sequence < call.sequence) && std::ranges::any_of(senders, [&](int one) {
                    return takes(other, call.communicator, one, tag == any ? other.tag : tag);
                  });
    if (sent > received) return {};
    return Needs{{{std::move(senders),
                   fmt::format("{} to {}", from == any ? "no rank sends" : fmt::format("rank {} does not send", from),
                               rank.rank)}}};
  }

  Needs send_needs(const RankState& rank, const Call& call) const {
    const std::string_view name = name_of(call.kind);
    if (call.peer == no_rank || name.starts_with("MPI_Bsend") || name == "MPI_Ibsend") return nothing;
    const RankState* const peer = state(call.peer);
    if (!certain(peer) || !certain(&rank) || uncertain(call.communicator)) return {};
    const auto takes_it = [&](const Call& other) { return takes(other, call.communicator, rank.rank, call.tag); };
    const auto posted =
        std::ranges::count_if(peer->waits, takes_it, &Wait::call) + std::ranges::count_if(peer->outstanding, takes_it);
    if (count(rank.rank, call.communicator, call.peer, call.tag, &Traffic::sent) <=
        count(call.peer, call.communicator, rank.rank, call.tag, &Traffic::received) +
            static_cast<std::uint64_t>(posted))
      return {};
    return Needs{{{{call.peer}, fmt::format("rank {} does not receive from {}", call.peer, rank.rank)}}};
  }

  Needs collective_needs(const Call& call) const {
    Ranks missing;
    const bool nccl = std::string_view(name_of(call.kind)).starts_with("ncclCommInitRank");
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
      if (uncertain(call.communicator)) return {};
      for (const auto& [rank, member] : members_.at(call.communicator))
        if (member->collectives < call.sequence) missing.insert(rank);
    }
    std::vector<Need> all;
    for (const int rank : missing)
      all.push_back({{rank}, fmt::format("rank {} is not in {}", rank, name_of(call.kind))});
    return all.empty() ? Needs() : all;
  }

  // What a rank has queued on its GPUs and others have not.
  Needs device_needs(const RankState& rank) const {
    std::vector<Need> all;
    for (const CommunicatorState& one : rank.communicators) {
      if (!one.of_nccl || uncertain(one.id)) continue;
      for (const auto& [other, member] : members_.at(one.id))
        if (member->collectives < one.collectives)
          all.push_back({{other},
                         fmt::format("rank {} has made {} calls of collectives of {}, rank {} {}", other,
                                     member->collectives, communicator(one.id), rank.rank, one.collectives)});
      for (const Traffic& traffic : rank.traffic) {
        if (traffic.communicator != one.id || !state(traffic.peer)) continue;
        const auto lacks = [&](const char* what, std::uint64_t here, std::uint64_t Traffic::*there) {
          if (here > count(traffic.peer, one.id, rank.rank, any, there))
            all.push_back({{traffic.peer}, fmt::format("rank {} has not called {} {}", traffic.peer, what, rank.rank)});
        };
        lacks("ncclSend to", traffic.received, &Traffic::sent);
        lacks("ncclRecv from", traffic.sent, &Traffic::received);
      }
    }
    return all.empty() ? Needs() : all;
  }

  Needs needs(const RankState& rank, const Call& call) const {
    if (is(call, Role::collective)) return collective_needs(call);
    if (is(call, Role::device) || std::string_view(name_of(call.kind)).starts_with("nccl")) return device_needs(rank);
    if (is(call, Role::send)) return send_needs(rank, call);
    if (is(call, Role::receive)) return receive_needs(rank, call);
    if (!is(call, Role::both)) return {};
    Needs out = send_needs(rank, call), in = receive_needs(rank, call);
    if (!out || out->empty()) return in;
    if (in) out->insert(out->end(), in->begin(), in->end());
    return out;
  }

  Needs needs(const RankState& rank, const Wait& wait) const {
    const bool for_any = is(wait.call, Role::wait_any);
    if (!for_any && !is(wait.call, Role::wait_all)) return needs(rank, wait.call);
    if (!wait.all_requests) return {};
    std::vector<Need> all;
    for (const Call& request : wait.requests) {
      const Needs one = needs(rank, request);
      if (for_any && !one) return {};
      if (one) all.insert(all.end(), one->begin(), one->end());
    }
    if (all.empty()) return {};
    if (for_any) {  // any of them may move it
      for (const Need& one : all) all[0].one_of.insert(one.one_of.begin(), one.one_of.end());
      all.resize(1);
    }
    return all;
  }

  Needs needs(const RankState& rank) const {
    if (gone(rank)) return nothing;
    if (outside(rank) || rank.incomplete) return {};
    std::vector<Need> all;
    for (const Wait& wait : rank.waits) {
      const Needs one = needs(rank, wait);
      if (!one) return {};
      all.insert(all.end(), one->begin(), one->end());
    }
    return all;
  }

  // Collectives that differ between the ranks of a communicator: the first in their histories. If none is there, how
  // many they have made of each kind until the last call that all have reached.
  bool mismatch(Verdict& verdict) const {
    for (const auto& [id, members] : members_) {
      if (uncertain(id)) continue;
      std::uint64_t reached = UINT64_MAX;
      for (const auto& [rank, member] : members) reached = std::min(reached, member->collectives);
      std::map<std::uint64_t, std::map<std::tuple<Kind, int, std::uint64_t>, Ranks>> in_history;
      std::map<std::vector<std::uint32_t>, Ranks> numbers;
      for (const auto& [rank, member] : members) {
        for (const Call& call : member->history)
          in_history[call.sequence][{call.kind, call.root, call.bytes}].insert(rank);
        std::vector<std::uint32_t> of_kind = member->of_kind;
        if (of_kind.empty() || member->collectives - reached > member->history.size()) continue;  // it is too far ahead
        for (const Call& call : member->history)
          if (call.sequence > reached) --of_kind.at(static_cast<std::size_t>(call.kind));
        numbers[of_kind].insert(rank);
      }
      std::vector<std::pair<Ranks, std::string>> groups;
      std::string what = "the ranks make different calls";
      const auto first = std::ranges::find_if(in_history, [](const auto& one) { return one.second.size() > 1; });
      if (first != in_history.end()) {
        for (const auto& [call, ranks] : first->second) {
          const auto& [kind, root, bytes] = call;
          groups.emplace_back(
              ranks,
              describe({.kind = kind, .root = root, .communicator = id, .sequence = first->first, .bytes = bytes}));
        }
      } else {
        what = fmt::format("before call {}, the ranks have made different calls", reached);
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
      verdict.certain = std::ranges::none_of(states_, outside) && std::ranges::none_of(states_, &RankState::incomplete);
      verdict.lines.push_back(fmt::format("{} in {}:", what, communicator(id)));
      for (std::size_t i = 0; i < groups.size() && i < 4; ++i)
        verdict.lines.push_back(fmt::format("  {}: {}", rank_text(groups[i].first), groups[i].second));
      verdict.culprits.assign(groups[0].first.begin(), groups[0].first.end());
      return true;
    }
    return false;
  }

  // Messages of `from` that `to` has not received and that do not fit its receive.
  std::string other_messages(int from, int to, const Call& call) const {
    if (!state(from) || !receives(call)) return "";
    for (const Traffic& one : state(from)->traffic) {
      if (one.peer != to || one.sent <= count(to, one.communicator, from, one.tag, &Traffic::received)) continue;
      const int wanted = call.wanted_tag();
      if (one.communicator != call.communicator)
        return fmt::format("; it has sent one in another communicator, {}", communicator(one.communicator));
      if (wanted != any && one.tag != wanted)
        return fmt::format("; it has sent one with tag {}, and {} wants tag {}", one.tag, to, wanted);
    }
    return "";
  }

  void say_who_lacks_calls(Verdict& verdict) const {
    for (const auto& [id, members] : members_) {
      std::map<std::uint64_t, Ranks> by_count;
      for (const auto& [rank, member] : members) by_count[member->collectives].insert(rank);
      const auto& [least, late] = *by_count.begin();
      const auto& [most, others] = *by_count.rbegin();
      if (by_count.size() < 2 || uncertain(id) || late.size() > 8) continue;
      std::string name = "collectives";
      for (const Call& call : members.at(*others.begin())->history)
        if (call.sequence == least + 1) name = name_of(call.kind);
      verdict.lines.push_back(fmt::format("first difference: {} {} made {} calls in {}, {} {}: call {} is {}",
                                          rank_text(late), late.size() == 1 ? "has" : "have", least, communicator(id),
                                          by_count.size() == 2 || others.size() > 8 ? "the others" : rank_text(others),
                                          most, least + 1, name));
    }
  }

  // Of the ranks that wait, those whose every way on depends on ranks that wait like them, or have ended.
  Blocked that_cannot_move(Blocked blocked) const {
    const auto moves = [&](int rank) { return !blocked.contains(rank) && !(state(rank) && gone(*state(rank))); };
    for (std::size_t before = 0; before != blocked.size();) {
      before = blocked.size();
      for (auto it = blocked.begin(); it != blocked.end();) {
        std::erase_if(it->second, [&](const Need& need) { return std::ranges::any_of(need.one_of, moves); });
        it = it->second.empty() ? blocked.erase(it) : std::next(it);
      }
    }
    return blocked;
  }

  // Explains the ranks that cannot move: a rank that has ended, a cycle, or both.
  void stuck(Verdict& verdict, const Blocked& blocked) const {
    // Follow, from the first stuck rank, the first clause that only stuck or ended ranks could fulfil.
    std::vector<int> path;
    int at = blocked.begin()->first;
    while (std::ranges::find(path, at) == path.end()) {
      path.push_back(at);
      const auto found = blocked.find(at);
      if (found == blocked.end()) break;  // it has ended
      at = *found->second.front().one_of.begin();
    }
    const bool cycle = blocked.contains(path.back());
    if (cycle) path.erase(path.begin(), std::ranges::find(path, at));
    verdict.cause = cycle ? "deadlock" : "ended";
    verdict.culprits = cycle ? path : std::vector{path.back()};
    const std::size_t links = cycle ? path.size() : path.size() - 1, shown = std::min<std::size_t>(links, 6);
    std::vector<std::string> waits;
    for (std::size_t i = 0; i < shown; ++i) {
      const RankState& rank = *state(path[i]);
      const int next = path[(i + 1) % path.size()];
      waits.push_back(fmt::format("{} waits for {}", rank.rank, next));
      const Call& call = rank.waits.empty()                        ? *rank.polled
                         : rank.waits.front().requests.size() == 1 ? rank.waits.front().requests.front()
                                                                   : rank.waits.front().call;
      verdict.lines.push_back(fmt::format("{}: rank {} is {}{}", blocked.at(rank.rank).front().why, next, doing(next),
                                          other_messages(next, rank.rank, call)));
    }
    if (cycle)
      verdict.lines.insert(verdict.lines.begin(),
                           fmt::format("{}{}: deadlock", fmt::join(waits, ", "), shown < links ? " ..." : ""));
  }

  bool says_what_it_waits_for(const RankState& rank) const {
    const auto known = [&](const Call& call) {
      return is(call, Role::device) || std::string_view(name_of(call.kind)).starts_with("nccl") ||
             (!is(call, Role::other) && call.peer != unknown && call.receive_peer != unknown &&
              (call.communicator == start_id || call.communicator == end_id || !uncertain(call.communicator)));
    };
    return certain(&rank) && std::ranges::all_of(rank.waits, [&](const Wait& wait) {
             if (!is(wait.call, Role::wait_all) && !is(wait.call, Role::wait_any)) return known(wait.call);
             return wait.all_requests && !wait.requests.empty() && std::ranges::all_of(wait.requests, known);
           });
  }

  // Nobody is stuck for certain: who makes the others wait?
  void moving(Verdict& verdict, const Blocked& blocked) const {
    std::map<int, int> waiting_for;  // rank that is not blocked, how many blocked ranks wait for it directly
    for (const auto& [rank, needs] : blocked)
      for (const Need& need : needs)
        for (const int other : need.one_of)
          if (!blocked.contains(other)) ++waiting_for[other];
    if (blocked.empty())
      for (const RankState& rank : states_)
        if (outside(rank)) waiting_for[rank.rank] = 0;
    const bool waits = std::ranges::any_of(states_, [](const RankState& rank) { return !rank.waits.empty(); });
    if (waiting_for.empty()) {
      for (const RankState& rank : states_) {
        if (!rank.ended || !waits) continue;
        verdict.culprits.push_back(rank.rank);
        verdict.lines.push_back(fmt::format("rank {} is {}; another may wait for it", rank.rank, doing(rank)));
      }
      if (!verdict.culprits.empty()) return void(verdict.cause = "ended");
      for (const RankState& rank : states_) {
        if (gone(rank) || says_what_it_waits_for(rank)) continue;
        verdict.culprits.push_back(rank.rank);
        verdict.lines.push_back(
            fmt::format("what rank {} waits for is not recorded: it is {}", rank.rank, doing(rank)));
      }
      if (!verdict.culprits.empty()) return void(verdict.cause = "cannot tell");
      verdict.cause = waits ? "network" : "cannot tell";
      verdict.lines.push_back(
          waits ? "every message and collective that a rank waits for has been started by its peers: the network, the "
                  "library or a GPU is slow or broken"
                : "no rank waits in a call that is recorded");
      return;
    }
    std::vector<int>& late = verdict.culprits;
    for (const auto& [rank, number] : waiting_for) late.push_back(rank);
    std::ranges::stable_sort(
        late, {}, [&](int rank) { return std::pair(in_unrecorded_call(*state(rank)), -waiting_for.at(rank)); });
    verdict.cause = "late";
    for (std::size_t i = 0; i < late.size() && i < 6; ++i) {
      const RankState& rank = *state(late[i]);
      std::string text = fmt::format("rank {} ({}, pid {}) is {} for {:.0f} s", rank.rank, rank.host, rank.pid,
                                     doing(rank), rank.quiet);
      if (rank.waits.empty() && !rank.polled && rank.process == 'R' && !in_unrecorded_call(rank))
        text += ": computing, not waiting";
      if (rank.incomplete) text += "; a call of it has failed, or it has more operations under way than are recorded";
      if (rank.unknown_calls) text += "; it makes calls that are not recorded";
      if (!rank.waits.empty() && rank.other_thread) text += "; another of its threads is outside of MPI and NCCL";
      verdict.lines.push_back(text);
      for (const Wait& wait : rank.waits)
        if (const Needs all = needs(rank, wait); all && !all->empty()) {
          const Need& need = all->front();
          verdict.lines.push_back(
              fmt::format("  {}: rank {} is {}", need.why, *need.one_of.begin(), doing(*need.one_of.begin())));
        }
    }
    if (late.size() > 6) verdict.lines.push_back(fmt::format("and {} more ranks", late.size() - 6));
  }

  std::vector<RankState> states_;
  std::map<int, const RankState*> by_rank_;
  std::set<std::uint64_t> ambiguous_;  // communicators with several ranks in one process
  std::map<std::uint64_t, std::map<int, const CommunicatorState*>> members_;
};

}  // namespace

Verdict explain(const std::vector<RankState>& ranks) { return Explanation(ranks).verdict(); }
std::vector<std::string> groups(const std::vector<RankState>& ranks, std::size_t most) {
  return Explanation(ranks).groups(most);
}

}  // namespace who_waits
