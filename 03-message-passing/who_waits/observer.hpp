// observer.hpp: the who_waits process's side of a Record: what its program is doing, and for how long.
#pragma once

#include "record.hpp"
#include "verdict.hpp"

#include <chrono>
#include <string>

namespace who_waits {

class Observer {
 public:
  using Clock = std::chrono::steady_clock;

  // Makes the shared memory. `timed`: the program is to take times, for times(). Throws std::system_error.
  explicit Observer(bool timed);
  ~Observer();
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  std::string path() const;  // for the record_variable of the program; valid while this process lives

  // Looks whether there was progress: a call that began or ended. To be called a few times per second.
  void look(Clock::time_point now);
  // Seconds since the last progress; the time in which this process was stopped does not count.
  double quiet(Clock::time_point now) const { return std::chrono::duration<double>(now - progress_).count(); }
  std::uint64_t steps() const { return steps_; }  // that look() has seen
  // `rank`: the launcher's, used until MPI has started.
  RankState state(int rank, Clock::time_point now) const;
  const Times& times() const { return record_->times; }  // after the end of the program

 private:
  int file_;
  Record* record_;
  Clock::time_point progress_, looked_;
  std::uint64_t steps_ = 0, polls_ = 0;
  bool polling_ = false;
  std::array<std::uint64_t, std::tuple_size_v<decltype(Record::threads)>> turns_{};
  std::array<Clock::time_point, std::tuple_size_v<decltype(Record::threads)>> since_{};
};

}  // namespace who_waits
