#include "observer.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/deadline.hpp>
#include <multinode/base/files.hpp>
#include <multinode/net/address.hpp>

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <new>

namespace who_waits {

using multinode::check_errno;

Observer::Observer(bool timed)
    : file_(check_errno(::memfd_create("who_waits", MFD_CLOEXEC), "memfd_create")),
      progress_(Clock::now()),
      looked_(progress_) {
  check_errno(::ftruncate(file_, sizeof(Record)), "memory for the record of a program");
  void* const memory = ::mmap(nullptr, sizeof(Record), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (memory == MAP_FAILED) check_errno(-1, "memory for the record of a program");
  record_ = new (memory) Record;
  record_->timed = timed;
  since_.fill(progress_);
}

Observer::~Observer() {
  ::munmap(record_, sizeof(Record));
  ::close(file_);
}

std::string Observer::path() const { return fmt::format("/proc/{}/fd/{}", ::getpid(), file_); }

void Observer::look(Clock::time_point now) {
  if (const auto stopped = multinode::stopped_between(looked_, now); stopped.count()) {
    progress_ += stopped;
    for (Clock::time_point& since : since_) since += stopped;
  }
  looked_ = now;
  std::uint64_t steps = static_cast<std::uint64_t>(record_->pid.load() != 0);
  for (std::size_t i = 0; i < turns_.size(); ++i) {
    const std::uint64_t turn = record_->threads[i].turn.load(std::memory_order_acquire);
    if (turn != turns_[i]) since_[i] = now;
    turns_[i] = turn;
    steps += turn;
  }
  for (const RequestRecord& one : record_->requests) steps += one.turn.load(std::memory_order_relaxed);
  if (steps != steps_) progress_ = now;
  steps_ = steps;
  const std::uint64_t polls = record_->polls.load(std::memory_order_relaxed);
  polling_ = polls != polls_;
  polls_ = polls;
}

RankState Observer::state(int rank, Clock::time_point now) const {
  RankState rank_state{.rank = rank, .host = multinode::host_name(), .pid = record_->pid.load()};
  rank_state.recorded = rank_state.pid != 0;
  rank_state.quiet = quiet(now);
  if (record_->rank.load() >= 0) rank_state.rank = record_->rank.load();
  rank_state.world_size = record_->world_size.load();
  rank_state.finalized = record_->finalized.load();
  rank_state.incomplete = record_->incomplete.load();
  rank_state.unknown_calls = record_->unknown_calls.load();
  for (std::size_t i = 0; i < turns_.size(); ++i) {
    const ThreadRecord& thread = record_->threads[i];
    if (thread.thread.load() == 0) continue;
    const std::uint64_t turn = thread.turn.load(std::memory_order_acquire);
    Wait wait;
    wait.call = thread.call.load();
    wait.seconds = std::chrono::duration<double>(now - since_[i]).count();
    const std::uint32_t requests = thread.waits.load(std::memory_order_acquire);
    for (std::uint32_t at = 0; at < requests && at < ThreadRecord::most_waits; ++at) {
      const RequestRecord& one = record_->requests[thread.requests[at].load() % record_->requests.size()];
      if (one.turn.load(std::memory_order_acquire) % 2) wait.requests.push_back(one.call.load());
    }
    wait.all_requests = requests <= ThreadRecord::most_waits;
    std::atomic_thread_fence(std::memory_order_acquire);
    if (turn % 2 == 0 || thread.turn.load(std::memory_order_relaxed) != turn)
      rank_state.other_thread = true;
    else
      rank_state.waits.push_back(std::move(wait));
  }
  if (rank_state.waits.empty() && polling_) rank_state.polled = record_->polled.load();
  for (const RequestRecord& one : record_->requests)
    if (one.turn.load(std::memory_order_acquire) % 2) rank_state.outstanding.push_back(one.call.load());
  for (const CommunicatorRecord& one : record_->communicators) {
    const std::uint64_t id = one.id.load(std::memory_order_acquire);
    if (id == 0) continue;
    CommunicatorState state{id, one.collectives.load(std::memory_order_acquire), one.size.load(), one.rank.load(),
                            one.of_nccl.load()};
    const std::uint64_t first =
        state.collectives < CommunicatorRecord::past ? 1 : state.collectives - CommunicatorRecord::past + 1;
    for (std::uint64_t n = first; n <= state.collectives && !one.freed; ++n)
      state.history.push_back(one.history[n % CommunicatorRecord::past].load());
    for (const auto& of_kind : one.of_kind) state.of_kind.push_back(of_kind.load(std::memory_order_relaxed));
    std::atomic_thread_fence(std::memory_order_acquire);
    if (one.collectives.load(std::memory_order_relaxed) != state.collectives)  // it moves: half of it may be newer
      state.history.clear(), state.of_kind.clear();
    rank_state.communicators.push_back(std::move(state));
  }
  for (const TrafficRecord& one : record_->traffic)
    if (const std::uint64_t id = one.communicator.load(std::memory_order_acquire)) {
      const std::uint64_t key = one.peer_and_tag.load() - 1;
      rank_state.traffic.push_back({id, static_cast<std::int32_t>(key >> 32), static_cast<std::int32_t>(key),
                                    one.sent.load(), one.received.load()});
    }
  return rank_state;
}

}  // namespace who_waits
