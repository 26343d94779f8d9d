// watchdog.hpp: one thread per process that enforces all deadlines.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <multinode/node/limits.hpp>
#include <multinode/store/peer.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace multinode {

class TcpStore;
class TcpStoreServer;
namespace protocol {
struct Verdict;
}

// Blocking calls of MPI, NCCL and Gloo do not time out reliably, and polling them costs time. So a call is only
// announced (a few atomic stores, no clock, no lock), and the watchdog's thread looks at the announcement. It sends the
// rank's progress as a heartbeat to the store's server, outside the collective library. The server alone judges
// (arbiter.hpp):
//  - When a call has lasted half of the deadline (at most 10 s) and a rank is late, it lets the waiting rank report
//    that once per job, in a line "PROGRAM: stalled: ..." on stderr.
//  - When a call has lasted longer than the deadline, it finds the late rank. When the connection of a rank closes,
//    that rank is dead. Either is the verdict, which all ranks get: they name the same culprit.
//  - At a verdict a rank prints it, calls the abort function, and ends the process with the verdict's exit status, even
//    if the abort function does not return in 2 s.
class Watchdog {
 public:
  struct Identity {
    std::string program;
    std::string who;     // "rank 1 (host h, pid p)"
    std::string server;  // the process with the store, for messages: "rank 0, which serves the store at h:p,"
    TcpStoreServer* serves = nullptr;  // the store's server, if this process has it
    bool prints_without_store = true;  // prints the verdict even if the store cannot be reached
  };

  // Receives for all users of the store, whose hello was that of a rank; `store` must outlive the watchdog.
  Watchdog(TcpStore& store, Identity identity, std::chrono::milliseconds timeout);
  ~Watchdog();  // says goodbye to the store
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // The operations of one thread at a time; see protocol::Lane.
  struct Announcement {
    std::atomic<const char*> name{"start"};
    std::atomic<int> peer{everyone};
    std::atomic<std::uint64_t> collectives{0}, sequence{0};
  };

  // Announces, while it lives, that this process is inside `name` with `peer` (a rank, everyone or nobody). One at a
  // time in a lane, on any thread: inside another one it throws std::logic_error, as neither would have a deadline.
  class Operation {
   public:
    Operation(Watchdog& watchdog, const char* name, int peer) : Operation(watchdog.program_, name, peer) {}
    Operation(Announcement& announcement, const char* name, int peer) : announcement_(announcement) {
      if (announcement_.sequence.load(std::memory_order_relaxed) % 2 == 1) [[unlikely]]
        refuse(name, announcement_.name.load(std::memory_order_relaxed));
      announcement_.name.store(name, std::memory_order_relaxed);
      announcement_.peer.store(peer, std::memory_order_relaxed);
      if (peer == everyone) bump(announcement_.collectives);
      bump(announcement_.sequence);
    }
    ~Operation() { bump(announcement_.sequence); }
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;

   private:
    [[noreturn]] static void refuse(const char* name, const char* outer);
    // One writer at a time: no read-modify-write needed.
    static void bump(std::atomic<std::uint64_t>& counter) noexcept {
      counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    }
    Announcement& announcement_;
  };

  struct Announced {  // in the program's lane
    const char* name = nullptr;
    int peer = everyone;
    std::uint64_t collectives = 0;  // so many operations with everyone, this one included
  };
  Announced last() const noexcept {
    return {program_.name.load(std::memory_order_relaxed), program_.peer.load(std::memory_order_relaxed),
            program_.collectives.load(std::memory_order_relaxed)};
  }

  // The oldest operation that a device has been given and has not done: a wait like any other, even if no thread is
  // inside an operation. The numbers grow; 0: there is none. One thread at a time.
  void set_outstanding(const Announced& operation, std::uint64_t number) noexcept {
    outstanding_.name.store(operation.name, std::memory_order_relaxed);
    outstanding_.peer.store(operation.peer, std::memory_order_relaxed);
    outstanding_.collectives.store(operation.collectives, std::memory_order_relaxed);
    outstanding_.number.store(number, std::memory_order_release);
  }

  // `name` must outlive the watchdog: a string literal.
  [[nodiscard]] Operation enter(const char* name, int peer = everyone) { return {program_, name, peer}; }
  // For the World's own collectives, beside which the communicator's thread may be inside another one.
  [[nodiscard]] Operation enter_world(const char* name) { return {world_, name, everyone}; }

  // `abort` makes the collective library give up. It is called once, when the process has to end, on the watchdog's
  // thread or, if the store is lost, in fail().
  void set_abort(std::function<void()> abort);

  // Makes `reason` and `status` the verdict unless there is one already, and ends the process with the verdict's
  // status.
  [[noreturn]] void fail(const std::string& reason, int status);

 private:
  void watch();
  void say(const std::string& text) const;
  [[noreturn]] void end(const protocol::Verdict& verdict);

  Announcement program_, world_;
  struct {
    std::atomic<const char*> name{nullptr};
    std::atomic<int> peer{everyone};
    std::atomic<std::uint64_t> collectives{0}, number{0};
  } outstanding_;
  const Identity identity_;
  const std::chrono::milliseconds timeout_;
  TcpStore& store_;
  const OomWatch memory_;  // of this node's processes
  std::mutex mutex_;       // of abort_
  std::function<void()> abort_;
  std::atomic<bool> ending_ = false, leaving_ = false;
  std::thread thread_;
};

}  // namespace multinode
