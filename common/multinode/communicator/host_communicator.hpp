// host_communicator.hpp: what mpi and gloo have in common: started operations.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <multinode/communicator/communicator.hpp>

#include <memory>

namespace multinode {

// A blocking operation runs on the calling thread; a started one on the communicator's own thread. Without that thread
// nothing would overlap: Open MPI progresses only inside its calls, and Gloo's calls block.
class HostCommunicator : public Communicator {
 public:
  ~HostCommunicator() override;
  void broadcast(Block block, int root) final;
  void all_reduce(const Block& block, Reduction reduction) final;
  void barrier() final;
  Work start_all_reduce(Block block, Reduction reduction, const char* name) final;
  void synchronize() final { wait_for_started(); }

 protected:
  explicit HostCommunicator(World& world);

  // Called by the destructor of a class that implements the following: afterwards no other thread uses them.
  void stop();

  // Blocking calls of the library. The arguments have been checked; count may be 0.
  virtual void do_broadcast(const Block& block, int root) = 0;
  virtual void do_all_reduce(const Block& block, Reduction reduction) = 0;
  virtual void do_barrier() = 0;

 private:
  class Queue;
  struct AllReduce {
    Block block;
    Reduction reduction;
    const char* name;
  };

  void wait_for_started();
  void perform(const AllReduce& call);

  std::shared_ptr<Queue> queue_;
};

}  // namespace multinode
