// records.hpp: what jobs wrote: a text file per job, which its readers follow.
#pragma once

#include <multinode/base/descriptor.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace cluster {

// One thread writes the files, so that a slow disk blocks neither the jobs nor their readers. If it is too slow or
// full, or the job writes too much, lines are left out in the middle, never at the end, where the verdict is: the
// newest ones are kept in memory, and a line in the record says how many are missing and why. From any thread.
class Records {
 public:
  static constexpr std::size_t most_kept = 256 << 20;   // bytes per job
  static constexpr std::size_t most_waiting = 8 << 20;  // bytes per job that wait for the disk
  static constexpr std::size_t tail = 64 << 10;         // bytes of the newest lines, if the file takes no more
  static constexpr std::size_t most_records = 4000;     // that can be followed; of more, the oldest ended ones go

  // Writes DIR/N.log for job N. If a file cannot be written, it says so in `log`, once per job.
  Records(std::filesystem::path folder, std::function<void(const std::string&)> log);
  ~Records();  // writes what waits
  Records(const Records&) = delete;
  Records& operator=(const Records&) = delete;

  std::int64_t newest() const { return newest_; }  // job whose record was in the folder; 0: none

  void write(std::int64_t job, const std::string& lines);  // whole lines
  void end(std::int64_t job, int status);

  struct Part {
    std::string text;           // at most 64 KiB
    std::optional<int> status;  // the job has ended, and `text` is the last part
  };
  // The record from byte `from` on. Waits for more, at most for `patience`. Nothing if there is no such job.
  std::optional<Part> read(std::int64_t job, std::size_t from, std::chrono::milliseconds patience);

 private:
  struct Record {
    multinode::Descriptor file;
    std::size_t written = 0;   // bytes
    std::string waiting;       // for the disk; when the file cannot be written and the job has ended, its end
    std::size_t left_out = 0;  // lines before `waiting`
    std::string why;
    bool full = false, failed = false, queued = false, complete = false;
    std::optional<int> status;
  };

  static std::string note(Record& record);
  static void shorten(Record& record, std::size_t most);
  void enqueue(std::int64_t job, Record& record);
  void write_all();

  const std::filesystem::path folder_;
  const std::function<void(const std::string&)> log_;
  std::int64_t newest_ = 0;
  std::mutex mutex_;  // of all below
  std::condition_variable queued_, written_;
  std::map<std::int64_t, Record> records_;
  std::deque<std::int64_t> queue_;  // jobs with something to write
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace cluster
