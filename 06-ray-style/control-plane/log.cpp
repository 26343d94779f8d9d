#include "log.hpp"

#include <multinode/signals.hpp>

#include <unistd.h>

#include <array>
#include <ctime>
#include <utility>

namespace cluster {

namespace {

std::string with_time(const std::string& line) {
  std::array<char, 32> time{};
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  std::strftime(time.data(), time.size(), "%FT%TZ ", gmtime_r(&now, &utc));
  return time.data() + line + "\n";
}

}  // namespace

Log::Log(int fd) : fd_(fd), thread_(multinode::quiet_thread([this] { write_all(); })) {}

Log::~Log() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  filled_.notify_one();
  thread_.join();
}

void Log::operator()(const std::string& line) {
  {
    const std::lock_guard lock(mutex_);
    if (lines_.size() >= most_lines) return void(++left_out_);
    if (left_out_ > 0) lines_.push_back(with_time(std::to_string(std::exchange(left_out_, 0)) + " lines are left out"));
    lines_.push_back(with_time(line));
  }
  filled_.notify_one();
}

void Log::write_all() {
  std::unique_lock lock(mutex_);
  while (true) {
    filled_.wait(lock, [this] { return ended_ || !lines_.empty(); });
    if (lines_.empty() && left_out_ == 0) return;
    if (lines_.empty())
      lines_.push_back(with_time(std::to_string(std::exchange(left_out_, 0)) + " lines are left out"));
    const std::string line = std::move(lines_.front());
    lines_.pop_front();
    lock.unlock();
    (void)!write(fd_, line.data(), line.size());  // there is nowhere else to report that it failed
    lock.lock();
  }
}

}  // namespace cluster
