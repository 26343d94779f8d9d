// overlap.hpp: how much of the communication a training step hides behind its computation.
#pragma once

#include <multinode/communicator.hpp>

#include <nlohmann/json_fwd.hpp>

#include <array>
#include <cstddef>
#include <functional>
#include <ostream>
#include <span>

namespace ddp {

// A training step, done in four ways, with the same gradients and buckets.
struct OverlapModes {
  std::function<void()> overlapped;     // as it is in training
  std::function<void()> serial;         // the control: reductions start when the backward pass has ended
  std::function<void()> compute;        // no communication
  std::function<void()> communication;  // nothing else: the buckets' reductions
};

struct Overlap {
  static constexpr std::array names = {"overlapped", "serial", "compute only", "communication only"};
  struct Seconds {
    double median = 0, lowest = 0, highest = 0;
  };
  std::array<Seconds, names.size()> times;  // of the slowest rank in each round

  // 1 - (step - compute only) / communication only: 1 where the step takes no longer than without communication, 0
  // where it waits for all of it. `step` is an index into times.
  double hidden(std::size_t step) const;
  // The overlapped step's time in that of the longer of its two parts: 1 is the best there can be.
  double over_longer() const;
};

// Collective, called by all ranks: the same on all of them. Each round does each mode once, each from a barrier on,
// forwards and backwards by turns: what slows the machine down for a while meets all modes. A first round is not
// counted.
Overlap measure_overlap(multinode::Communicator& communicator, const OverlapModes& modes, std::size_t rounds);

void print(std::ostream& out, const Overlap& overlap);
nlohmann::json json_of(const Overlap& overlap);

}  // namespace ddp
