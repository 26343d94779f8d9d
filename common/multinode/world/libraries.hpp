// libraries.hpp: the interface of a World to the communication libraries that its program is linked with.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <multinode/launch/launch.hpp>

#include <string>
#include <utility>
#include <vector>

namespace multinode {

class Libraries {
 public:
  virtual ~Libraries() = default;

  // (name, version): MPI, Gloo, NCCL ...
  virtual std::vector<std::pair<std::string, std::string>> versions() const { return {}; }

  // See emulated_gpus() in device.hpp.
  virtual const char* emulated_gpus() const noexcept { return nullptr; }

  virtual bool has_mpi() const noexcept { return false; }
  // Collective. Initializes MPI, unless the program itself did, and returns rank 0's `text`, of at most 1023 bytes, on
  // every rank. Throws UsageError if MPI and the launcher disagree about rank or world size.
  virtual std::string broadcast_over_mpi(const Launch& /*launch*/, const std::string& text) const { return text; }

  // Whether MPI was initialized here or by an MpiComm, and not finalized since. Then call finalize_mpi(), which is
  // collective and may block forever if a rank is missing: announce it to the watchdog.
  virtual bool must_finalize_mpi() const noexcept { return false; }
  virtual void finalize_mpi() const noexcept {}

  // Calls MPI_Abort if MPI is running: the other ranks may be waiting for this one.
  virtual void abort_mpi(int /*status*/) const noexcept {}
};

// World calls `these` from now on; they must outlive the program's use of it. communicator/libraries.hpp does this
// before main().
bool register_libraries(const Libraries& these) noexcept;

// The registered ones; else an empty implementation.
const Libraries& libraries();

}  // namespace multinode
