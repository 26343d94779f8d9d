// trace.hpp: the last steps of a training on all ranks, for a browser to show.
#pragma once

#include "step_times.hpp"

#include <multinode/communicator.hpp>
#include <multinode/world.hpp>

#include <chrono>
#include <cstdint>
#include <deque>
#include <fstream>
#include <memory>
#include <string>

namespace ddp {

// Writes the trace event format, JSON, which chrome://tracing and https://ui.perfetto.dev open: a process for each
// rank, with a track for what its model computes and one for what its communicator does.
// Format: "Trace Event Format", N. Duca and D. Sinclair, Google; here complete events ("X") and metadata ("M").
class Trace {
 public:
  static constexpr std::size_t kept_steps = 3;

  // Made by all ranks; rank 0 opens the file. Observes the communicator for as long as that lives. Throws UsageError if
  // the file cannot be written.
  Trace(multinode::World& world, multinode::Communicator& communicator, const std::string& path);

  void add(const StepTimes& step);

  // Collective, called by all ranks, once: rank 0 writes the last steps of all, and throws std::runtime_error if it
  // cannot. Times of other ranks are put on rank 0's clock. Returns how far they may be off, on rank 0.
  std::chrono::nanoseconds write();

 private:
  struct Operations;  // the communicator's thread adds them

  multinode::World& world_;
  multinode::Communicator& communicator_;
  std::string path_;
  std::ofstream file_;          // rank 0's
  std::uint64_t steps_ = 0;     // so far
  std::deque<StepTimes> last_;  // kept_steps of them at most
  std::shared_ptr<Operations> operations_;
};

}  // namespace ddp
