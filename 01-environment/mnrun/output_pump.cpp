#include <mnrun/output_pump.hpp>

#include <multinode/base/check.hpp>
#include <multinode/base/files.hpp>
#include <multinode/base/signals.hpp>
#include <multinode/base/text.hpp>

#include <fcntl.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace mnrun {

namespace {
constexpr std::size_t most_waiting = 1 << 20;
using Clock = std::chrono::steady_clock;
}  // namespace

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
  sources_.push_back({std::move(from), stream, std::move(prefix), std::move(log)});
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
  for (Source& source : sources_)
    if (Clock::now() >= source.since + moment) pass_on(source, source.line.size());
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
    if (moved == Moved::nothing) end_line(source);
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
    take(source, {bytes, static_cast<std::size_t>(count)});
    return Moved::some;
  }
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return Moved::nothing;
  end_line(source);
  return Moved::end;
}

// Passes on whole lines, and, where a line has been rewritten by a carriage return, what came before.
void OutputPump::take(Source& source, std::string_view bytes) {
  if (source.log) try {
      multinode::write_all(source.log.get(), bytes, "a log file");
    } catch (const std::system_error& error) {
      log_error_ = error.code().value();
      source.log.reset();
    }
  if (source.line.empty()) source.since = Clock::now();
  source.line += bytes;
  const std::size_t end = source.line.rfind('\n') + 1, rewritten = source.line.rfind('\r');
  pass_on(source, source.line.size() >= longest_line                  ? source.line.size()
                  : rewritten != std::string::npos && rewritten > end ? rewritten
                                                                      : end);
}

// The first `count` bytes of the source's line, with the prefix at the start of each line and behind each carriage
// return. Where another source has left a line without an end, that is ended, or overwritten by a carriage return.
void OutputPump::pass_on(Source& source, std::size_t count) {
  if (count == 0) return;
  using At = Source::At;
  std::string_view rest = std::string_view(source.line).substr(0, count);
  std::string text;
  int& open = open_[source.stream - 1];
  if (open != source.pipe.get()) {
    if (std::exchange(source.at, At::start) != At::start && rest[0] == '\n')
      rest.remove_prefix(1);  // it has been ended
    if (open >= 0 && !rest.empty() && rest[0] != '\r') text += '\n';
  }
  const bool nothing = rest.empty();
  while (!rest.empty()) {
    const std::size_t plain = std::min(rest.find_first_of("\r\n"), rest.size());
    const bool empty_line = plain == 0 && rest[0] == '\n' && source.at == At::start;
    if ((plain > 0 && source.at != At::inside) || empty_line) text += source.prefix;
    text += rest.substr(0, plain);
    if (plain > 0) source.at = At::inside;
    rest.remove_prefix(plain);
    if (rest.empty()) break;
    text += rest[0];
    source.at = rest[0] == '\n' || source.at == At::start ? At::start : At::returned;
    rest.remove_prefix(1);
  }
  source.line.erase(0, count);
  source.since = Clock::now();
  if (nothing) return;
  open = source.at == At::start ? -1 : source.pipe.get();
  sink(source).put(text);
}

void OutputPump::end_line(Source& source) {
  pass_on(source, source.line.size());
  if (int& open = open_[source.stream - 1]; open == source.pipe.get()) sink(source).put("\n"), open = -1;
}

void OutputPump::print(const std::string& line) {
  sinks_[1].put((std::exchange(open_[1], -1) >= 0 ? "\nmnrun: " : "mnrun: ") + multinode::one_line(line) + "\n");
}

int OutputPump::timeout() const {
  int least = -1;
  for (const Source& source : sources_) {
    if (source.line.empty()) continue;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(source.since + moment - Clock::now());
    const int ms = static_cast<int>(std::max<std::int64_t>(left.count(), 0));
    least = least < 0 ? ms : std::min(least, ms);
  }
  return least;
}

}  // namespace mnrun
