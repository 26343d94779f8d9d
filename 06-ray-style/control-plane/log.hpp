// log.hpp: lines with their time. A call never waits for the file, which may be on a file server that stalls.
#pragma once

#include "outbox.hpp"

#include <unistd.h>

#include <array>
#include <ctime>
#include <mutex>
#include <string>
#include <utility>

namespace cluster {

class Log {
 public:
  static constexpr std::size_t most_lines = 10'000;  // that wait; further ones are counted, and the count is logged

  explicit Log(int fd)
      : lines_([fd](const std::string& line) {
          (void)!write(fd, line.data(), line.size());  // there is nowhere else to report that it failed
          return true;
        }) {}

  void operator()(const std::string& line) {
    std::array<char, 32> time{};
    const std::time_t now = std::time(nullptr);
    std::tm utc{};
    std::strftime(time.data(), time.size(), "%FT%TZ ", gmtime_r(&now, &utc));
    const std::lock_guard lock(mutex_);
    if (lines_.waiting() >= most_lines) return void(++left_out_);
    if (left_out_ > 0) lines_.put(time.data() + std::to_string(std::exchange(left_out_, 0)) + " lines are left out\n");
    lines_.put(time.data() + line + "\n");
  }

 private:
  std::mutex mutex_;
  std::size_t left_out_ = 0;
  Outbox<std::string> lines_;
};

}  // namespace cluster
