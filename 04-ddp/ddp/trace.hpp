// trace.hpp: where the time of a step goes, and the last steps of a training on all ranks, for a browser to show.
#pragma once

#include <multinode/base/descriptor.hpp>
#include <multinode/communicator.hpp>
#include <multinode/world.hpp>

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

namespace ddp {

// Of one step on this rank: the host's clock. On a GPU, where the host only queues the work, they mean nothing.
// "Exposed" is the communication that the backward pass did not hide: what is left of it when the last gradient is
// computed, with the division by the divisor.
struct StepTimes {
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::array names = {"forward", "backward", "exposed communication", "update"};
  std::array<Time, names.size() + 1> at;  // phase i lasts from at[i] to at[i + 1]
};
using StepObserver = std::function<void(const StepTimes&)>;

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
  multinode::Descriptor file_;  // rank 0's
  std::uint64_t steps_ = 0;     // so far
  std::deque<StepTimes> last_;  // kept_steps of them at most
  std::shared_ptr<Operations> operations_;
};

}  // namespace ddp
