// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/check.hpp>
#include <multinode/base/output.hpp>
#include <multinode/store/tcp_store.hpp>
#include <multinode/world/watchdog.hpp>

#include <unistd.h>

#include <algorithm>
#include <system_error>

namespace multinode {

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;
using protocol::Progress;
using std::chrono::milliseconds;

constexpr auto tick = 100ms;  // interval of looking at the announcement
constexpr auto heartbeat = 500ms;
constexpr int beats_per_pulse = 4;     // the server answers one heartbeat of so many
constexpr milliseconds silence = 5s;   // of the server is tolerated, even if the deadline is shorter
constexpr auto verdict_limit = 3s;     // after a failure; the server takes 300 ms
constexpr milliseconds judging = 15s;  // beyond the deadline, if the server never decides
constexpr auto abort_limit = 2s;

}  // namespace

Watchdog::Watchdog(TcpStore& store, Identity identity, milliseconds timeout)
    : identity_(std::move(identity)), timeout_(timeout), store_(store) {
  store_.start_receiving();
  store_.send_status({.operation = protocol::Operation::beat},
                     true);  // from now on the server reports this rank's death
  thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  leaving_ = true;
  try {
    store_.goodbye();                    // the server then closes the connection, which ends the thread
  } catch (const std::runtime_error&) {  // the store is already gone
  }
  thread_.join();
}

void Watchdog::Operation::refuse(const char* name, const char* outer) {
  throw std::logic_error(std::string("Watchdog::enter() of '") + name + "' inside '" + outer + "'");
}

void Watchdog::set_abort(std::function<void()> abort) {
  const std::lock_guard lock(mutex_);
  abort_ = std::move(abort);
}

void Watchdog::fail(const std::string& reason, int status) {
  const protocol::Verdict verdict{identity_.prints_without_store, static_cast<std::uint8_t>(status),
                                  identity_.who + ": " + reason};
  try {
    store_.send_status({.operation = protocol::Operation::fail,
                        .value = reason.substr(0, protocol::max_key),
                        .status = static_cast<std::uint8_t>(status)},
                       true);
    std::this_thread::sleep_for(verdict_limit);  // the thread gets the verdict and ends the process
  } catch (const std::runtime_error&) {
  }
  end(verdict);
}

void Watchdog::watch() try {
  const milliseconds long_wait = std::min<milliseconds>(10s, timeout_ / 2);
  struct Seen {  // an operation, and when it was first seen
    std::uint64_t number = 0;
    Clock::time_point since = Clock::now();

    milliseconds time(std::uint64_t latest, Clock::time_point now) {
      if (std::exchange(number, latest) != latest) since = now;
      return std::chrono::duration_cast<milliseconds>(now - since);
    }
  } program, world, device;
  Clock::time_point now = Clock::now(), beat, sign = now;
  // Also after a wait: no time passes here while this process is stopped.
  const auto look_at_the_clock = [&] {
    const Clock::time_point before = std::exchange(now, Clock::now());
    for (auto* time : {&program.since, &world.since, &device.since, &sign}) *time += stopped_between(before, now);
  };
  const auto progress_in = [](protocol::Lane lane, const Announcement& own, const Announcement& other) {
    return Progress{.sequence = own.sequence.load(std::memory_order_acquire),
                    .collectives = own.collectives.load(std::memory_order_relaxed),
                    .peer = own.peer.load(std::memory_order_relaxed),
                    .name = own.name.load(std::memory_order_relaxed),
                    .lane = lane,
                    .collectives_in_other_lane = other.collectives.load(std::memory_order_relaxed)};
  };
  Progress told;
  for (int beats = 0;;) {
    look_at_the_clock();
    Progress shown = progress_in(protocol::Lane::program, program_, world_),
             worlds = progress_in(protocol::Lane::world, world_, program_);
    milliseconds waited = program.time(shown.sequence, now);
    const milliseconds in_world = world.time(worlds.sequence, now);
    // The lane that has waited longest, or, if there is none, the one that was used last.
    if (worlds.is_inside() ? !shown.is_inside() || world.since < program.since
                           : !shown.is_inside() && (shown.sequence == 0 || world.since > program.since)) {
      shown = std::move(worlds);
      waited = in_world;
    }
    if (!shown.is_inside()) waited = 0ms;
    // What a device waits for is the reason of the process's own, shorter wait.
    const std::uint64_t number = outstanding_.number.load(std::memory_order_acquire);
    if (const auto device_wait = device.time(number, now); number > 0 && device_wait >= std::max(long_wait, waited)) {
      waited = device_wait;
      shown = progress_in(protocol::Lane::program, program_, world_);
      shown.sequence = 2 * number + 1;
      shown.collectives = outstanding_.collectives.load(std::memory_order_relaxed);
      shown.peer = outstanding_.peer.load(std::memory_order_relaxed);
      shown.name = outstanding_.name.load(std::memory_order_relaxed);
    }
    if (shown.is_inside()) {
      shown.waited_ms = static_cast<std::uint32_t>(waited.count());
      if (waited >= timeout_)
        shown.wait = Progress::Wait::expired;
      else if (waited >= long_wait)
        shown.wait = Progress::Wait::long_one;
      if (waited >= timeout_ + judging)
        end({identity_.prints_without_store, exit_wrong,
             identity_.who + ": timed out after " + to_text(timeout_) + " in " + shown.name});
    }
    if ((now - beat >= heartbeat || shown.wait > told.wait) &&
        store_.send_status({.operation = protocol::Operation::beat,
                            .status = static_cast<std::uint8_t>(beats % beats_per_pulse == 0),
                            .progress = shown},
                           false)) {
      ++beats;
      beat = now;
      told = shown;
    }
    const auto said = store_.receive_event(tick);
    look_at_the_clock();
    if (said) {
      sign = now;
      if (said->status == protocol::Status::notice) say(said->body);
      if (said->status == protocol::Status::verdict) end(protocol::parse_verdict(said->body));
    } else if (now - sign >= std::max(timeout_, silence)) {
      end({identity_.prints_without_store, exit_wrong,
           identity_.server + " is frozen, or cut off: no answer for " + to_text(timeout_)});
    }
  }
} catch (const std::runtime_error& lost) {
  if (!leaving_)
    end({identity_.prints_without_store, exit_wrong, identity_.server + " is gone, or cut off: " + lost.what()});
}

void Watchdog::say(const std::string& text) const { multinode::say(identity_.program, text); }

// Prints the verdict, calls the abort function, and ends the process.
void Watchdog::end(const protocol::Verdict& verdict) {
  if (ending_.exchange(true))
    for (;;) pause();  // another thread is ending the process
  const int status = verdict.status > 0 && verdict.status < 128 ? verdict.status : int(exit_wrong);
  bool left = false;
  if (verdict.print) {
    say(verdict.text + memory_.reason());
    try {
      left = store_.send_status({.operation = protocol::Operation::goodbye}, false);  // now the server tells the others
    } catch (const std::runtime_error&) {
    }
  }
  // The process that serves the store stays until the others have read the verdict and left.
  if (identity_.serves) identity_.serves->wait_for_disconnects(1s, left ? 0 : 1);
  try {
    std::thread([status] {
      std::this_thread::sleep_for(abort_limit);
      _exit(status);
    }).detach();
  } catch (const std::system_error&) {  // no memory or no permission for a thread: abort() might never return
    _exit(status);
  }
  std::function<void()> abort;
  {
    const std::lock_guard lock(mutex_);
    abort = abort_;
  }
  if (abort) abort();
  _exit(status);
}

}  // namespace multinode
