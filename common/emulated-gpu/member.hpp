// member.hpp: one rank of a communicator, with its connection to the hub.
#pragma once

#include "hub.hpp"
#include "wire.hpp"

#include <cuda_runtime_api.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace emulated_gpu {

// Thrown by a call that fails.
struct NcclError {
  ncclResult_t code = ncclSuccess;
  std::string text;
};

// One call of a rank: its buffers, and the message to the hub.
struct Call {
  CallMessage post;
  const void* in = nullptr;
  void* out = nullptr;
  const void* factor_at = nullptr;  // in device memory, read when the call is executed
};

// Reports `text`, "... for 10 s now", once, if end_wait(what) does not follow before the deadline.
void begin_wait(const void* what, const std::string& text);
void end_wait(const void* what);

class Member : public std::enable_shared_from_this<Member> {
 public:
  Member(std::string call, int rank, int size, int device, bool blocking)
      : call_(std::move(call)),
        rank_(rank),
        size_(size),
        device_(device),
        blocking_(blocking),
        machine_(own_machine()) {}
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int device() const { return device_; }
  bool blocking() const { return blocking_; }
  const std::string& hub() const { return hub_; }  // the unique id
  std::string communicator_id() const { return hub_ + session_; }

  // Connects to the hub of `id` and waits for the other ranks.
  void join(const std::string& id, const std::string& session);

  // Runs function() on this thread. A non-blocking communicator runs it on another one and returns ncclInProgress.
  ncclResult_t run(std::function<void()> function);

  NcclError state() const;                             // for ncclCommGetAsyncError
  void require_ready(const std::string& call) const;   // throws unless it has no error and no call in progress
  void require_usable(const std::string& call) const;  // throws unless operations may be called, too

  // Sets up the connections that the calls need and no call before them has: the first send or receive with a peer, and
  // since 2.22 the first collective, block the calling thread until the peers call as well.
  void connect(const std::vector<Call>& calls);
  // Enqueues the calls as one task.
  void issue(std::vector<Call> calls, const std::vector<cudaStream_t>& streams);

  // The bytes of all ranks, in order of rank. Throws if the communicator fails or is aborted before all have called.
  std::vector<std::byte> exchange(Op op, std::span<const std::byte> part);

  // A unique id, for a communicator that is made out of this one, of a hub in the process of `rank`, and names for its
  // sessions.
  std::string next_child() { return session_ + "/" + std::to_string(++children_); }
  // An abort of this communicator also aborts `child`, which is joining.
  void set_child(std::shared_ptr<Member> child);

  void finalize(const char* call);
  void destroy() { stop(Kind::goodbye); }
  void abort() { stop(Kind::aborted); }

  // Reductions of this communicator; guarded by operators_mutex.
  struct Operator {
    ncclDataType_t type;
    Scalar factor;
    const void* factor_at;
  };
  std::mutex operators_mutex;
  std::map<int, Operator> operators;
  int next_operator = ncclNumOps;

 private:
  struct Pending {
    std::size_t bytes = 0;
    std::vector<std::byte> data{};
    bool done = false;
  };

  // Lives as long as a call can be made: beyond the call only in a graph.
  struct Use {
    explicit Use(std::shared_ptr<Member> of) : member(std::move(of)) { member->count_use(1); }
    ~Use() { member->count_use(-1); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    std::shared_ptr<Member> member;
  };
  void count_use(int change);
  void wait_for_graphs(std::unique_lock<std::mutex>& lock, const char* call);

  void number(Call& call);
  void perform(std::vector<Call> calls);
  void transact_or_throw(const std::vector<Call>& calls);
  bool transact(const std::vector<Call>& calls, bool of_stream);
  void read();
  void fail(const NcclError& failure);
  void stop(Kind how);

  const std::string call_;
  const int rank_, size_;
  const int device_;
  const bool blocking_;
  const std::string machine_;
  std::string hub_, session_;
  std::string hub_machine_;
  std::atomic<int> children_{0};
  std::thread reader_, job_;

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::shared_ptr<Connection> connection_;
  std::shared_ptr<Member> child_;
  NcclError failure_;
  bool ready_ = false, in_progress_ = false, finalized_ = false, stopped_ = false, ended_ = false, reading_ = false;
  std::map<std::uint64_t, Pending> pending_;
  std::uint64_t next_id_ = 0, collectives_ = 0, exchanges_ = 0;
  std::map<int, std::uint64_t> sends_, recvs_;
  std::set<std::pair<Op, int>> connected_;  // and the peer, or -1
  std::uint64_t issued_ = 0, performed_ = 0, inside_ = 0;
  int uses_ = 0;
};

}  // namespace emulated_gpu
