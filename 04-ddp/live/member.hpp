// member.hpp: one rank of a training whose other ranks may die and be replaced: who belongs to it now, and the
// collectives of those.
//
// A *generation* is one set of connections between all ranks. It begins when every rank has arrived in it, and is over
// when a rank has died, could not reach another one, or waited for one too long. Everybody then drops the connections
// and arrives in the next one, a replacement too. The keys of generation g in the supervisor's store:
//   addresses/g/r   where rank r listens
//   arrived/g       how many ranks have arrived
//   verdict/g       "go": all have arrived; "over": it has ended, and stays so
// and of all generations: "steps", a count of completed steps, and "finished", the result.
#pragma once

#include <multinode/communicator.hpp>
#include <multinode/store/tcp_store.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace live {

// Another rank is dead or late: the generation is over.
struct PeerLost : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::string verdict_key(std::uint64_t generation);
std::string address_key(std::uint64_t generation, int rank);
// The value at `key`; "": there is none. Does not wait.
std::string look(multinode::TcpStore& store, const std::string& key);

class Member {
 public:
  Member(int rank, int size, const multinode::Endpoint& store, const std::string& token,
         std::chrono::milliseconds timeout);
  ~Member();
  int rank() const { return rank_; }
  int size() const { return size_; }

  // Arrives in the first generation that is not over, and returns when all ranks are connected in it. Returns false if
  // the training has finished meanwhile.
  bool join();
  // After PeerLost: ends the generation.
  void leave();

  // Collective, between join() and leave(); throw PeerLost. all_reduce adds in order of rank, so that the sums have the
  // same bits as those of ranks that share memory.
  void all_reduce(const multinode::Block& block);
  void broadcast(const multinode::Block& block, int root);

  void step_completed() { store_.add("steps", 1); }
  // The first result counts. Wakes up those who wait for ranks that have seen it and are gone.
  void finish(const std::string& result);

 private:
  class Connections;
  int rank_, size_;
  std::chrono::milliseconds timeout_;
  multinode::TcpStore store_;
  std::uint64_t generation_ = 0;
  std::unique_ptr<Connections> connections_;
  std::vector<std::byte> parts_;  // of all_reduce()
};

}  // namespace live
