#include "records.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace cluster {

namespace {

constexpr std::size_t most_read = 64 << 10;  // bytes

std::string name_of(std::int64_t job) { return std::to_string(job) + ".log"; }

// Returns how much of `text` was written; errno says why not all.
std::size_t write_to(int file, const std::string& text) {
  std::size_t count = 0;
  while (count < text.size()) {
    const ssize_t more = ::write(file, text.data() + count, text.size() - count);
    if (more < 0 && errno != EINTR) break;
    count += static_cast<std::size_t>(std::max<ssize_t>(more, 0));
  }
  return count;
}

}  // namespace

Records::Records(std::filesystem::path folder, std::function<void(const std::string&)> log)
    : folder_(std::move(folder)), log_(std::move(log)) {
  std::filesystem::create_directories(folder_);
  for (const auto& entry : std::filesystem::directory_iterator(folder_))
    newest_ = std::max<std::int64_t>(newest_, std::atoll(entry.path().filename().c_str()));
  thread_ = std::thread([this] { write_all(); });
}

Records::~Records() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  queued_.notify_one();
  thread_.join();
}

void Records::write(std::int64_t job, const std::string& lines) {
  const std::lock_guard lock(mutex_);
  Record& record = records_[job];
  record.waiting += lines;
  if (record.written + record.waiting.size() > most_kept && !record.failed) {
    record.full = true;
    record.why = "the job wrote more than 256 MiB";
  }
  if (record.full || record.failed) return shorten(record, tail);
  if (record.waiting.size() > most_waiting) {
    record.why = "the disk was too slow";
    shorten(record, most_waiting / 2);
  }
  enqueue(job, record);
}

void Records::end(std::int64_t job, int status) {
  const std::lock_guard lock(mutex_);
  Record& record = records_[job];
  record.status = status;
  enqueue(job, record);
  if (records_.size() <= most_records) return;
  const auto oldest = std::find_if(records_.begin(), records_.end(), [](auto& entry) { return entry.second.complete; });
  if (oldest != records_.end()) records_.erase(oldest);
}

std::optional<Records::Part> Records::read(std::int64_t job, std::size_t from, std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  const auto find = [&] { return records_.find(job); };
  if (find() == records_.end()) return std::nullopt;
  written_.wait_for(lock, patience, [&] {
    return find() == records_.end() || from < find()->second.written || find()->second.complete;
  });
  if (find() == records_.end()) return std::nullopt;
  const Record& record = find()->second;
  Part part;
  const std::size_t written = record.written, all = written + (record.complete ? record.waiting.size() : 0);
  const std::size_t size = std::min(most_read, (from < written ? written : std::max(from, all)) - from);
  if (record.complete && from + size == all) part.status = record.status;
  if (from >= written) {
    part.text = record.waiting.substr(from - written, size);
    return part;
  }
  lock.unlock();
  const std::filesystem::path path = folder_ / name_of(job);
  part.text.resize(size);
  const multinode::Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (pread(file.get(), part.text.data(), size, static_cast<off_t>(from)) != static_cast<ssize_t>(size))
    throw std::runtime_error(path.string() + " cannot be read: " + std::strerror(errno));
  return part;
}

std::string Records::note(Record& record) {
  if (record.left_out == 0) return "";
  return "cluster: " + std::to_string(std::exchange(record.left_out, 0)) + " lines are left out here: " + record.why +
         "\n";
}

// Leaves out the oldest lines that wait, so that about `most` bytes stay; not each time, for it copies them.
void Records::shorten(Record& record, std::size_t most) {
  std::string& lines = record.waiting;
  if (lines.size() <= 2 * most) return;
  const auto cut = lines.begin() + static_cast<std::ptrdiff_t>(lines.find('\n', lines.size() - most - 1) + 1);
  record.left_out += static_cast<std::size_t>(std::count(lines.begin(), cut, '\n'));
  lines.erase(lines.begin(), cut);
}

void Records::enqueue(std::int64_t job, Record& record) {
  if (std::exchange(record.queued, true)) return;
  queue_.push_back(job);
  queued_.notify_one();
}

void Records::write_all() {
  std::unique_lock lock(mutex_);
  while (true) {
    queued_.wait(lock, [this] { return ended_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const std::int64_t job = queue_.front();
    queue_.pop_front();
    Record& record = records_.at(job);  // stays: it is not complete
    record.queued = false;
    if (!record.failed) {
      const std::filesystem::path path = folder_ / name_of(job);
      std::string lines = note(record) + std::exchange(record.waiting, "");
      lock.unlock();
      if (!record.file)
        record.file = multinode::Descriptor(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
      const std::size_t count = record.file ? write_to(record.file.get(), lines) : 0;
      const std::string why = path.string() + ": " + std::strerror(errno);
      lines.erase(0, count);
      lock.lock();
      record.written += count;
      record.waiting.insert(0, lines);  // more may have come in the meantime
      record.failed = !lines.empty();
      if (record.failed) log_("cannot write " + (record.why = why));
      if (record.failed) shorten(record, tail);
    }
    if (record.status && !record.queued) {
      if (record.failed)
        record.waiting.insert(0, "cluster: this record is incomplete: " + record.why + "\n" + note(record));
      record.complete = true;
      record.file.reset();
    }
    written_.notify_all();
  }
}

}  // namespace cluster
