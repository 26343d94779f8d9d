#include <multinode/check.hpp>
#include <multinode/text.hpp>
#include <multinode/watchdog.hpp>

#include <fmt/core.h>

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <iostream>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <thread>
#include <vector>

namespace multinode {

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto tick = 100ms;  // interval of looking for a verdict
constexpr auto publish_interval = 500ms;
constexpr int judging_beats = 4;  // publications between the two snapshots of all ranks that a judgement needs
constexpr auto abort_limit = 2s;

// The progress that a rank publishes.
struct Progress {
  std::uint64_t sequence = 0;  // odd: inside an operation
  std::uint64_t collectives = 0;
  int peer = Watchdog::everyone;
  std::uint64_t beat = 0;  // number of publications: it stands still if the process is frozen
  std::string where;
  std::string name;

  bool inside() const { return sequence % 2 == 1; }
  std::string text() const {
    return fmt::format("{} {} {} {}\n{}\n{}", sequence, collectives, peer, beat, where, name);
  }
  static std::optional<Progress> parse(const std::string& text) {
    std::istringstream in(text);
    Progress p;
    if (!(in >> p.sequence >> p.collectives >> p.peer >> p.beat) || in.get() != '\n') return std::nullopt;
    std::getline(in, p.where);
    std::getline(in, p.name);
    return p;
  }
  std::string doing() const {
    if (!inside())
      return sequence == 0 ? "in its own code, before the first operation" : "in its own code, after " + operation();
    return "in " + operation();
  }
  std::string operation() const {
    if (peer == Watchdog::nobody) return name;
    if (peer != Watchdog::everyone) return name + " with rank " + std::to_string(peer);
    return name + " (collective number " + std::to_string(collectives) + ")";
  }
};

std::string rank_text(int rank, const std::string& where) {
  return "rank " + std::to_string(rank) + " (" + where + ")";
}

std::string seconds_text(std::chrono::milliseconds time) {
  return fmt::format("{:g} s", std::chrono::duration<double>(time).count());
}

using Everyone = std::vector<std::optional<Progress>>;

struct Judgement {
  std::string text;
  std::optional<std::size_t> culprit;  // nullopt: no rank is behind this one
};

// Finds the rank that `me` waits for. `before` and `after` are what all ranks published, judging_beats publications
// apart.
Judgement judge(int me, const Everyone& before, const Everyone& after, const std::string& waiting) {
  const auto rank_of = [](int r, const Progress& p) { return rank_text(r, p.where); };
  std::vector<std::size_t> missing;
  for (std::size_t r = 0; r < after.size(); ++r)
    if (!after[r]) missing.push_back(r);
  if (!missing.empty())
    return {waiting + "; " + rank_list(missing) + " of " + std::to_string(after.size()) + " never came", missing[0]};
  std::vector<std::size_t> silent;
  for (std::size_t r = 0; r < after.size(); ++r)
    if (before[r] && after[r]->beat == before[r]->beat) silent.push_back(r);
  if (!silent.empty()) {
    const Progress& first = *after[silent[0]];
    std::string text = waiting + "; " + rank_of(int(silent[0]), first) +
                       " is frozen, or cut off: it gives no sign of life, and was last " + first.doing();
    for (std::size_t i = 1; i < silent.size(); ++i)
      text += (i == 1 ? "; the same of rank " : ", ") + rank_of(int(silent[i]), *after[silent[i]]).substr(5);
    return {text, silent[0]};
  }
  if (after[std::size_t(me)]->peer == Watchdog::nobody) return {waiting, std::size_t(me)};
  // Between two ranks: follow the chain of peers to the rank that waits for no other.
  if (after[std::size_t(me)]->peer != Watchdog::everyone) {
    int at = me;
    for (std::size_t hops = 0; hops < after.size(); ++hops) {
      const Progress& p = *after[std::size_t(at)];
      if (!p.inside() || p.peer < 0) {
        if (at == me) break;
        return {waiting + "; " + rank_of(at, p) + " is late: it is " + p.doing(), std::size_t(at)};
      }
      at = p.peer;
    }
    const Progress& p = *after[std::size_t(after[std::size_t(me)]->peer)];
    return {waiting + "; " + rank_of(after[std::size_t(me)]->peer, p) + " is " + p.doing(), {}};
  }
  // A collective: the rank that has entered the fewest.
  std::size_t late = 0;
  for (std::size_t r = 1; r < after.size(); ++r)
    if (after[r]->collectives < after[late]->collectives) late = r;
  if (after[late]->collectives < after[std::size_t(me)]->collectives)
    return {waiting + "; " + rank_of(int(late), *after[late]) + " is late: it is " + after[late]->doing(), late};
  return {waiting + "; every rank has entered it: the library or the network is stuck", {}};
}

}  // namespace

class Watchdog::Implementation {
 public:
  Implementation(Watchdog& owner, Endpoint server, std::string prefix, Identity identity,
                 std::chrono::milliseconds timeout)
      : owner_(owner),
        server_(std::move(server)),
        prefix_(std::move(prefix)),
        identity_(std::move(identity)),
        timeout_(timeout),
        store_(server_, timeout) {
    store_.will(verdict_key(),
                verdict_text(exit_wrong, rank_text(identity_.rank, identity_.where) +
                                             " is gone: it was killed, or it exited without an error message"));
    publish();
    thread_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
  }

  ~Implementation() {
    thread_.request_stop();
    thread_.join();
  }

  void set_abort(std::function<void()> abort) {
    const std::lock_guard lock(mutex_);
    abort_ = std::move(abort);
  }

  [[noreturn]] void fail(const std::string& reason, int status) {
    const std::string mine = verdict_text(status, rank_text(identity_.rank, identity_.where) + ": " + reason);
    std::string verdict = mine;
    try {
      // This rank may have failed only because another one died, whose will the server is about to execute.
      TcpStore store(server_, 2s);
      if (status == exit_wrong) wait_for_verdict(store, 300ms);
      verdict = store.compare_set(verdict_key(), "", mine);
      end(verdict, &store);
    } catch (const std::runtime_error&) {
      end(verdict, nullptr);
    }
  }

 private:
  std::string key(const std::string& name) const { return prefix_ + "/watchdog/" + name; }
  std::string verdict_key() const { return key("verdict"); }
  static std::string verdict_text(int status, const std::string& reason) {
    return std::to_string(status) + "\n" + reason;
  }

  void publish() {
    mine_.sequence = owner_.sequence_.load(std::memory_order_acquire);
    mine_.collectives = owner_.collectives_.load(std::memory_order_relaxed);
    mine_.peer = owner_.peer_.load(std::memory_order_relaxed);
    mine_.name = owner_.name_.load(std::memory_order_relaxed);
    mine_.where = identity_.where;
    ++mine_.beat;
    store_.set(key(std::to_string(identity_.rank)), mine_.text());
  }

  // The present value of `name`, "" if there is none. Not get(): its StoreTimeout could also mean a silent store.
  static std::string value_now(TcpStore& store, const std::string& name) { return store.compare_set(name, "", ""); }

  void wait_for_verdict(TcpStore& store, std::chrono::milliseconds limit) const {
    for (const auto end = Clock::now() + limit; Clock::now() < end && value_now(store, verdict_key()).empty();)
      std::this_thread::sleep_for(10ms);
  }

  void watch(const std::stop_token& stop) {
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable_any wake;
    std::uint64_t seen = 0;
    Clock::time_point since = Clock::now(), published = since;
    Stall stall;
    try {
      while (!wake.wait_for(lock, stop, tick, [&] { return stop.stop_requested(); })) {
        if (const std::string verdict = value_now(store_, verdict_key()); !verdict.empty()) end(verdict, &store_);
        const Clock::time_point now = Clock::now();
        if (now - published >= publish_interval) {
          publish();
          published = now;
        }
        const std::uint64_t sequence = owner_.sequence_.load(std::memory_order_acquire);
        if (sequence != seen) {
          seen = sequence;
          since = now;
          stall = {};
        } else if (sequence % 2 == 1 && now - since >= timeout_) {
          end(store_.compare_set(verdict_key(), "", verdict_text(exit_wrong, expired())), &store_);
        } else if (sequence % 2 == 1 && now - since >= std::min<std::chrono::milliseconds>(10s, timeout_ / 2)) {
          look_at(stall, now - since);
        }
      }
      store_.goodbye();
    } catch (const StoreTimeout&) {
      if (!stop.stop_requested())
        end(verdict_text(exit_wrong,
                         identity_.server + " is frozen, or cut off: no answer for " + seconds_text(timeout_)),
            nullptr);
    } catch (const std::runtime_error&) {
      if (!stop.stop_requested()) end(verdict_text(exit_wrong, identity_.server + " is gone"), nullptr);
    }
  }

  // A long wait of this rank.
  struct Stall {
    bool over = false;  // it has been reported, or another rank reports it
    Everyone before;
    std::uint64_t beat = 0;  // when `before` was read
  };

  // Reports once per job which rank is late. It does not block, so it is called repeatedly.
  void look_at(Stall& stall, Clock::duration lasted) {
    if (stall.over) return;
    if (stall.before.empty()) {
      publish();
      const std::string wait = mine_.peer == everyone ? "collective " + std::to_string(mine_.collectives)
                                                      : "operation " + std::to_string(mine_.sequence) + " of rank " +
                                                            std::to_string(identity_.rank);
      stall.over = store_.add(key("who looks at " + wait), 1) != 1;  // one of the ranks in the same wait reports it
      if (!stall.over) stall.before = everyone_now();
      stall.beat = mine_.beat;
    } else if (mine_.beat >= stall.beat + judging_beats) {
      stall.over = true;
      publish();
      const Everyone after = everyone_now();
      const auto [text, culprit] =
          judge(identity_.rank, stall.before, after,
                "stalled: " + rank_text(identity_.rank, identity_.where) + " has waited for " +
                    seconds_text(std::chrono::duration_cast<std::chrono::seconds>(lasted)) + " " + mine_.doing());
      if (!culprit) return;
      const auto& its = after[*culprit];
      const std::string state = std::to_string(*culprit) + " at " + std::to_string(its ? its->sequence : 0);
      if (store_.add(key("stall by rank " + state), 1) == 1)
        std::cerr << identity_.program + ": " + text + "\n" << std::flush;
    }
  }

  // The reason why this rank's operation has lasted too long.
  std::string expired() {
    publish();
    const std::string waiting = "timed out after " + seconds_text(timeout_) + ": " +
                                rank_text(identity_.rank, identity_.where) + " waits " + mine_.doing();
    const Everyone before = everyone_now();
    for (int beats = 0; beats < judging_beats; ++beats) {
      // Keep publishing: other ranks may be judging at the same time.
      wait_for_verdict(store_, publish_interval);
      publish();
    }
    return judge(identity_.rank, before, everyone_now(), waiting).text;
  }

  Everyone everyone_now() {
    Everyone all(static_cast<std::size_t>(identity_.world_size));
    for (std::size_t r = 0; r < all.size(); ++r) all[r] = Progress::parse(value_now(store_, key(std::to_string(r))));
    return all;
  }

  // Prints the verdict once per node, calls the abort function, and ends the process.
  [[noreturn]] void end(const std::string& verdict, TcpStore* store) {
    if (ending_.exchange(true))
      for (;;) pause();  // another thread is ending the process
    const std::size_t cut = verdict.find('\n');
    const int given = cut == std::string::npos ? 0 : std::atoi(verdict.c_str());
    const int status = given > 0 && given < 128 ? given : int(exit_wrong);
    bool speak = identity_.speaks_without_store;
    if (store) try {
        speak = store->add(key("said on " + identity_.node), 1) == 1;
      } catch (const std::runtime_error&) {
      }
    if (speak) std::cerr << identity_.program + ": " + verdict.substr(cut + 1) + "\n" << std::flush;
    // The process that serves the store stays until the others have read the verdict and left.
    if (identity_.serves) identity_.serves->linger(1s, store == &store_ ? 2 : 3);
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

  Watchdog& owner_;
  const Endpoint server_;
  const std::string prefix_;
  const Identity identity_;
  const std::chrono::milliseconds timeout_;
  TcpStore store_;  // used by the constructor first, then only by the thread
  Progress mine_;
  std::mutex mutex_;
  std::function<void()> abort_;
  std::atomic<bool> ending_{false};
  std::jthread thread_;
};

Watchdog::Watchdog(Endpoint server, std::string prefix, Identity identity, std::chrono::milliseconds timeout)
    : implementation_(std::make_unique<Implementation>(*this, std::move(server), std::move(prefix), std::move(identity),
                                                       timeout)) {}
Watchdog::~Watchdog() = default;
void Watchdog::set_abort(std::function<void()> abort) { implementation_->set_abort(std::move(abort)); }
void Watchdog::fail(const std::string& reason, int status) { implementation_->fail(reason, status); }

}  // namespace multinode
