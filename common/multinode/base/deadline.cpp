// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/deadline.hpp>

#include <algorithm>

namespace multinode {

using std::chrono::milliseconds;

Deadline::Deadline(milliseconds timeout) noexcept
    : end_(Clock::now() + std::clamp(timeout, milliseconds(0), milliseconds(std::chrono::hours(24 * 365)))),
      asked_(Clock::now()) {}

milliseconds Deadline::all_left() noexcept {
  const Clock::time_point now = Clock::now();
  end_ += stopped_between(asked_, now);
  asked_ = now;
  return std::max(std::chrono::ceil<milliseconds>(end_ - now), milliseconds(0));
}

milliseconds Deadline::left() noexcept { return std::min(all_left(), slice); }

Deadline::Clock::duration stopped_between(Deadline::Clock::time_point before,
                                          Deadline::Clock::time_point now) noexcept {
  return now - before > Deadline::slice + Deadline::tolerance ? now - before : Deadline::Clock::duration(0);
}

}  // namespace multinode
