// watchdog.hpp: one thread a process that owns all deadlines.
#pragma once

#include <multinode/tcp_store.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace multinode {

// Blocking calls of MPI, NCCL and Gloo cannot be relied on to time out, and polling them costs time. So a call is only
// announced (two atomic stores, no clock, no lock), and the watchdog's thread looks at the announcement:
//  - every half second it publishes how far this rank is to the store, outside the collective library;
//  - when a call has lasted for half of the deadline (10 s at most) and a rank is late, it says so, once in the job:
//    a line on stderr that begins with "stalled:";
//  - when a call has lasted longer than the deadline it reads who is behind and writes the verdict into the store with
//    compare-and-set, so that all ranks name the same culprit: the store is the only arbiter;
//  - when there is a verdict (its own, another rank's, or the last will of a rank that died) it prints it, calls the
//    abort function, and ends the process with exit_wrong, after 2 s at the latest.
class Watchdog {
 public:
  static constexpr int everyone = -1;
  static constexpr int nobody = -2;  // a wait for something else than another rank: a disk

  struct Identity {
    std::string program;
    int rank = 0;
    int world_size = 1;
    std::string where;                 // "host h, pid p"
    std::string node;                  // ranks of one node share a terminal: one of them prints the verdict
    std::string server;                // who serves the store: "rank 0, which serves the store at h:p,"
    TcpStoreServer* serves = nullptr;  // this process does, and has one client of it beside the watchdog
    bool speaks_without_store = true;  // prints although nobody can be asked who does
  };

  // Connects to the store twice: to watch (the connection's will: "rank R (where) is gone") and, in fail(), to say why.
  // Keys begin with `prefix`.
  Watchdog(Endpoint server, std::string prefix, Identity identity, std::chrono::milliseconds timeout);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // While it lives, this process is inside `name` with `peer` (a rank, everyone or nobody). One at a time, from any
  // thread.
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

  // Called on the watchdog's thread, once, when the process has to end: gets the collective library to give up.
  void set_abort(std::function<void()> abort);

  // Makes `reason` the verdict, unless there is one already, and ends the process as the verdict says.
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
