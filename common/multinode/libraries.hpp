// libraries.hpp: what a World asks of the communication libraries that its program is linked with.
#pragma once

#include <multinode/launch.hpp>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace multinode {

class Libraries {
 public:
  virtual ~Libraries() = default;

  // By name: MPI, Gloo, NCCL ...
  virtual std::vector<std::pair<std::string, std::string>> versions() const { return {}; }

  // What the GPUs are where they are stand-ins (common/host-nccl); else nullptr.
  virtual const char* stand_in() const noexcept { return nullptr; }

  // MPI from its start to its end, unless the program itself started it.
  class Mpi {
   public:
    virtual ~Mpi() = default;
    // Rank 0's `text`, of at most 1 KiB, on every rank. Collective. Throws UsageError where MPI and the launcher do not
    // agree on the ranks.
    virtual std::string broadcast(const Launch& launch, const std::string& text) = 0;
  };
  virtual bool has_mpi() const noexcept { return false; }
  virtual std::unique_ptr<Mpi> start_mpi() const { return nullptr; }

  // Ends all ranks where MPI is running here: they may wait for this one.
  virtual void abort_mpi(int /*status*/) const noexcept {}
};

// Those of multinode::communicator, in a program that is linked with it; else none.
const Libraries& libraries();

}  // namespace multinode
