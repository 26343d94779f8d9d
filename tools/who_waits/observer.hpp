// observer.hpp: the who_waits process's side of a Record: what its program is doing, and for how long.
#pragma once

#include "record.hpp"
#include "timeline.hpp"
#include "verdict.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/deadline.hpp>
#include <multinode/net/address.hpp>

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <new>
#include <set>
#include <string>

namespace who_waits {

class Observer {
 public:
  using Clock = std::chrono::steady_clock;

  // Makes the shared memory. Throws std::system_error.
  Observer() : file_(multinode::check_errno(::memfd_create("who_waits", MFD_CLOEXEC), "memfd_create")) {
    multinode::check_errno(::ftruncate(file_, sizeof(Record)), "memory for the record of a program");
    void* const memory = ::mmap(nullptr, sizeof(Record), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (memory == MAP_FAILED) multinode::check_errno(-1, "memory for the record of a program");
    record_ = new (memory) Record;
    since_.fill(progress_);
  }
  Observer(const Observer&) = delete;  // both last until the process ends
  Observer& operator=(const Observer&) = delete;

  // Before the program starts: it is to take times, for times(): those from..to after its first call, or the last ones
  // if `from` is before the end. A percentage is of a time that is not known yet: then it takes all.
  void take_times(std::optional<Moment> from, std::optional<Moment> to) {
    constexpr double around = 1, most = 1e9;  // s: ranks make their first call at different times
    const auto known = [](const auto& one) { return one && !one->percent && one->value >= 0; };
    Times& times = record_->times;
    times.last_ones = from && from->value < 0;
    if (known(from)) times.from = static_cast<std::int64_t>((std::min(from->value, most) - around) * 1e9);
    if (known(to)) times.to = static_cast<std::int64_t>((std::min(to->value, most) + around) * 1e9);
    record_->timed = true;
  }

  // For the record_variable of the program.
  std::string path() const { return fmt::format("/proc/{}/fd/{}", ::getpid(), file_); }

  bool unfinished() const { return record_->world_size > 0 && !record_->finalized; }  // between MPI_Init and _Finalize

  // Looks whether there was progress: a call that began or ended. To be called a few times per second.
  // The time since the last one does not count if the program is stopped on purpose.
  void look(Clock::time_point now, bool is_stopped = false) {
    const auto stopped = is_stopped ? now - looked_ : multinode::stopped_between(looked_, now);
    progress_ += stopped, polled_ += stopped;
    for (Clock::time_point& since : since_) since += stopped;
    looked_ = now;
    std::uint64_t steps = static_cast<std::uint64_t>(record_->pid.load() != 0);
    for (std::size_t i = 0; i < turns_.size(); ++i) {
      const ThreadRecord& thread = record_->threads[i];
      const std::uint64_t turn = thread.turn.load(std::memory_order_acquire);
      if (turn != turns_[i]) {
        since_[i] = now;
        if (is_main(thread)) others_.fill({});
        const std::set<std::uint64_t> used = communicators_of(thread);
        others_[i].moves += !used.empty();
        others_[i].used.insert(used.begin(), used.end());
      }
      turns_[i] = turn;
      steps += static_cast<std::uint32_t>(turn) - turn / turn_of_poll;
    }
    for (const RequestRecord& one : record_->requests)
      if (role_of(one.call.load().kind) != Role::other)  // a lock
        steps += one.turn.load(std::memory_order_relaxed);
    const std::uint64_t polls = record_->polls.load(std::memory_order_relaxed);
    if (steps != steps_) progress_ = now, polling_looks_ = 0, other_polls_ = record_->other_polls, turns_then_ = turns_;
    if (polls != polls_ && steps == steps_) polled_ = now, ++polling_looks_;
    steps_ = steps;
    polls_ = polls;
  }
  // Seconds since the last progress; the time in which this process was stopped does not count.
  double quiet(Clock::time_point now) const { return std::chrono::duration<double>(now - progress_).count(); }
  std::uint64_t steps() const { return steps_; }  // that look() has seen
  // Seconds for which the main thread is in its call; 0: it is in none.
  double main_waits(Clock::time_point now) const {
    for (std::size_t i = 0; i < turns_.size(); ++i)
      if (is_main(record_->threads[i]) && turns_[i] % 2) return std::chrono::duration<double>(now - since_[i]).count();
    return 0;
  }

  // Of one of so many ranks, without its clock.
  RankTimes times(int ranks) const {
    RankTimes out = times_of(record_->times, ranks);
    for (std::size_t i = 0; i < turns_.size(); ++i) {
      const ThreadRecord& thread = record_->threads[i];
      if (thread.thread.load() == 0) continue;
      const auto number = static_cast<std::uint8_t>(i);
      for (std::size_t at = 0; at < thread.in_regions && at < thread.regions.size(); ++at)
        out.open.push_back({.enter = thread.regions[at].entered, .place = thread.regions[at].place, .thread = number});
      if (thread.turn.load(std::memory_order_acquire) % 2 == 0) continue;
      std::vector<Call> calls = requests_of(thread, true);
      if (calls.empty()) calls.push_back(thread.call.load());
      Meeting open{.enter = thread.entered, .place = thread.place, .thread = number};
      for (const Call& one : calls) {
        const Role role = role_of(one.kind);
        open.bytes = one.bytes;
        for (const CommunicatorRecord& known : record_->communicators)
          if (known.id == one.communicator && one.communicator)
            open.communicator = static_cast<std::uint8_t>(known.made);
        open.peer = one.peer, open.tag = one.tag, open.sends = role == Role::send || role == Role::both;
        out.open.push_back(open);
        open.peer = one.receive_peer, open.tag = one.receive_tag, open.sends = false;
        if (role == Role::both) out.open.push_back(open);
      }
    }
    return out;
  }

  // `rank`: the launcher's, used until MPI has started.
  RankState state(int rank, Clock::time_point now) const {
    RankState state{.rank = record_->rank >= 0 ? record_->rank.load() : rank,
                    .host = multinode::host_name(),
                    .pid = record_->pid,
                    .recorded = record_->pid != 0,
                    .finalized = record_->finalized,
                    .quiet = quiet(now),
                    .incomplete = record_->incomplete,
                    .unknown_calls = record_->unknown_calls,
                    .callbacks = record_->callbacks,
                    .world_size = record_->world_size};
    if (const Call failed = record_->failed.load(); failed.kind != Kind::none) state.failed = failed;
    bool of_device = false;  // CUDA and NCCL have no level of threads
    bool polls = false;      // a window
    bool others_help = false;
    const std::set<std::uint64_t> wanted = wanted_by_main();
    for (std::size_t i = 0; i < turns_.size(); ++i) {
      const ThreadRecord& thread = record_->threads[i];
      const std::uint64_t turn = thread.turn.load(std::memory_order_acquire);
      if (thread.thread.load() == 0 || turn == 0) continue;  // 0: it has begun or ended regions only, and is CUDA's
      Wait wait{.call = thread.call.load(),
                .requests = requests_of(thread, true),
                .all_requests = thread.waits <= ThreadRecord::most_waits,
                .seconds = std::chrono::duration<double>(now - since_[i]).count(),
                .site = thread.site};
      std::atomic_thread_fence(std::memory_order_acquire);
      of_device = of_device || role_of(wait.call.kind) == Role::device || name_of(wait.call.kind)[0] == 'n';
      // It moves again and again, and was only seen in calls of other communicators than the main thread waits in.
      const auto is_wanted = [&](std::uint64_t id) { return wanted.contains(id); };
      wait.apart = others_[i].moves >= 5 && !wanted.empty() && std::ranges::none_of(others_[i].used, is_wanted);
      if (turn / turn_of_poll != turns_then_[i] / turn_of_poll && now - since_[i] < std::chrono::seconds(1))
        polls = true;
      else if (turn % 2 == 0 || thread.turn.load(std::memory_order_relaxed) != turn)
        state.other_thread = true, others_help = others_help || !wait.apart;
      else
        state.waits.push_back(std::move(wait));
    }
    if ((record_->unseen_threads > 0 && (record_->of_many_threads || of_device)) || (polls && !state.waits.empty()))
      state.other_thread = others_help = true;
    state.others_apart = !others_help && !wanted.empty();
    // It has tested in at least two looks since its last progress, and not long ago.
    if (state.waits.empty() && polling_looks_ > 1 &&
        now - polled_ < std::max<Clock::duration>(std::chrono::seconds(1), (now - progress_) / 2)) {
      state.polled = record_->polled.load();
      if (record_->other_polls > other_polls_ + 1) state.polled = Call{.kind = state.polled->kind};  // for several
    }
    const PiecesRecord& pieces = record_->pieces;
    state.pieces_of = pieces.communicator, state.pieces_sequence = pieces.sequence, state.pieces_from = pieces.from;
    for (std::size_t i = 0; state.pieces_of && i < pieces.from + pieces.to && i < pieces.pieces.size(); ++i)
      state.pieces.push_back(pieces.pieces[i]);
    for (const RequestRecord& one : record_->requests)
      if (one.turn.load(std::memory_order_acquire) % 2) state.outstanding.push_back(one.call.load());
    for (const CommunicatorRecord& one : record_->communicators) {
      const std::uint64_t id = one.id.load(std::memory_order_acquire);
      if (id == 0) continue;
      CommunicatorState member{id,      one.collectives.load(std::memory_order_acquire), one.size, one.rank, one.sort,
                               one.side};
      member.made = one.made;
      member.site = one.site;
      for (std::size_t i = 0; i < one.name.size() && one.name[i]; ++i) member.name += one.name[i];
      constexpr std::uint64_t past = CommunicatorRecord::past;
      for (std::uint64_t n = member.collectives - std::min(member.collectives, past - 1); n <= member.collectives; ++n)
        if (n > 0 && (!one.freed || (n == member.collectives && one.sort >= Sort::window)))  // the call that freed it
          member.history.push_back(one.history[n % past].load());
      std::atomic_thread_fence(std::memory_order_acquire);
      if (one.collectives.load(std::memory_order_relaxed) != member.collectives)  // it moves: half of it may be newer
        member.history.clear();
      state.communicators.push_back(std::move(member));
    }
    const auto add = [&](const TrafficRecord& one) {
      const std::uint64_t id = one.communicator.load(std::memory_order_acquire);
      const std::uint64_t key = one.peer_and_tag.load() - 1;
      if (id)
        state.traffic.push_back({id, static_cast<std::int32_t>(key >> 32), static_cast<std::int32_t>(key), one.sent,
                                 one.received, one.by_any});
    };
    std::ranges::for_each(record_->traffic, add);
    std::ranges::for_each(record_->other_tags, add);
    state.many_tags = std::ranges::any_of(record_->other_tags, [](const auto& one) { return one.communicator != 0; });
    return state;
  }

 private:
  bool is_main(const ThreadRecord& thread) const {
    return thread.thread.load() != 0 && thread.thread.load() == record_->pid.load();
  }
  // What a thread waits for: the requests that fit into its record, or those of them that are under way.
  std::vector<Call> requests_of(const ThreadRecord& thread, bool under_way) const {
    std::vector<Call> all;
    const std::uint32_t waits = std::min<std::uint32_t>(thread.waits, ThreadRecord::most_waits);
    for (std::uint32_t at = 0; at < waits; ++at) {
      const RequestRecord& one = record_->requests[thread.requests[at] % record_->requests.size()];
      if (!under_way || one.turn % 2) all.push_back(one.call.load());
    }
    return all;
  }
  // Of a thread's last call, or of the requests that it waited for.
  std::set<std::uint64_t> communicators_of(const ThreadRecord& thread) const {
    std::set<std::uint64_t> all{thread.call.load().communicator};
    for (const Call& one : requests_of(thread, false)) all.insert(one.communicator);
    all.erase(0);
    return all;
  }
  // What the main thread waits for; {}: it is in no call.
  std::set<std::uint64_t> wanted_by_main() const {
    for (const ThreadRecord& thread : record_->threads)
      if (is_main(thread) && thread.turn.load(std::memory_order_acquire) % 2) return communicators_of(thread);
    return {};
  }

  const int file_;
  Record* record_;
  Clock::time_point progress_ = Clock::now(), looked_ = progress_, polled_ = progress_;
  std::uint64_t steps_ = 0, polls_ = 0, other_polls_ = 0;
  int polling_looks_ = 0;  // looks since the last progress that saw new tests
  std::array<std::uint64_t, std::tuple_size_v<decltype(Record::threads)>> turns_{}, turns_then_{};  // at the progress
  std::array<Clock::time_point, std::tuple_size_v<decltype(Record::threads)>> since_{};
  struct Moves {  // of a thread, since the main thread has moved
    int moves = 0;
    std::set<std::uint64_t> used{};  // communicators
  };
  std::array<Moves, std::tuple_size_v<decltype(Record::threads)>> others_{};
};

}  // namespace who_waits
