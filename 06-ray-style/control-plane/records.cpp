#include "records.hpp"

#include <multinode/signals.hpp>

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

}  // namespace

Records::Records(std::filesystem::path folder, std::function<void(const std::string&)> log)
    : folder_(std::move(folder)), log_(std::move(log)) {
  std::filesystem::create_directories(folder_);
  for (const auto& entry : std::filesystem::directory_iterator(folder_))
    newest_ = std::max<std::int64_t>(newest_, std::atoll(entry.path().filename().c_str()));
  thread_ = multinode::quiet_thread([this] { write_all(); });
}

Records::~Records() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  queued_.notify_one();
  thread_.join();
}

Records::Record& Records::record(std::int64_t job) {
  Record& record = records_[job];
  if (record.path.empty()) record.path = folder_ / (std::to_string(job) + ".log");
  return record;
}

void Records::write(std::int64_t job, const std::string& lines) {
  const std::lock_guard lock(mutex_);
  Record& it = record(job);
  if (it.failed) return leave_out(it, lines, it.why);
  if (it.queued + lines.size() > most_queued) return leave_out(it, lines, "the disk was too slow");
  if (it.written + it.queued + lines.size() > most_kept) return leave_out(it, lines, "the job wrote more than 256 MiB");
  enqueue(job, it, take_newest(it) + lines);
}

void Records::end(std::int64_t job, int status) {
  const std::lock_guard lock(mutex_);
  Record& it = record(job);
  it.status = status;
  enqueue(job, it, take_newest(it));
  ended_jobs_.push_back(job);
  if (ended_jobs_.size() > most_ended && records_.at(ended_jobs_.front()).queue.empty()) {
    records_.erase(ended_jobs_.front());
    ended_jobs_.pop_front();
  }
}

std::optional<Records::Part> Records::read(std::int64_t job, std::size_t from, std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  const auto find = [&] { return records_.find(job); };
  if (find() == records_.end()) return std::nullopt;
  const auto complete = [](const Record& it) { return it.status && it.queue.empty(); };
  written_.wait_for(lock, patience, [&] {
    return find() == records_.end() || from < find()->second.written || complete(find()->second);
  });
  if (find() == records_.end()) return std::nullopt;
  const Record& it = find()->second;
  Part part;
  const std::size_t written = it.written;
  if (complete(it)) part.status = it.status;
  if (from >= written) {  // the rest, which is in memory
    if (part.status) part.text = it.rest.substr(std::min(from - written, it.rest.size()), most_read);
    if (part.status && from + part.text.size() < written + it.rest.size()) part.status.reset();
    return part;
  }
  if (part.status && (!it.rest.empty() || from + most_read < written)) part.status.reset();
  const std::filesystem::path path = it.path;
  lock.unlock();
  part.text.resize(std::min(most_read, written - from));
  const multinode::Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const ssize_t count = pread(file.get(), part.text.data(), part.text.size(), static_cast<off_t>(from));
  if (count != static_cast<ssize_t>(part.text.size()))
    throw std::runtime_error(path.string() + " cannot be read" +
                             (count < 0 ? std::string(": ") + std::strerror(errno) : ""));
  return part;
}

void Records::leave_out(Record& it, const std::string& lines, const std::string& why) {
  it.why = why;
  it.newest += lines;
  if (it.newest.size() <= 2 * tail) return;
  const std::size_t cut = it.newest.find('\n', it.newest.size() - tail - 1) + 1;
  it.left_out += static_cast<std::size_t>(
      std::count(it.newest.begin(), it.newest.begin() + static_cast<std::ptrdiff_t>(cut), '\n'));
  it.newest.erase(0, cut);
}

std::string Records::take_newest(Record& it) {
  std::string lines;
  if (it.left_out > 0)
    lines = "cluster: " + std::to_string(std::exchange(it.left_out, 0)) + " lines are left out here: " + it.why + "\n";
  return lines + std::exchange(it.newest, "");
}

void Records::enqueue(std::int64_t job, Record& it, std::string lines) {
  it.queued += lines.size();
  it.queue.push_back(std::move(lines));
  order_.push_back(job);
  queued_.notify_one();
}

void Records::write_all() {
  std::unique_lock lock(mutex_);
  while (true) {
    queued_.wait(lock, [this] { return ended_ || !order_.empty(); });
    if (order_.empty()) return;
    const std::int64_t job = order_.front();
    order_.pop_front();
    Record& it = records_.at(job);  // stays: its queue is not empty
    const std::string& lines = it.queue.front();
    int error = 0;
    std::size_t count = 0;  // bytes written
    const bool failed = it.failed;
    lock.unlock();
    if (!failed) {
      if (!it.file)
        it.file = multinode::Descriptor(open(it.path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
      while (count < lines.size()) {
        const ssize_t more = ::write(it.file.get(), lines.data() + count, lines.size() - count);
        if (more < 0 && errno == EINTR) continue;
        if (more < 0) {
          error = errno;
          break;
        }
        count += static_cast<std::size_t>(more);
      }
    }
    lock.lock();
    it.written += count;
    it.queued -= lines.size();
    const std::string unwritten = lines.substr(count);
    it.queue.pop_front();
    if (error) {
      it.failed = true;
      it.why = it.path.string() + ": " + std::strerror(error);
      log_("cannot write " + it.why);
    }
    if (it.failed) leave_out(it, unwritten, it.why);
    if (it.status && it.queue.empty()) {
      if (it.failed) it.rest = "cluster: this record is incomplete: " + it.why + "\n" + take_newest(it);
      it.file.reset();
    }
    written_.notify_all();
  }
}

}  // namespace cluster
