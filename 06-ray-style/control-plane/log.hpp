// log.hpp: lines with their time, written by a thread of its own.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

namespace cluster {

// A call never waits for the file, which may be on a file server that stalls. While it does, at most `most_lines` wait;
// further ones are counted, and the count is logged.
class Log {
 public:
  static constexpr std::size_t most_lines = 10'000;

  explicit Log(int fd);
  ~Log();  // writes what waits
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;
  void operator()(const std::string& line);

 private:
  void write_all();

  const int fd_;
  std::mutex mutex_;  // of all below
  std::condition_variable filled_;
  std::deque<std::string> lines_;
  std::size_t left_out_ = 0;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace cluster
