#include "verdict.hpp"

#include <multinode/base/text.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
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

template <class... A>
void say(Verdict& verdict, fmt::format_string<A...> line, A&&... a) {
  verdict.lines.push_back(fmt::format(line, std::forward<A>(a)...));
}

bool is(const Call& call, Role role) { return role_of(call.kind) == role; }
bool is_named(const Call& call, std::string_view part) {
  return std::string_view(name_of(call.kind)).find(part) != std::string::npos;
}
bool in_order(const Call& call) { return is(call, Role::collective) || is(call, Role::busy); }
bool of_device(const Call& call) { return is(call, Role::device) || is_named(call, "nccl"); }
bool receives(const Call& call) { return is(call, Role::receive) || is(call, Role::both); }
// Whether a receive that is posted for this communicator, peer and tag takes a message with those.
bool takes(const Call& receive, std::uint64_t communicator, int peer, int tag) {
  const int from = receive.from(), wanted = receive.wanted_tag();
  return receives(receive) && !is_named(receive, "Mprobe") && !is_named(receive, "Improbe") &&
         receive.communicator == communicator && (from == any || from == peer) && (wanted == any || wanted == tag);
}

bool gone(const RankState& rank) { return rank.ended || rank.finalized; }  // it gives nothing more to others
bool outside(const RankState& rank) { return !gone(rank) && (rank.waits.empty() || rank.other_thread); }
bool polls(const RankState& rank) { return !gone(rank) && rank.waits.empty() && rank.polled; }
// Whether it is in this collective, or waits for it.
bool is_in(const RankState& rank, std::uint64_t communicator, std::uint64_t sequence) {
  const auto same = [&](const Call& call) {
    return call.communicator == communicator && call.sequence == sequence && in_order(call);
  };
  return !gone(rank) && std::ranges::any_of(rank.waits, [&](const Wait& wait) {
    return same(wait.call) || std::ranges::any_of(wait.requests, same);
  });
}
// It may call the program, and so do anything: the functions of attributes.
bool calls_back(const RankState& rank, const Call& call) {
  return rank.callbacks &&
         (is(call, Role::other) || is_named(call, "MPI_Finalize") || is_named(call, "dup") || is_named(call, "free"));
}
bool of_groups(const Call& call) {
  return call.kind == Kind::MPI_Win_start || call.kind == Kind::MPI_Win_complete || call.kind == Kind::MPI_Win_wait;
}
// In such a call, a rank may still make progress.
bool is_busy(const RankState& rank) {
  return std::ranges::any_of(rank.waits, [&](const Wait& wait) {
    return is(wait.call, Role::busy) || (is(wait.call, Role::other) && !of_groups(wait.call));
  });
}
// Without a stack, nothing is known of a rank that is in no recorded call.
bool is_unknown(const RankState& rank) {
  return !gone(rank) && rank.waits.empty() && !rank.polled && rank.stack.empty() && rank.recorded &&
         rank.process != 'T';
}
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
  Call call{};      // for which
};
using Needs = std::optional<std::vector<Need>>;  // all of them; none: nothing is missing that a rank could give
using Blocked = std::map<int, std::vector<Need>>;
template <class... A>
Need need_of(Ranks one_of, fmt::format_string<A...> why, A&&... a) {
  return {std::move(one_of), fmt::format(why, std::forward<A>(a)...)};
}
constexpr std::size_t most_communicators = std::tuple_size_v<decltype(Record::communicators)>;
const Needs nothing = std::vector<Need>{};

class Explanation {
 public:
  explicit Explanation(std::vector<RankState> ranks) : states_(std::move(ranks)) {
    std::map<std::pair<std::uint64_t, int>, int> ranks_of_nccl;  // communicator and rank in it: the process's rank
    for (const RankState& state : states_) {
      by_rank_[state.rank] = &state;
      for (const CommunicatorState& one : state.communicators) {
        if (!members_[one.id].emplace(state.rank, &one).second) ambiguous_.insert(one.id);
        if (one.sort == Sort::nccl) ranks_of_nccl[{one.id, one.rank}] = state.rank;
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
      say(verdict, "each of the {} processes is alone: MPI says 1 process to each, as with an mpirun of another MPI",
          states_.size());
      return verdict;
    }
    const int size = std::ranges::max(states_, {}, &RankState::world_size).world_size;
    if (size > static_cast<int>(states_.size())) {
      verdict.cause = "part";
      say(verdict,
          "MPI has {} processes, and who_waits sees {} of them: each rank runs it, mpirun -n {} who_waits -- ./program",
          size, states_.size(), size);
      return verdict;
    }
    Blocked blocked, all_blocked;  // with those that may do anything, but are not late: they only test, or are busy
    for (const RankState& rank : states_) {
      const Needs all = polls(rank) ? needs(rank, *rank.polled) : needs(rank);
      if (!all || all->empty()) continue;
      all_blocked[rank.rank] = *all;
      if (!polls(rank) && !is_busy(rank)) blocked[rank.rank] = *all;
    }
    for (const auto& [rank, all] : all_blocked) verdict.waits_for[rank] = *all.front().one_of.begin();
    if (two_threads(verdict) || mismatch(verdict, blocked)) return verdict;
    if (const Blocked ranks = that_cannot_move(blocked); !ranks.empty()) {
      stuck(verdict, ranks);
      verdict.certain = true;
      for (const auto& [rank, all] : ranks) verdict.stuck.insert(rank);
      old_mismatch(verdict, false);
    } else if (pieces_differ(verdict)) {
    } else if (const Blocked maybe = that_cannot_move(all_blocked); !maybe.empty()) {
      stuck(verdict, maybe);
      std::string_view reason = "a rank that tests again and again does something else";
      const auto tests = [&](const auto& one) { return polls(*state(one.first)); };
      if (std::ranges::any_of(maybe, tests))
        verdict.cause = "polling";
      else
        reason = "a rank still makes progress inside its call for a file or window";
      say(verdict, "this is so unless {}", reason);
    } else {
      moving(verdict, all_blocked);
      const bool in_calls = std::ranges::none_of(verdict.culprits, [&](int rank) { return outside(*state(rank)); });
      const bool unclear = verdict.cause == "started" || (verdict.cause == "late" && in_calls) ||
                           (verdict.cause == "ended" && all_blocked.empty());
      if (Verdict old; unclear && (old_mismatch(old, verdict.cause == "started"), !old.cause.empty())) verdict = old;
    }
    if (std::ranges::any_of(states_, &RankState::many_tags))
      say(verdict, "more pairs of peer and tag than who_waits can count: it counts further tags of a peer together");
    say_who_lacks_calls(verdict);
    return verdict;
  }

  std::map<std::uint64_t, std::string> names() const {
    std::map<std::uint64_t, std::string> all;
    for (const auto& [id, members] : members_) all[id] = communicator(id);
    return all;
  }

  std::vector<std::string> groups(std::size_t most, bool with_peers = true) const {
    struct Group {
      Ranks ranks;
      double seconds = 0;
    };
    std::map<std::string, Group> found;
    for (const RankState& rank : states_) {
      const bool waits = !gone(rank) && !rank.waits.empty();
      std::string text = waits && !with_peers ? std::string("in ") + name_of(rank.waits[0].call.kind) : doing(rank);
      if (waits && rank.waits[0].place.find(':') != std::string::npos) text += " at " + rank.waits[0].place;
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
    return found != members_.end() && found->second.begin()->second->sort == Sort::nccl;
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
    std::string text = members_text(found->second);
    // Two must not have one name: they are numbered as their first member has made them.
    int before = 0, alike = 0;
    for (const auto& [other, members] : members_) {
      if (other == world_id || members_text(members) != text) continue;
      ++alike;
      before += members.begin()->second->made < found->second.begin()->second->made;
    }
    return alike > 1 ? fmt::format("{}, number {}", text, before + 1) : text;
  }

  using Members = std::map<int, const CommunicatorState*>;
  static std::string members_text(const Members& members) {
    Ranks ranks, others;
    for (const auto& [rank, member] : members) (member->side == 1 ? others : ranks).insert(rank);
    constexpr const char* sorts[] = {"the communicator", "NCCL's communicator", "the communicator with the spawned",
                                     "the window", "the file"};
    const CommunicatorState& first = *members.begin()->second;
    std::string sort = sorts[static_cast<std::size_t>(first.sort)];
    const auto named = std::ranges::find_if(members, [](const auto& one) { return !one.second->name.empty(); });
    if (named != members.end())
      sort += fmt::format(" '{}'", named->second->name);
    else if (first.place.find(':') != std::string::npos)
      sort += " made at " + first.place;
    if (ranks.empty() || others.empty())
      return fmt::format("{} of {}", sort, rank_text(ranks.empty() ? others : ranks));
    return fmt::format("{} between {} and {}", sort, rank_text(ranks), rank_text(others));
  }

  std::string describe(const Call& call) const {
    const auto end = [](int rank, int tag) {
      return (rank == any ? "any rank"
              : rank < 0  ? "an unknown rank"
                          : fmt::format("rank {}", rank)) +
             (tag == any ? ", any tag" : fmt::format(", tag {}", tag));
    };
    std::string text = name_of(call.kind);
    if (is(call, Role::other)) {
      if (call.peer >= 0) text += fmt::format(" of rank {}", call.peer);
      const bool known = call.communicator != world_id && members_.contains(call.communicator);
      return known ? text + " in " + communicator(call.communicator) : text;
    }
    if (call.kind == Kind::MPI_Comm_create_group) return fmt::format("{}, tag {}", text, call.tag);
    if (in_order(call)) {
      if (call.communicator == start_id || call.communicator == end_id || call.sequence == 0) return text;
      text += fmt::format(", call {} of {}", call.sequence, communicator(call.communicator));
      if (call.root >= 0 && !is_named(call, "create")) text += fmt::format(", root {}", call.root);
      if (call.peer >= 0) text += fmt::format(", remote leader rank {}, tag {}", call.peer, call.tag);
      return call.bytes ? text + ", " + size_of(call.bytes) : text;
    }
    if (is(call, Role::send) || is(call, Role::both)) text += " to " + end(call.peer, call.tag);
    if (is(call, Role::send) && call.bytes != unknown_size) text += ", " + size_of(call.bytes);
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
      std::string text = rank.process == 'T' ? "stopped by a signal in " : "in ";
      text += wait.some ? name_of(wait.call.kind) : describe(wait.call);
      if (!wait.requests.empty()) text += " for " + describe(wait.requests.front());
      if (wait.requests.size() > 1) text += fmt::format(" and {} more", wait.requests.size() - 1);
      for (std::size_t i = 1; i < rank.waits.size(); ++i) text += ", another thread in " + describe(rank.waits[i].call);
      return text;
    }
    if (rank.polled)
      return (is(*rank.polled, Role::other) ? "repeating " : "testing again and again for ") + describe(*rank.polled);
    if (in_unrecorded_call(rank)) return "in a call of MPI that is not recorded";
    if (is_unknown(rank))
      return fmt::format(
          "in no recorded call, and without its stack (gdb or eu-stack) it cannot be told whether it computes (state "
          "{})",
          rank.process);
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
      if (from == any || sender == from) senders.insert(sender);
    const auto size = static_cast<std::size_t>(members.begin()->second->size);
    if (senders.empty() || (from == any && members.size() < size)) return {};  // a rank has not made it yet
    std::uint64_t sent = 0, received = 0;
    for (const int sender : senders) {
      if (!certain(state(sender))) return {};
      const int counted = rank.many_tags || state(sender)->many_tags ? any : tag;
      sent += count(sender, call.communicator, rank.rank, counted, &Traffic::sent);
      received += count(rank.rank, call.communicator, sender, counted, &Traffic::received);
    }
    for (const Call& other : rank.outstanding)  // receives that were posted before this one get the earlier messages
      received += (call.sequence == 0 || other.sequence < call.sequence) && std::ranges::any_of(senders, [&](int one) {
                    return takes(other, call.communicator, one, tag == any ? other.tag : tag);
                  });
    if (sent > received) return {};
    const auto is_waited_for = [&](const Call& other) {
      return other.sequence && std::ranges::any_of(rank.waits, [&](const Wait& wait) {
               return std::ranges::count(wait.requests, other.sequence, &Call::sequence);
             });
    };
    for (const Call& other : rank.outstanding)
      if (sent > 0 && from >= 0 && receives(other) && !is_waited_for(other) &&
          (call.sequence == 0 || other.sequence < call.sequence) && other.communicator == call.communicator &&
          (other.from() == from || other.from() == any) && (other.tag == tag || other.tag == any || tag == any))
        return Needs{
            {need_of(senders, "rank {} has sent such a message, rank {} took it with its {}, and waits for another one",
                     from, rank.rank, describe(other))}};
    const auto of = [&](int sender, std::uint64_t Traffic::*what) {
      return count(rank.rank, call.communicator, sender, tag, what);
    };
    if (from >= 0) {
      std::string why = fmt::format("rank {} does not send to {}", from, rank.rank);
      if (const std::uint64_t by_any = of(from, &Traffic::by_any)) {
        why += fmt::format(", which took {} of its {} messages by receives from any rank", by_any, received);
        for (const auto& [other, member] : members)
          if (count(other, call.communicator, rank.rank, tag, &Traffic::sent) > of(other, &Traffic::received))
            why += fmt::format(", and has not received one of rank {}", other);
      }
      return Needs{{need_of(senders, "{}", why)}};
    }
    std::map<std::uint64_t, Ranks, std::greater<>> numbers;
    for (const int sender : senders) numbers[of(sender, &Traffic::received)].insert(sender);
    if (senders.size() > 1 && rank.waits.size() <= 1) senders.erase(rank.rank);
    std::vector<std::string> came;
    for (const auto& [number, ranks] : numbers)
      if (number > 0)
        came.push_back(fmt::format("{} from {}{}", number, ranks.size() > 1 ? "each of " : "", rank_text(ranks)));
    const std::string which = came.empty() ? "" : fmt::format(", which has received {}", fmt::join(came, ", "));
    return Needs{{need_of(senders, "no rank sends to {}{}", rank.rank, which)}};
  }

  Needs send_needs(const RankState& rank, const Call& call) const {
    const std::string_view name = name_of(call.kind);
    if (call.peer == no_rank || name.starts_with("MPI_Bsend") || name == "MPI_Ibsend") return nothing;
    const RankState* const peer = state(call.peer);
    if (rank.many_tags || (peer && peer->many_tags)) return {};
    if (!certain(peer) || !certain(&rank) || uncertain(call.communicator)) return {};
    const auto takes_it = [&](const Call& other) { return takes(other, call.communicator, rank.rank, call.tag); };
    const auto posted =
        std::ranges::count_if(peer->waits, takes_it, &Wait::call) + std::ranges::count_if(peer->outstanding, takes_it);
    for (Call one : peer->outstanding)
      if (is_named(one, "probe") && (one.kind = Kind::MPI_Recv, takes_it(one)))
        return Needs{{need_of({call.peer}, "rank {} has matched it with MPI_Mprobe, but not received it", call.peer)}};
    if (count(rank.rank, call.communicator, call.peer, call.tag, &Traffic::sent) <=
        count(call.peer, call.communicator, rank.rank, call.tag, &Traffic::received) +
            static_cast<std::uint64_t>(posted))
      return {};
    return Needs{{need_of({call.peer}, "rank {} does not receive from {}", call.peer, rank.rank)}};
  }

  // The leaders of MPI_Intercomm_create wait for each other, and the others for theirs.
  Needs leader_needs(const RankState& rank, const Call& call) const {
    const auto calls_of = [&](int from, int to) { return count(from, leaders_id, to, call.tag, &Traffic::sent); };
    if (call.peer >= 0 && state(call.peer) && calls_of(call.peer, rank.rank) < calls_of(rank.rank, call.peer))
      return Needs{{need_of({call.peer}, "rank {} is not in MPI_Intercomm_create with remote leader {}, tag {}",
                            call.peer, rank.rank, call.tag)}};
    if (call.peer == no_rank)
      for (const auto& [leader, member] : members_.at(call.communicator))
        if (member->rank == call.root && is_in(*state(leader), call.communicator, call.sequence))
          return Needs{{need_of({leader}, "rank {}, its leader, is still in MPI_Intercomm_create", leader)}};
    return {};
  }

  // The ranks from which a rank expects something in this call, and how many bytes. nullopt: unknown.
  using Expected = std::optional<std::map<int, std::uint64_t>>;
  static Expected pieces(const RankState& rank, const Call& call, bool from) {
    if (rank.pieces_of != call.communicator || rank.pieces_sequence != call.sequence) return {};
    std::map<int, std::uint64_t> all;
    for (std::size_t i = from ? 0 : rank.pieces_from; i < (from ? rank.pieces_from : rank.pieces.size()); ++i)
      all[static_cast<int>(rank.pieces[i] >> 40)] += rank.pieces[i] & ((std::uint64_t{1} << 40) - 1);
    return all;
  }

  // Sizes that do not fit, of a collective that all have reached and one is still in.
  bool pieces_differ(Verdict& verdict) const {
    for (const RankState& rank : states_)
      for (const Wait& wait : rank.waits) {
        const Call& call = wait.requests.size() == 1 ? wait.requests[0] : wait.call;
        const Expected expected = pieces(rank, call, true);
        if (gone(rank) || !in_order(call) || call.sequence == 0 || !expected || uncertain(call.communicator)) continue;
        if (std::ranges::any_of(members_.at(call.communicator),
                                [&](const auto& one) { return one.second->collectives < call.sequence; }))
          continue;
        for (const auto& [peer, bytes] : *expected) {
          const Expected sent = state(peer) ? pieces(*state(peer), call, false) : Expected();
          const std::uint64_t size = sent && sent->contains(rank.rank) ? sent->at(rank.rank) : 0;
          if (!sent || size == bytes) continue;
          verdict.cause = "mismatch";
          for (const int one : {peer, rank.rank})
            if (std::ranges::find(verdict.culprits, one) == verdict.culprits.end()) verdict.culprits.push_back(one);
          say(verdict, "{}: rank {} expects {} from rank {}, which sends {} to it", describe(call), rank.rank,
              size_of(bytes), peer, size ? size_of(size) : "nothing");
          if (verdict.lines.size() == 4) return true;
        }
      }
    return !verdict.lines.empty();
  }

  bool two_threads(Verdict& verdict) const {
    for (const RankState& rank : states_)
      for (const Wait& one : rank.waits)
        for (const Wait& other : rank.waits) {
          if (&one >= &other || !is(one.call, Role::collective) || !is(other.call, Role::collective) ||
              one.call.sequence == 0 || one.call.communicator != other.call.communicator)
            continue;
          verdict.cause = "threads";
          verdict.culprits.push_back(rank.rank);
          say(verdict, "two threads of rank {} are in collectives of one communicator, which MPI forbids: {}, and {}",
              rank.rank, describe(one.call), describe(other.call));
        }
    return !verdict.lines.empty();
  }

  // The ranks of its group that have not opened or ended their part of an epoch of MPI_Win_post and MPI_Win_start.
  Needs group_needs(const RankState& rank, const Call& call) const {
    if (uncertain(call.communicator) || !certain(&rank) || rank.many_tags) return {};
    const auto number = [&](std::int32_t tag, std::uint64_t Traffic::*what) {
      return [=, this](int by, int with) { return count(by, call.communicator, with, tag, what); };
    };
    const auto posts = number(post_tag, &Traffic::sent), starts = number(post_tag, &Traffic::received),
               completes = number(complete_tag, &Traffic::sent);
    const bool waits = call.kind == Kind::MPI_Win_wait;
    const int own = rank.rank;
    std::vector<Need> all;
    for (const auto& [peer, member] : members_.at(call.communicator)) {
      if (!(waits ? posts(own, peer) > completes(peer, own) : starts(own, peer) > posts(peer, own))) continue;
      if (!certain(state(peer)) || state(peer)->many_tags) return {};
      Ranks others;  // that are in such an epoch
      for (const auto& [other, one] : members_.at(call.communicator))
        if (waits ? starts(other, own) > posts(own, other) : posts(peer, other) > completes(other, peer))
          others.insert(other);
      const char* const missing = !waits ? "post" : starts(peer, own) > completes(peer, own) ? "complete" : "start";
      all.push_back(need_of({peer}, "rank {} has not called MPI_Win_{} for rank {}{}{}{}", peer, missing, own,
                            others.empty() ? ""
                            : waits        ? ", but "
                                           : ", but for ",
                            others.empty() ? "" : rank_text(others), others.empty() || !waits ? "" : " did"));
    }
    return all.empty() ? Needs() : all;
  }

  // The rank that keeps a window call from its target: it holds the lock, or is outside of MPI. A rank that polls a
  // window waits for any other rank of the window.
  Needs window_needs(const RankState& rank, const Call& call) const {
    if (call.communicator != 0 && uncertain(call.communicator)) return {};  // 0: it polls several windows
    if (polls(rank)) {
      Ranks others;
      for (const RankState& other : states_)
        if (&other != &rank && (call.communicator == 0 || members_.at(call.communicator).contains(other.rank)))
          others.insert(other.rank);
      if (others.empty()) return {};
      return Needs{{need_of(others, "no rank writes what rank {} reads there", rank.rank)}};
    }
    const auto locks = [&](const Call& other) {
      return is_named(other, "MPI_Win_lock") && other.communicator == call.communicator &&
             (other.peer == call.peer || other.peer < 0 || call.peer < 0);
    };
    bool alone = call.root == 1;
    for (const Call& own : rank.outstanding) alone = alone || (call.peer >= 0 && locks(own) && own.root == 1);
    for (const RankState& other : states_) {
      const bool in_window = std::ranges::any_of(
          other.waits, [&](const Wait& wait) { return wait.call.communicator == call.communicator; });
      if (&other == &rank || in_window) continue;
      for (const Call& one : other.outstanding)
        if (locks(one) && (alone || one.root == 1))
          return Needs{{need_of({other.rank}, "rank {} has not unlocked rank {} in {}", other.rank,
                                std::max(call.peer, one.peer), communicator(call.communicator))}};
    }
    const RankState* const target = state(call.peer);
    if (!target || target == &rank || !outside(*target)) return {};
    return Needs{
        {need_of({call.peer}, "rank {} is outside of MPI, and MPI may need it for {}", call.peer, name_of(call.kind))}};
  }

  Needs collective_needs(const RankState& rank, const Call& call) const {
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
      const auto& members = members_.at(call.communicator);
      const Expected expected = pieces(rank, call, true);
      const bool forms = is_named(call, "create_group") || is_named(call, "create_from_group");
      if (!expected && (forms || is_named(call, "eighbor"))) return {};
      for (const auto& [other, member] : members)
        if (member->collectives < call.sequence && (!is_named(call, "eighbor") || expected->contains(other)))
          missing.insert(other);
      for (const auto& [other, bytes] : forms ? *expected : std::map<int, std::uint64_t>())
        if (state(other) && !members.contains(other) && state(other)->communicators.size() < most_communicators)
          missing.insert(other);
      if (missing.empty() && call.kind == Kind::MPI_Intercomm_create) return leader_needs(rank, call);
    }
    std::vector<Need> all;
    const auto same = [&](const Wait& wait) { return wait.call.kind == call.kind; };
    for (const int other : missing) {  // two calls must not have one name
      const bool plain = call.communicator == world_id && std::ranges::none_of(state(other)->waits, same);
      const Call named{call.kind, no_rank, call.tag, no_rank, no_rank, any, call.communicator, call.sequence};
      all.push_back(need_of({other}, "rank {} is not in {}", other, plain ? name_of(call.kind) : describe(named)));
    }
    return all.empty() ? Needs() : all;
  }

  // What a rank has queued on the stream that it waits for, and others have not.
  Needs device_needs(const RankState& rank, const Call& wait) const {
    if (wait.tag == unknown) return {};
    const auto waited = [&](std::int32_t tag) { return wait.tag == any || tag == wait.tag; };
    std::vector<Need> all;
    for (const CommunicatorState& one : rank.communicators) {
      if (one.sort != Sort::nccl || uncertain(one.id) || (wait.communicator && wait.communicator != one.id)) continue;
      for (const auto& [other, member] : members_.at(one.id))
        if (std::ranges::any_of(
                one.history, [&](const Call& call) { return call.sequence > member->collectives && waited(call.tag); }))
          all.push_back(need_of({other}, "rank {} has made {} calls of collectives of {}, rank {} {}", other,
                                member->collectives, communicator(one.id), rank.rank, one.collectives));
      for (const auto& [other, member] : members_.at(one.id))
        for (const Call& open : state(other)->outstanding)
          if (const auto call = std::ranges::find(member->history, open.receive_tag, &Call::receive_tag);
              other != rank.rank && call != member->history.end() && call->sequence <= one.collectives)
            all.push_back(need_of({other}, "rank {} has not ended its group with {}", other, describe(*call)));
      for (const Traffic& traffic : rank.traffic) {
        if (traffic.communicator != one.id || !state(traffic.peer) || !waited(traffic.tag)) continue;
        const auto lacks = [&](const char* what, std::uint64_t here, std::uint64_t Traffic::*there) {
          if (here > count(traffic.peer, one.id, rank.rank, any, there))
            all.push_back(need_of({traffic.peer}, "rank {} has not called {} {}", traffic.peer, what, rank.rank));
        };
        lacks("ncclSend to", traffic.received, &Traffic::sent);
        lacks("ncclRecv from", traffic.sent, &Traffic::received);
      }
    }
    return all.empty() ? Needs() : all;
  }

  Needs needs(const RankState& rank, const Call& call) const {
    Needs all = needs_of(rank, call);
    for (std::size_t i = 0; all && i < all->size(); ++i) all->at(i).call = call;
    return all;
  }
  Needs needs_of(const RankState& rank, const Call& call) const {
    if (is_named(call, "ncclCommInit") || (in_order(call) && !of_device(call))) return collective_needs(rank, call);
    if (of_device(call)) return device_needs(rank, call);
    if (of_groups(call)) return group_needs(rank, call);
    if (is(call, Role::other)) return window_needs(rank, call);
    if (is(call, Role::send)) return send_needs(rank, call);
    if (is(call, Role::receive)) return receive_needs(rank, call);
    if (!is(call, Role::both)) return {};
    Needs out = send_needs(rank, call), in = receive_needs(rank, call);
    if (!out || out->empty()) return in;
    if (in) out->insert(out->end(), in->begin(), in->end());
    return out;
  }

  Needs needs(const RankState& rank, const Wait& wait) const {
    const bool for_any = is(wait.call, Role::wait_any) || wait.some;
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
      const Needs one = calls_back(rank, wait.call) ? Needs() : needs(rank, wait);
      if (!one) return {};
      all.insert(all.end(), one->begin(), one->end());
    }
    return all;
  }

  using Variant = std::tuple<Kind, int, std::uint64_t>;  // name, root, bytes
  using Variants = std::map<Variant, Ranks>;
  // Communicator and number of the calls that its members have made in different ways.
  std::map<std::pair<std::uint64_t, std::uint64_t>, Variants> different_calls() const {
    std::map<std::pair<std::uint64_t, std::uint64_t>, Variants> calls;
    for (const auto& [id, members] : members_)
      if (!uncertain(id))
        for (const auto& [rank, member] : members)
          for (const Call& call : member->history)
            calls[{id, call.sequence}][{call.kind, call.root, call.bytes}].insert(rank);
    std::erase_if(calls, [](const auto& call) { return call.second.size() < 2; });
    return calls;
  }
  static bool only_sizes_differ(const Variants& variants) {
    return std::ranges::all_of(variants, [&](const auto& one) {
      return std::get<0>(one.first) == std::get<0>(variants.begin()->first) &&
             std::get<1>(one.first) == std::get<1>(variants.begin()->first);
    });
  }
  void say_calls(Verdict& verdict, std::string_view what, std::uint64_t id, std::uint64_t sequence,
                 const Variants& variants) const {
    std::vector<std::pair<Call, Ranks>> groups;
    for (const auto& [call, ranks] : variants) {
      const auto& [kind, root, bytes] = call;
      groups.push_back({{.kind = kind, .root = root, .communicator = id, .sequence = sequence, .bytes = bytes}, ranks});
    }
    std::ranges::stable_sort(groups, {}, [](const auto& one) { return one.second.size(); });
    say(verdict, "{} in {}:", what, communicator(id));
    for (std::size_t i = 0; i < groups.size() && i < 4; ++i)
      say(verdict, "  {}: {}", rank_text(groups[i].second), describe(groups[i].first));
    if (verdict.culprits.empty()) verdict.culprits.assign(groups[0].second.begin(), groups[0].second.end());
  }

  // A collective that differs between the ranks of a communicator, while a rank is still in it. Calls that differ
  // in size alone may work, so they only count where no rank is late. The mismatch is certain if no rank outside of the
  // collective can move.
  bool mismatch(Verdict& verdict, const Blocked& blocked) const {
    for (const auto& [call, variants] : different_calls()) {
      const auto& [id, sequence] = call;
      Blocked waiting = blocked;
      bool all_reached = true, somebody_in_it = false;
      for (const auto& [rank, member] : members_.at(id)) {
        all_reached = all_reached && member->collectives >= sequence;
        if (is_in(*state(rank), id, sequence)) waiting[rank] = {Need{}}, somebody_in_it = true;
      }
      if (!somebody_in_it || (only_sizes_differ(variants) && !all_reached)) continue;
      verdict.cause = "mismatch";
      const Blocked stay = that_cannot_move(std::move(waiting));
      const Kind kind = std::get<0>(variants.begin()->first);
      verdict.certain = std::ranges::all_of(states_, [&](const RankState& rank) {
        return role_of(kind) == Role::collective && (gone(rank) || stay.contains(rank.rank)) && !outside(rank) &&
               !rank.incomplete;
      });
      say_calls(verdict, "the ranks make different calls", id, sequence, variants);
      return true;
    }
    return false;
  }

  // The first collective in the histories that differed and that all have left. It may have worked, and proves nothing.
  void old_mismatch(Verdict& verdict, bool in_size_too) const {
    for (const auto& [call, variants] : different_calls()) {
      if (!in_size_too && only_sizes_differ(variants)) continue;
      if (!verdict.certain) verdict.cause = "mismatch";
      return say_calls(verdict, "before, the ranks have made different calls", call.first, call.second, variants);
    }
  }

  // A message that is wanted has come with another tag or communicator, which no receive takes.
  std::string other_message(const Need& need, const RankState& to) const {
    const int wanted = need.call.wanted_tag();
    for (const int from : need.one_of) {
      const RankState* const sender = state(from);
      if (!sender || !receives(need.call) || sender->many_tags || to.many_tags) continue;
      const std::string who = need.one_of.size() == 1 ? "it" : fmt::format("rank {}", from);
      for (const Traffic& one : sender->traffic) {
        const auto posted = std::ranges::count_if(
            to.outstanding, [&](const Call& other) { return takes(other, one.communicator, from, one.tag); });
        if (one.peer != to.rank || one.tag < any || one.communicator == leaders_id ||
            one.sent <= static_cast<std::uint64_t>(posted) +
                            count(to.rank, one.communicator, from, one.tag, &Traffic::received))
          continue;
        if (one.communicator != need.call.communicator)
          return fmt::format("; {} has sent one in another communicator, {}", who, communicator(one.communicator));
        if (wanted != any && one.tag != wanted)
          return fmt::format("; {} has sent one with tag {}, and {} wants tag {}", who, one.tag, to.rank, wanted);
      }
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
      say(verdict, "first difference: {} {} made {} calls in {}, {} {}: call {} is {}", rank_text(late),
          late.size() == 1 ? "has" : "have", least, communicator(id),
          by_count.size() == 2 || others.size() > 8 ? "the others" : rank_text(others), most, least + 1, name);
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

  // Explains the ranks that cannot move: by ranks that have ended, and by cycles.
  void stuck(Verdict& verdict, const Blocked& blocked) const {
    Ranks seen;
    for (auto start = blocked.begin(); start != blocked.end() && verdict.lines.size() < 16; ++start) {
      // Follow the first clause that only stuck or ended ranks could fulfil.
      std::vector<int> path;
      int at = start->first;
      while (seen.insert(at).second) {
        path.push_back(at);
        const auto found = blocked.find(at);
        if (found == blocked.end()) break;  // it has ended
        at = *found->second.front().one_of.begin();
      }
      if (path.empty()) continue;
      const bool cycle = blocked.contains(path.back());
      const auto first = std::ranges::find(path, at);
      if (cycle && first == path.end()) continue;  // it leads to what is explained already
      if (cycle) path.erase(path.begin(), first);
      if (verdict.cause.empty()) verdict.cause = cycle ? "deadlock" : "ended";
      verdict.culprits.insert(verdict.culprits.end(), cycle ? path.begin() : path.end() - 1, path.end());
      const std::size_t links = cycle ? path.size() : path.size() - 1, shown = std::min<std::size_t>(links, 6);
      std::vector<std::string> waits;
      const auto before = static_cast<std::ptrdiff_t>(verdict.lines.size());
      for (std::size_t i = 0; i < shown; ++i) {
        const RankState& rank = *state(path[i]);
        const Need& need = blocked.at(rank.rank).front();
        const std::string does = doing(path[(i + 1) % path.size()]);
        Ranks alike;
        for (const int one : need.one_of)
          if (doing(one) == does) alike.insert(one);
        waits.push_back(fmt::format("{} waits for {}{}", rank.rank, need.one_of.size() > 1 ? "one of " : "",
                                    multinode::ranges(need.one_of, ", ")));
        say(verdict, "{}: {} {} {}{}", need.why, rank_text(alike), alike.size() > 1 ? "are" : "is", does,
            other_message(need, rank));
      }
      if (cycle)
        verdict.lines.insert(verdict.lines.begin() + before,
                             fmt::format("{}{}: deadlock", fmt::join(waits, ", "), shown < links ? " ..." : ""));
    }
  }

  bool says_what_it_waits_for(const RankState& rank) const {
    const auto known = [&](const Call& call) {
      return (of_device(call) && call.tag != unknown) ||
             (!is(call, Role::other) && !of_device(call) && call.peer != unknown && call.receive_peer != unknown &&
              (call.communicator == start_id || call.communicator == end_id || !uncertain(call.communicator)));
    };
    return certain(&rank) && std::ranges::all_of(rank.waits, [&](const Wait& wait) {
             if (!is(wait.call, Role::wait_all) && !is(wait.call, Role::wait_any)) return known(wait.call);
             return wait.all_requests && !wait.requests.empty() && std::ranges::all_of(wait.requests, known);
           });
  }

  // Two ranks that have queued calls of two of NCCL's communicators on one stream, each in another order.
  bool other_order(Verdict& verdict, const Blocked& blocked) const {
    std::map<std::array<std::uint64_t, 4>, int> known;  // of two calls, communicator and number: a rank with this order
    for (const RankState& rank : states_) {
      std::vector<Call> queue;
      for (const CommunicatorState& one : rank.communicators)
        if (one.sort == Sort::nccl && !outside(rank) && !blocked.contains(rank.rank))
          queue.insert(queue.end(), one.history.begin(), one.history.end());
      std::ranges::sort(queue, {}, &Call::receive_tag);
      for (std::size_t i = 0; i < queue.size(); ++i)
        for (std::size_t j = i + 1; j < std::min(i + 16, queue.size()); ++j) {
          const Call &one = queue[i], &next = queue[j];
          if (one.tag != next.tag || one.receive_tag == next.receive_tag) continue;
          known.emplace(std::array{one.communicator, one.sequence, next.communicator, next.sequence}, rank.rank);
          const auto other = known.find({next.communicator, next.sequence, one.communicator, one.sequence});
          if (other == known.end()) continue;
          verdict.cause = "deadlock", verdict.culprits = {other->second, rank.rank};
          say(verdict, "on one stream, rank {} has queued {} before {}", other->second, describe(next), describe(one));
          say(verdict, "on one stream, rank {} has queued {} before {}", rank.rank, describe(one), describe(next));
          return true;
        }
    }
    return false;
  }

  // Nobody is stuck for certain: who makes the others wait?
  void moving(Verdict& verdict, const Blocked& blocked) const {
    for (const RankState& rank : states_)  // what others wait for may not have happened
      if (rank.failed && rank.incomplete && std::ranges::none_of(states_, outside)) {
        verdict.cause = "error";
        verdict.culprits.push_back(rank.rank);
        say(verdict, "{} of rank {} has returned an error, and the rank went on: what it stands for may be missing",
            describe(*rank.failed), rank.rank);
      }
    if (!verdict.culprits.empty() || other_order(verdict, blocked)) return;
    std::map<int, int> waiting_for;  // rank that is not blocked, how many blocked ranks wait for it directly
    for (const auto& [rank, needs] : blocked)
      for (const Need& need : needs)
        for (const int other : need.one_of)
          if (!blocked.contains(other)) ++waiting_for[other];
    if (blocked.empty())
      for (const RankState& rank : states_)
        if (outside(rank)) waiting_for[rank.rank] = 0;
    Ranks ranks;  // that wait
    for (const RankState& rank : states_)
      if (!rank.waits.empty()) ranks.insert(rank.rank);
    if (waiting_for.empty()) {
      for (const RankState& rank : states_) {
        if (!rank.ended || ranks.empty()) continue;
        verdict.culprits.push_back(rank.rank);
        say(verdict, "rank {} is {}; another may wait for it", rank.rank, doing(rank));
      }
      if (!verdict.culprits.empty()) return void(verdict.cause = "ended");
      for (const RankState& rank : states_) {
        if (gone(rank) || says_what_it_waits_for(rank)) continue;
        verdict.culprits.push_back(rank.rank);
        say(verdict, "what rank {} waits for is not recorded: it is {}", rank.rank, doing(rank));
      }
      if (!verdict.culprits.empty()) return void(verdict.cause = "cannot tell");
      verdict.cause = ranks.empty() ? "cannot tell" : "started";
      if (ranks.empty()) return say(verdict, "no rank waits in a call that is recorded");
      return say(verdict, "everything that {} {} for has been started", rank_text(ranks),
                 ranks.size() == 1 ? "waits" : "wait");
    }
    std::vector<int>& late = verdict.culprits;
    for (const auto& [rank, number] : waiting_for) late.push_back(rank);
    std::ranges::stable_sort(late, {}, [&](int rank) {
      const RankState& one = *state(rank);
      return std::tuple(one.process != 'T', in_unrecorded_call(one), -waiting_for.at(rank));
    });
    const auto unknown_rank = [&](int rank) { return is_unknown(*state(rank)); };
    verdict.cause = std::ranges::all_of(late, unknown_rank) ? "cannot tell" : "late";
    for (std::size_t i = 0; i < late.size() && i < 6; ++i) {
      const RankState& rank = *state(late[i]);
      std::string text = fmt::format("rank {} ({}, pid {}) is {} for {:.0f} s", rank.rank, rank.host, rank.pid,
                                     doing(rank), rank.quiet);
      if (rank.waits.empty() && !rank.polled && rank.process == 'R' && !in_unrecorded_call(rank) && !is_unknown(rank))
        text += ": computing, not waiting";
      if (rank.failed) text += "; its call " + describe(*rank.failed) + " has returned an error";
      if (rank.incomplete && !rank.failed) text += "; it has more operations under way than are recorded";
      if (std::ranges::any_of(rank.waits, [&](const Wait& wait) { return calls_back(rank, wait.call); }))
        text += "; a function of the program may run there, for an attribute";
      if (rank.unknown_calls) text += "; it makes calls that are not recorded";
      if (!rank.waits.empty() && rank.other_thread)
        text +=
            fmt::format("; another of its threads is outside of MPI and NCCL{}, and may still make a call", rank.stack);
      verdict.lines.push_back(text);
      std::map<std::string, Ranks> reasons;  // why others wait for it
      for (const auto& [other, all] : blocked)
        for (const Need& need : all)
          if (need.one_of == Ranks{rank.rank}) reasons[need.why + other_message(need, *state(other))].insert(other);
      for (const auto& [why, ranks] : reasons)
        if (reasons.size() <= 8)
          say(verdict, "  {}: {} {} for it", why, rank_text(ranks), ranks.size() == 1 ? "waits" : "wait");
      for (const Wait& wait : rank.waits)
        if (const Needs all = needs(rank, wait); all && !all->empty()) {
          const Need& need = all->front();
          say(verdict, "  {}: rank {} is {}", need.why, *need.one_of.begin(), doing(*need.one_of.begin()));
        }
    }
    if (late.size() > 6) say(verdict, "and {} more ranks", late.size() - 6);
  }

  std::vector<RankState> states_;
  std::map<int, const RankState*> by_rank_;
  std::set<std::uint64_t> ambiguous_;  // communicators with several ranks in one process
  std::map<std::uint64_t, Members> members_;
};

}  // namespace

Verdict explain(const std::vector<RankState>& ranks) { return Explanation(ranks).verdict(); }
Verdict explain_main_threads(std::vector<RankState> ranks, double seconds) {
  for (RankState& rank : ranks) {
    if (!rank.others_apart) continue;
    rank.other_thread = false;
    std::erase_if(rank.waits, [](const Wait& wait) { return wait.apart; });
  }
  Verdict verdict = Explanation(ranks).verdict();
  const std::set<int> culprits(verdict.culprits.begin(), verdict.culprits.end());
  bool apart = false;
  for (const RankState& rank : ranks) {
    if (!culprits.contains(rank.rank)) continue;
    apart = apart || rank.others_apart;
    for (const Wait& wait : rank.waits)  // who waits for any rank may be a server
      if (wait.seconds < seconds || (receives(wait.call) && wait.call.from() == any)) return {};
  }
  if (!verdict.certain || !apart) return {};
  verdict.certain = false, verdict.main_threads = true;
  say(verdict,
      "this is so unless another thread of these ranks helps: since then, they were only seen in calls of other "
      "communicators");
  return verdict;
}
std::map<std::uint64_t, std::string> names_of(const std::vector<RankState>& ranks) {
  return Explanation(ranks).names();
}
std::vector<std::string> groups(const std::vector<RankState>& ranks, std::size_t most) {
  return Explanation(ranks).groups(most);
}

}  // namespace who_waits
