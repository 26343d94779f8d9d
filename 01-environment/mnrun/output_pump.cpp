#include <mnrun/output_pump.hpp>

#include <multinode/base/check.hpp>
#include <multinode/base/files.hpp>
#include <multinode/base/signals.hpp>

#include <fcntl.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace mnrun {

namespace {
constexpr std::size_t most_waiting = 1 << 20;
}

Sink::~Sink() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  filled_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Sink::put(std::string_view bytes) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    waiting_ += bytes;
  }
  filled_.notify_one();
  if (!thread_.joinable()) thread_ = multinode::quiet_thread([this] { write_all(); });
}

bool Sink::has_room() const {
  const std::lock_guard lock(mutex_);
  return waiting_.size() < most_waiting;
}

bool Sink::empty() const {
  const std::lock_guard lock(mutex_);
  return waiting_.empty() && in_flight_ == 0;
}

bool Sink::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

int Sink::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

void Sink::write_all() {
  std::string bytes;
  std::unique_lock lock(mutex_);
  for (;;) {
    filled_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    bytes.clear();
    bytes.swap(waiting_);
    in_flight_ = bytes.size();
    lock.unlock();
    int error = 0;
    for (std::string_view rest = bytes; !rest.empty();) {
      const ssize_t written = write(fd_, rest.data(), rest.size());
      if (written >= 0) {
        rest.remove_prefix(static_cast<std::size_t>(written));
      } else if (errno == EAGAIN) {  // another program made it non-blocking
        pollfd ready{fd_, POLLOUT, 0};
        poll(&ready, 1, -1);
      } else if (errno != EINTR) {
        error = errno;
        break;
      }
    }
    lock.lock();
    in_flight_ = 0;
    closed_ = closed_ || error == EPIPE;
    if (closed_) waiting_.clear();
    if (!closed_ && !error_) error_ = error;
    const std::uint64_t one = 1;
    if (write(wake_, &one, sizeof one) < 0) continue;  // the counter is full, so it is readable already
  }
}

OutputPump::OutputPump(int out_fd, int err_fd)
    : wake_(multinode::check_errno(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")),
      sinks_{{out_fd, wake_.get()}, {err_fd, wake_.get()}} {}

Descriptor OutputPump::add(int stream, std::string prefix, Descriptor log) {
  auto [from, to] = multinode::make_pipe();
  multinode::check_errno(fcntl(from.get(), F_SETFL, O_NONBLOCK), "fcntl");
  sources_.push_back({std::move(from), stream, std::move(prefix), std::move(log), {}});
  return std::move(to);
}

void OutputPump::poll_entries(std::vector<pollfd>& entries) const {
  entries.push_back({wake_.get(), POLLIN, 0});
  const bool room[] = {sinks_[0].has_room(), sinks_[1].has_room()};
  for (const Source& source : sources_)
    if (room[source.stream - 1]) entries.push_back({source.pipe.get(), POLLIN, 0});
}

void OutputPump::serve() {
  std::uint64_t count;
  while (read(wake_.get(), &count, sizeof count) > 0) {
  }
  std::erase_if(sources_, [this](Source& source) { return move(source) == Moved::end; });
}

int OutputPump::error() const {
  for (const Sink& sink : sinks_)
    if (const int error = sink.error()) return error;
  return log_error_;
}

void OutputPump::close_idle() {
  std::erase_if(sources_, [this](Source& source) {
    Moved moved = Moved::some;
    while (moved == Moved::some) moved = move(source);
    if (moved == Moved::nothing) write_incomplete_line(source);
    return moved != Moved::no_room;
  });
}

OutputPump::Moved OutputPump::move(Source& source) {
  char bytes[65536];
  // The reader has closed its end. Close the pipe, so that the process notices it as it would without mnrun in between.
  if (sink(source).closed() && !source.log) return Moved::end;
  if (!sink(source).has_room()) return Moved::no_room;
  const ssize_t count = read(source.pipe.get(), bytes, sizeof bytes);
  if (count > 0) {
    write_lines(source, {bytes, static_cast<std::size_t>(count)});
    return Moved::some;
  }
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return Moved::nothing;
  write_incomplete_line(source);
  return Moved::end;
}

void OutputPump::write_lines(Source& source, std::string_view bytes) {
  if (source.log) try {
      multinode::write_all(source.log.get(), bytes, "a log file");
    } catch (const std::system_error& error) {
      log_error_ = error.code().value();
      source.log.reset();
    }
  std::string lines;
  for (auto end = bytes.find('\n'); end != bytes.npos; end = bytes.find('\n')) {
    lines.append(source.prefix).append(source.line).append(bytes.substr(0, end + 1));
    source.line.clear();
    bytes.remove_prefix(end + 1);
  }
  source.line += bytes;
  if (source.line.size() >= longest_line) {
    lines.append(source.prefix).append(source.line);
    if (!source.prefix.empty()) lines += '\n';
    source.line.clear();
  }
  if (!lines.empty()) sink(source).put(lines);
}

void OutputPump::write_incomplete_line(Source& source) {
  if (!source.line.empty()) sink(source).put(source.prefix + source.line + "\n");
}

}  // namespace mnrun
