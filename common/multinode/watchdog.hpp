// watchdog.hpp: one thread per process that enforces all deadlines.
#pragma once

#include <multinode/tcp_store.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace multinode {

// Blocking calls of MPI, NCCL and Gloo do not time out reliably, and polling them costs time. So a call is only
// announced (a few atomic stores, no clock, no lock), and the watchdog's thread looks at the announcement:
//  - Every half second it publishes this rank's progress in the store, outside the collective library.
//  - When a call has lasted half of the deadline (at most 10 s) and a rank is late, it reports that once per job, in a
//    line "PROGRAM: stalled: ..." on stderr.
//  - When a call has lasted longer than the deadline, it finds the late rank and writes the verdict into the store with
//    compare-and-set, so that all ranks name the same culprit: the store is the only arbiter.
//  - When there is a verdict (its own, another rank's, or the last will of a dead rank), it prints it, calls the abort
//    function, and ends the process with the verdict's exit status, even if the abort function does not return in 2 s.
class Watchdog {
 public:
  static constexpr int everyone = -1;
  static constexpr int nobody = -2;  // a wait for something other than a rank, such as a disk

  struct Identity {
    std::string program;
    int rank = 0;
    int world_size = 1;
    std::string where;   // "host h, pid p"
    std::string node;    // one rank per node prints the verdict
    std::string server;  // the process with the store, for messages: "rank 0, which serves the store at h:p,"
    TcpStoreServer* serves = nullptr;  // the store's server, if this process has it and one more client of it
    bool speaks_without_store = true;  // prints the verdict even if the store cannot be reached
  };

  // Connects to the store, with the last will "rank R (where) is gone", and once more in fail(). Keys begin with
  // `prefix`. Throws StoreTimeout.
  Watchdog(Endpoint server, std::string prefix, Identity identity, std::chrono::milliseconds timeout);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Announces, while it lives, that this process is inside `name` with `peer` (a rank, everyone or nobody). One at a
  // time, on any thread.
  class Operation {
   public:
    Operation(Watchdog& watchdog, const char* name, int peer) noexcept : watchdog_(watchdog) {
      watchdog_.name_.store(name, std::memory_order_relaxed);
      watchdog_.peer_.store(peer, std::memory_order_relaxed);
      if (peer == everyone) bump(watchdog_.collectives_);
      bump(watchdog_.sequence_);  // odd: inside
    }
    ~Operation() { bump(watchdog_.sequence_); }
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;

   private:
    // One writer at a time: no read-modify-write needed.
    static void bump(std::atomic<std::uint64_t>& counter) noexcept {
      counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    }
    Watchdog& watchdog_;
  };

  // `name` must outlive the watchdog: a string literal.
  [[nodiscard]] Operation enter(const char* name, int peer = everyone) noexcept { return Operation(*this, name, peer); }

  // `abort` makes the collective library give up. It is called once, when the process has to end, on the watchdog's
  // thread or in fail().
  void set_abort(std::function<void()> abort);

  // Makes `reason` and `status` the verdict unless there is one already, and ends the process with the verdict's
  // status.
  [[noreturn]] void fail(const std::string& reason, int status);

 private:
  class Implementation;
  std::atomic<const char*> name_{"start"};
  std::atomic<int> peer_{everyone};
  std::atomic<std::uint64_t> collectives_{0};
  std::atomic<std::uint64_t> sequence_{0};
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace multinode
