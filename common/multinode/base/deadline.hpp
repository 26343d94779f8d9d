// deadline.hpp: a deadline for waits in slices, in which the time while this process was stopped does not count.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace multinode {

// A process may be stopped for hours: by Ctrl-Z, `scontrol suspend`, a debugger, a container's pause. When it
// continues, the clock says that its waits are over, although no process had the time to answer. Therefore a wait asks
// left() for its next slice. If two such calls are more than a second apart, the deadline moves by the time between
// them.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds slice{500}, tolerance{500};

  // `timeout` is clamped to 0 ... 365 days.
  explicit Deadline(std::chrono::milliseconds timeout) noexcept;

  // How long to wait now: at most a slice; 0: the deadline has passed.
  std::chrono::milliseconds left() noexcept;
  bool passed() noexcept { return left().count() == 0; }
  // All that is left, in whole milliseconds.
  std::chrono::milliseconds all_left() noexcept;

 private:
  Clock::time_point end_, asked_;
};

// How long this process was stopped between two moments of a loop whose turns take at most a slice; 0: it was not.
Deadline::Clock::duration stopped_between(Deadline::Clock::time_point before, Deadline::Clock::time_point now) noexcept;

}  // namespace multinode
