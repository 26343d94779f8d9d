// step_times.hpp: where the time of a training step goes.
#pragma once

#include <multinode/communicator.hpp>

#include <nlohmann/json_fwd.hpp>

#include <array>
#include <chrono>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

namespace ddp {

// Of one step on this rank: the host's clock. On a GPU, where the host only queues the work, they mean nothing.
struct StepTimes {
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::array names = {"forward", "backward", "exposed communication", "update"};
  std::array<Time, names.size() + 1> at;  // phase i lasts from at[i] to at[i + 1]
};
using StepObserver = std::function<void(const StepTimes&)>;

// "Exposed" is the communication that the backward pass did not hide: what is left of it when the last gradient is
// computed, with the division by the divisor.
class Breakdown {
 public:
  struct Line {
    std::string name;                          // a phase, or "step" for all of them
    double mean = 0, lowest = 0, highest = 0;  // over the ranks, of each rank's median step, ms
  };

  void add(const StepTimes& step);
  std::size_t steps() const { return steps_.size(); }

  // Collective, called by all ranks, after a step at least: the same lines on all of them.
  std::vector<Line> over_ranks(multinode::Communicator& communicator) const;

 private:
  std::vector<std::array<float, StepTimes::names.size()>> steps_;  // ms
};

void print(std::ostream& out, const std::vector<Breakdown::Line>& lines);
nlohmann::json json_of(const std::vector<Breakdown::Line>& lines);  // {"forward": {"mean_ms", "lowest_ms", ...}, ...}

}  // namespace ddp
