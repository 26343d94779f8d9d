#include <multinode/check.hpp>
#include <multinode/text.hpp>
#include <multinode/watchdog.hpp>

#include <unistd.h>

#include <algorithm>
#include <iostream>

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
  store_.start_pump();
  store_.tell({.operation = protocol::Operation::beat}, true);  // from now on the server reports this rank's death
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

void Watchdog::set_abort(std::function<void()> abort) {
  const std::lock_guard lock(mutex_);
  abort_ = std::move(abort);
}

void Watchdog::fail(const std::string& reason, int status) {
  const protocol::Verdict mine{identity_.speaks_without_store, static_cast<std::uint8_t>(status),
                               identity_.who + ": " + reason};
  try {
    store_.tell({.operation = protocol::Operation::fail,
                 .value = reason.substr(0, protocol::max_key),
                 .status = static_cast<std::uint8_t>(status)},
                true);
    std::this_thread::sleep_for(verdict_limit);  // the thread gets the verdict and ends the process
  } catch (const std::runtime_error&) {
  }
  end(mine);
}

void Watchdog::watch() try {
  const milliseconds long_wait = std::min<milliseconds>(10s, timeout_ / 2);
  std::uint64_t seen = 0, seen_outstanding = 0;
  Clock::time_point since = Clock::now(), outstanding_since = since, beat, sign = since;
  Progress told;
  for (int beats = 0;;) {
    const Clock::time_point now = Clock::now();
    const auto waited_since = [now](Clock::time_point then) {
      return std::chrono::duration_cast<milliseconds>(now - then);
    };
    Progress mine;
    mine.sequence = sequence_.load(std::memory_order_acquire);
    mine.collectives = collectives_.load(std::memory_order_relaxed);
    mine.peer = peer_.load(std::memory_order_relaxed);
    mine.name = name_.load(std::memory_order_relaxed);
    if (std::exchange(seen, mine.sequence) != mine.sequence) since = now;
    milliseconds waited = mine.sequence % 2 == 1 ? waited_since(since) : 0ms;
    // What a device waits for is the reason of the process's own, shorter wait.
    const std::uint64_t number = outstanding_.number.load(std::memory_order_acquire);
    if (std::exchange(seen_outstanding, number) != number) outstanding_since = now;
    if (const auto its = waited_since(outstanding_since); number > 0 && its >= std::max(long_wait, waited)) {
      waited = its;
      mine = {.sequence = 2 * number + 1,
              .collectives = outstanding_.collectives.load(std::memory_order_relaxed),
              .peer = outstanding_.peer.load(std::memory_order_relaxed),
              .name = outstanding_.name.load(std::memory_order_relaxed)};
    }
    if (mine.sequence % 2 == 1) {
      mine.waited_ms = static_cast<std::uint32_t>(waited.count());
      if (waited >= timeout_)
        mine.wait = Progress::Wait::expired;
      else if (waited >= long_wait)
        mine.wait = Progress::Wait::long_one;
      if (waited >= timeout_ + judging)
        end({identity_.speaks_without_store, exit_wrong,
             identity_.who + ": timed out after " + detail::to_text(timeout_) + " in " + mine.name});
    }
    if ((now - beat >= heartbeat || mine.wait > told.wait) &&
        store_.tell({.operation = protocol::Operation::beat,
                     .status = static_cast<std::uint8_t>(beats % beats_per_pulse == 0),
                     .progress = mine},
                    false)) {
      ++beats;
      beat = now;
      told = mine;
    }
    if (const auto said = store_.pump(now + tick)) {
      sign = Clock::now();
      if (said->status == protocol::Status::notice) say(said->body);
      if (said->status == protocol::Status::verdict) end(protocol::parse_verdict(said->body));
    } else if (Clock::now() - sign >= std::max(timeout_, silence)) {
      end({identity_.speaks_without_store, exit_wrong,
           identity_.server + " is frozen, or cut off: no answer for " + detail::to_text(timeout_)});
    }
  }
} catch (const std::runtime_error&) {
  if (!leaving_) end({identity_.speaks_without_store, exit_wrong, identity_.server + " is gone"});
}

void Watchdog::say(const std::string& text) const {
  std::cerr << identity_.program + ": " + one_line(text) + "\n" << std::flush;
}

// Prints the verdict, calls the abort function, and ends the process.
void Watchdog::end(const protocol::Verdict& verdict) {
  if (ending_.exchange(true))
    for (;;) pause();  // another thread is ending the process
  const int status = verdict.status > 0 && verdict.status < 128 ? verdict.status : int(exit_wrong);
  bool left = false;
  if (verdict.speak) {
    say(verdict.text);
    try {
      left = store_.tell({.operation = protocol::Operation::goodbye}, false);  // now the server tells the others
    } catch (const std::runtime_error&) {
    }
  }
  // The process that serves the store stays until the others have read the verdict and left.
  if (identity_.serves) identity_.serves->linger(1s, left ? 0 : 1);
  std::jthread limit([status] {
    std::this_thread::sleep_for(abort_limit);
    _exit(status);
  });
  std::function<void()> abort;
  {
    const std::lock_guard lock(mutex_);
    abort = abort_;
  }
  if (abort) abort();
  _exit(status);
}

}  // namespace multinode
