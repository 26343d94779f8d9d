// member.hpp: one rank of a communicator, with its connection to the hub.
#pragma once

#include "wire.hpp"

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <vector>

namespace emulated_gpu {

// One call of a rank: its buffers, and the message to the hub.
struct Call {
  CallMessage post;
  const void* in = nullptr;
  void* out = nullptr;
};

class Member : public std::enable_shared_from_this<Member> {
 public:
  // Connects to the hub of `id` and waits for the other ranks. `call` makes the communicator. Throws NcclError.
  Member(const std::string& call, const std::string& id, int rank, int size, int device, const std::string& machine);
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int device() const { return device_; }

  NcclError failure() const;                           // for ncclCommGetAsyncError
  void require_usable(const std::string& call) const;  // throws after a failure or ncclCommFinalize

  // Sets up the connections that the calls need and no call before them has: the first send or receive with a peer, and
  // since 2.22 the first collective, block the calling thread until the peers call as well.
  void connect(const std::vector<Call>& calls);
  // Enqueues the calls as one task.
  void issue(std::vector<Call> calls, cudaStream_t stream);

  void finalize(const char* call);
  void stop(Kind how);  // goodbye or aborted

 private:
  void count_use(int change);
  void wait_for_graphs(std::unique_lock<std::mutex>& lock, const char* call);

  void number(Call& call);
  void perform(const std::vector<Call>& calls);
  bool transact(const std::vector<Call>& calls, bool of_stream);
  void read();
  void fail(const NcclError& failure);

  const int rank_, size_, device_;
  bool hub_is_here_ = false;  // on the same machine
  std::unique_ptr<Connection> connection_;
  std::thread reader_;

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  NcclError failure_;
  bool finalized_ = false, stopped_ = false, reading_ = true;
  std::map<std::uint64_t, std::optional<std::vector<std::byte>>> pending_;  // the answers
  std::uint64_t next_id_ = 0, collectives_ = 0;
  std::map<int, std::uint64_t> sends_, recvs_;
  std::set<std::pair<Op, int>> connected_;  // and the peer, or -1
  std::uint64_t issued_ = 0, performed_ = 0, inside_ = 0;
  int uses_ = 0;
};

}  // namespace emulated_gpu
