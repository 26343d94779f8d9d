// The wire protocol. Integers are little-endian; a string is its length (u32) and its bytes.
//   Each side first sends `hello`: seven letters and the version. The server closes a connection at the first wrong
//   byte of it. Then the client sends requests, and the server answers them in order. Both are frames: the length of
//   the rest (u32), a byte, a body.
//     request: operation      set: key, value         compare_set: key, expected, desired
//                             get: key, u64 ms        wait: u64 ms, u32 number, keys
//                             add: key, i64           will: key, value         goodbye: nothing
//     answer: status          done: the value (get, compare_set, add: decimal), or nothing
//                             timed_out: the missing key
//                             refused: the reason
//   get and wait are answered when the values exist or the timeout has passed: clients do not poll. A client before its
//   hello is called a stranger, after it a member.
#include <multinode/signals.hpp>
#include <multinode/socket.hpp>
#include <multinode/store_protocol.hpp>
#include <multinode/tcp_store.hpp>

#include <netdb.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <condition_variable>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>

namespace multinode {

using detail::Clock;
using std::chrono::milliseconds;

namespace protocol {
namespace {

template <class Integer>
void put(std::string& to, Integer value) {
  for (std::size_t i = 0; i < sizeof value; ++i) to += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i));
}

void put_string(std::string& to, std::string_view text) {
  put(to, static_cast<std::uint32_t>(text.size()));
  to += text;
}

std::string framed(std::uint8_t first, std::string_view body) {
  std::string frame;
  frame.reserve(5 + body.size());
  put(frame, static_cast<std::uint32_t>(1 + body.size()));
  put(frame, first);
  return frame.append(body);
}

// Reads values from the front of a frame.
class Parser {
 public:
  explicit Parser(std::string_view bytes) : bytes_(bytes) {}

  template <class Integer>
  Integer number() {
    std::uint64_t value = 0;
    const auto part = take(sizeof(Integer));
    for (std::size_t i = 0; i < part.size(); ++i)
      value |= std::uint64_t{static_cast<unsigned char>(part[i])} << (8 * i);
    return static_cast<Integer>(value);
  }

  std::string string(std::size_t longest) {
    const auto length = number<std::uint32_t>();
    if (length > longest) throw Violation("a string is longer than allowed");
    return std::string(take(length));
  }

  void end() const {
    if (!bytes_.empty()) throw Violation("a frame is longer than its contents");
  }

  std::string_view rest() { return std::exchange(bytes_, {}); }

 private:
  std::string_view take(std::size_t count) {
    if (count > bytes_.size()) throw Violation("a frame is shorter than its contents");
    const auto part = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return part;
  }

  std::string_view bytes_;
};

}  // namespace

std::string encode(const Request& request) {
  std::string body;
  switch (request.operation) {
    case Operation::set:
    case Operation::will:
      put_string(body, request.keys.at(0));
      put_string(body, request.value);
      break;
    case Operation::get:
      put_string(body, request.keys.at(0));
      put(body, request.timeout_ms);
      break;
    case Operation::add:
      put_string(body, request.keys.at(0));
      put(body, request.amount);
      break;
    case Operation::wait:
      put(body, request.timeout_ms);
      put(body, static_cast<std::uint32_t>(request.keys.size()));
      for (const auto& key : request.keys) put_string(body, key);
      break;
    case Operation::compare_set:
      put_string(body, request.keys.at(0));
      put_string(body, request.expected);
      put_string(body, request.value);
      break;
    case Operation::goodbye:
      break;
  }
  return framed(static_cast<std::uint8_t>(request.operation), body);
}

std::string encode(Status status, std::string_view body) { return framed(static_cast<std::uint8_t>(status), body); }

std::string encode(Status status, std::size_t length) {
  std::string start;
  put(start, static_cast<std::uint32_t>(1 + length));
  put(start, static_cast<std::uint8_t>(status));
  return start;
}

Request parse_request(std::string_view frame) {
  Parser parser(frame);
  Request request;
  request.operation = Operation(parser.number<std::uint8_t>());
  const auto key = [&] { request.keys.push_back(parser.string(Store::max_key)); };
  switch (request.operation) {
    case Operation::set:
    case Operation::will:
      key();
      request.value = parser.string(Store::max_value);
      break;
    case Operation::get:
      key();
      request.timeout_ms = parser.number<std::uint64_t>();
      break;
    case Operation::add:
      key();
      request.amount = parser.number<std::int64_t>();
      break;
    case Operation::wait: {
      request.timeout_ms = parser.number<std::uint64_t>();
      const auto count = parser.number<std::uint32_t>();
      if (count > max_keys) throw Violation("a wait has too many keys");
      for (std::uint32_t i = 0; i < count; ++i) key();
      break;
    }
    case Operation::compare_set:
      key();
      request.expected = parser.string(Store::max_value);
      request.value = parser.string(Store::max_value);
      break;
    case Operation::goodbye:
      break;
    default:
      throw Violation("unknown operation");
  }
  parser.end();
  return request;
}

Answer parse_answer(std::string_view frame) {
  Parser parser(frame);
  const auto status = Status(parser.number<std::uint8_t>());
  if (status < Status::done || status > Status::refused) throw Violation("unknown status");
  return {status, std::string(parser.rest())};
}

std::size_t frame_length(std::string_view first_four) {
  const auto length = Parser(first_four).number<std::uint32_t>();
  if (length == 0 || length > max_frame) throw Violation("a frame has a wrong length");
  return length;
}

void FrameReader::append(std::string_view bytes) {
  buffer_.erase(0, std::exchange(taken_, 0));
  buffer_ += bytes;
}

std::optional<std::string_view> FrameReader::next() {
  constexpr std::size_t kept = 64 << 10;
  const auto left = std::string_view(buffer_).substr(taken_);
  if (left.empty() && buffer_.capacity() > kept) {
    buffer_ = {};
    taken_ = 0;
  }
  if (left.size() < sizeof(std::uint32_t)) return {};
  const auto length = frame_length(left.substr(0, sizeof(std::uint32_t)));
  if (left.size() - sizeof(std::uint32_t) < length) return {};
  taken_ += sizeof(std::uint32_t) + length;
  return left.substr(sizeof(std::uint32_t), length);
}

}  // namespace protocol

namespace {

using protocol::Operation;
using protocol::Request;
using protocol::Status;

// Limits of the server's memory, descriptors and turns.
constexpr std::size_t most_stored_bytes = 128 << 20;  // keys, values, wills
constexpr std::size_t most_keys = 1 << 18;
constexpr std::size_t overhead_of_key = 128;            // bytes of a map node
constexpr std::size_t most_buffered_bytes = 64 << 20;   // not yet parsed, not yet sent, over all connections
constexpr std::size_t most_unsent_per_turn = 64 << 10;  // above it the answers are sent before the next request is read
constexpr int most_requests_per_turn = 32;
constexpr std::size_t most_answered_per_turn = 256 << 10;
constexpr std::size_t most_members = 16 << 10;
constexpr std::size_t most_strangers = 256;
constexpr milliseconds hello_timeout(5'000);
constexpr std::uint64_t longest_wait = std::uint64_t{1} << 40;  // ms, which deadline_in() accepts

[[noreturn]] void throw_listen(int error, const std::string& address, std::uint16_t port, const std::string& why) {
  throw std::system_error(error, std::generic_category(),
                          "cannot listen on " + to_string(Endpoint{address, port}) + (why.empty() ? "" : ": " + why));
}

}  // namespace

class TcpStoreServer::Implementation {
 public:
  Implementation(const std::string& address, std::uint16_t port) {
    std::string error;
    const auto addresses = detail::resolve({address, port}, AI_PASSIVE, error);
    if (!addresses) throw_listen(EADDRNOTAVAIL, address, port, error);
    listener_ = Descriptor(::socket(addresses->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!listener_) throw_listen(errno, address, port, "");
    const int on = 1, off = 0;
    ::setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (addresses->ai_family == AF_INET6)
      ::setsockopt(listener_.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);  // "::" takes IPv4 too
    if (::bind(listener_.get(), addresses->ai_addr, addresses->ai_addrlen) < 0 ||
        ::listen(listener_.get(), SOMAXCONN) < 0)
      throw_listen(errno, address, port, "");
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    if (::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&own), &size) < 0)
      throw_listen(errno, address, port, "");
    port_ = ntohs(own.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(own).sin6_port
                                            : reinterpret_cast<sockaddr_in&>(own).sin_port);
    epoll_ = Descriptor(::epoll_create1(EPOLL_CLOEXEC));
    stop_ = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!epoll_ || !stop_) throw_listen(errno, address, port, "");
    watch(EPOLL_CTL_ADD, stop_.get(), stop_id, EPOLLIN);
    watch(EPOLL_CTL_ADD, listener_.get(), listener_id, EPOLLIN);

    // An eighth of the process's descriptors is for strangers, three quarters for members, the rest for the process.
    rlimit descriptors{};
    if (::getrlimit(RLIMIT_NOFILE, &descriptors) == 0 && descriptors.rlim_cur != RLIM_INFINITY) {
      most_strangers_ = std::min<std::size_t>(most_strangers, descriptors.rlim_cur / 8 + 1);
      most_members_ = std::min<std::size_t>(most_members, descriptors.rlim_cur / 4 * 3);
    }

    thread_ = quiet_thread([this] { serve(); });
  }

  ~Implementation() {
    const std::uint64_t one = 1;
    while (::write(stop_.get(), &one, sizeof one) < 0 && errno == EINTR) {
    }
    thread_.join();
  }
  Implementation(const Implementation&) = delete;
  Implementation& operator=(const Implementation&) = delete;

  std::uint16_t port() const { return port_; }

  bool linger(milliseconds timeout, std::size_t own) {
    std::unique_lock lock(mutex_);
    return gone_.wait_until(lock, detail::deadline_in(timeout), [&] { return members_ <= own; });
  }

 private:
  using Id = std::uint64_t;
  using Will = std::pair<std::string, std::string>;
  static constexpr Id stop_id = 0, listener_id = 1;

  struct Connection {
    Id id = 0;
    Descriptor fd;
    bool member = false;   // has said hello
    bool leaving = false;  // has said goodbye: to be closed when the answer is sent
    std::string hello;     // the part received so far
    protocol::FrameReader in;
    std::string out;
    std::size_t sent = 0;
    std::size_t answered = 0;        // bytes of values in this turn
    std::optional<Request> pending;  // a get or wait that is not answered yet
    std::size_t next_key = 0;        // the first of its keys that was missing when we last looked
    std::optional<Clock::time_point> deadline;
    std::optional<Will> will;
    std::uint32_t events = EPOLLIN | EPOLLRDHUP;
    bool ready = false;        // is in ready_
    std::size_t buffered = 0;  // its part of buffered_

    bool blocked() const { return pending || sent < out.size(); }
  };

  void serve() {
    std::array<epoll_event, 256> events{};
    while (true) {
      const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), pause());
      try {
        for (int i = 0; i < count; ++i) {
          const auto& event = events[static_cast<std::size_t>(i)];
          if (event.data.u64 == stop_id) return;
          if (event.data.u64 == listener_id)
            accept_some();
          else
            guarded(event.data.u64, [&](Connection& connection) { handle(connection, event.events); });
        }
        expire_timers();
        // Only those that are ready now: one that becomes ready again waits for the others.
        for (const auto id : std::exchange(ready_, {}))
          guarded(id, [&](Connection& connection) {
            connection.ready = false;
            resume(connection);
          });
      } catch (const std::exception&) {  // out of memory, outside any connection: the next turn retries
      }
    }
  }

  void expire_timers() {
    const auto now = Clock::now();
    while (!timers_.empty() && timers_.begin()->first <= now) {
      const auto id = timers_.begin()->second;
      timers_.erase(timers_.begin());
      if (id == listener_id)
        watch(EPOLL_CTL_MOD, listener_.get(), listener_id, EPOLLIN);
      else
        guarded(id, [&](Connection& connection) { expire(connection); });
    }
  }

  // The timeout for epoll_wait: milliseconds until the next timer; -1: none.
  int pause() const {
    if (!ready_.empty()) return 0;
    if (timers_.empty()) return -1;
    const auto left = std::chrono::ceil<milliseconds>(timers_.begin()->first - Clock::now()).count();
    return static_cast<int>(std::clamp<decltype(left)>(left, 0, 1'000'000'000));
  }

  // An error of one connection ends only that connection.
  template <class Function>
  void guarded(Id id, Function&& function) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    auto& connection = *found->second;
    bool keep = false;
    try {
      function(connection);
      keep = bool(connection.fd);
    } catch (const std::exception&) {  // a Violation, or out of memory
    }
    if (!keep) return drop(id);
    const auto buffered = connection.in.capacity() + connection.out.capacity();
    buffered_ += buffered - connection.buffered;
    connection.buffered = buffered;
    while (buffered_ > most_buffered_bytes) {
      const auto largest = std::max_element(connections_.begin(), connections_.end(),
                                            [](auto& a, auto& b) { return a.second->buffered < b.second->buffered; });
      drop(largest->first);
    }
  }

  void watch(int operation, int fd, Id id, std::uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = id;
    if (::epoll_ctl(epoll_.get(), operation, fd, &event) < 0)
      throw std::system_error(errno, std::generic_category(), "epoll_ctl");
  }

  void listen_for(Connection& connection, std::uint32_t events) {
    if (events == connection.events) return;
    watch(EPOLL_CTL_MOD, connection.fd.get(), connection.id, events);
    connection.events = events;
  }

  void set_deadline(Connection& connection, Clock::time_point deadline) {
    connection.deadline = deadline;
    timers_.emplace(deadline, connection.id);
  }

  void clear_deadline(Connection& connection) {
    if (connection.deadline) timers_.erase({*connection.deadline, connection.id});
    connection.deadline.reset();
  }

  void accept_some() {
    for (int i = 0; i < 64; ++i) {
      const int fd = ::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd < 0) {
        if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
        if (!strangers_.empty()) {
          drop(*strangers_.begin());
          continue;
        }
        // No descriptor is free: retry later instead of spinning.
        watch(EPOLL_CTL_MOD, listener_.get(), listener_id, 0);
        timers_.emplace(Clock::now() + milliseconds(50), listener_id);
        return;
      }
      auto connection = std::make_unique<Connection>();
      connection->fd = Descriptor(fd);
      detail::set_connection_options(fd);
      const auto id = connection->id = next_id_++;
      connections_.emplace(id, std::move(connection));
      strangers_.insert(id);  // ids grow: the oldest comes first
      if (strangers_.size() > most_strangers_) drop(*strangers_.begin());
      guarded(id, [this](Connection& fresh) {
        watch(EPOLL_CTL_ADD, fresh.fd.get(), fresh.id, fresh.events);
        set_deadline(fresh, Clock::now() + hello_timeout);
        receive(fresh);  // its hello has usually arrived, so a flood of strangers does not push it out
      });
    }
  }

  void handle(Connection& connection, std::uint32_t events) {
    if (events & (EPOLLERR | EPOLLHUP)) return connection.fd.reset();
    if (connection.ready) return;  // its turn comes anyway
    if (events & EPOLLOUT && flush(connection)) {
      if (connection.leaving) return connection.fd.reset();
      listen_for(connection, EPOLLIN | EPOLLRDHUP);
      return process(connection);
    }
    if (connection.blocked()) {
      // One request at a time: further ones stay in the kernel and slow down only their sender.
      if (events & EPOLLRDHUP) return connection.fd.reset();
      if (events & EPOLLIN) listen_for(connection, connection.events & ~std::uint32_t{EPOLLIN});
      return;
    }
    if (events & (EPOLLIN | EPOLLRDHUP)) receive(connection);
  }

  void receive(Connection& connection) {
    const auto got = ::recv(connection.fd.get(), chunk_.data(), chunk_.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) return connection.fd.reset();
    std::string_view bytes(chunk_.data(), static_cast<std::size_t>(got));
    if (!connection.member) {
      const auto part = bytes.substr(0, protocol::hello.size() - connection.hello.size());
      connection.hello += part;
      bytes.remove_prefix(part.size());
      if (!protocol::hello.starts_with(connection.hello)) throw protocol::Violation("a wrong hello");
      if (connection.hello.size() < protocol::hello.size()) return;
      if (count_members(0) >= most_members_) throw protocol::Violation("too many clients");
      connection.member = true;
      strangers_.erase(connection.id);
      clear_deadline(connection);
      count_members(1);
      connection.out += protocol::hello;
    }
    connection.in.append(bytes);
    process(connection);
  }

  std::size_t count_members(int change) {
    std::lock_guard lock(mutex_);
    members_ += static_cast<std::size_t>(change);
    if (change < 0) gone_.notify_all();
    return members_;
  }

  void process(Connection& connection) {
    connection.answered = 0;
    for (int done = 0; !connection.pending && !connection.leaving && !connection.ready; ++done) {
      if (connection.out.size() - connection.sent >= most_unsent_per_turn && !flush(connection)) break;
      if (done == most_requests_per_turn || connection.answered > most_answered_per_turn) {
        make_ready(connection);
        break;
      }
      const auto frame = connection.in.next();
      if (!frame) break;
      execute(connection, protocol::parse_request(*frame));
    }
    if (!flush(connection))
      listen_for(connection, (connection.events & ~std::uint32_t{EPOLLIN}) | EPOLLOUT);
    else if (connection.leaving)
      connection.fd.reset();
    else if (!connection.blocked())
      listen_for(connection, EPOLLIN | EPOLLRDHUP);
  }

  // Returns whether everything is sent.
  bool flush(Connection& connection) {
    while (connection.sent < connection.out.size()) {
      const auto sent = ::send(connection.fd.get(), connection.out.data() + connection.sent,
                               connection.out.size() - connection.sent, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && errno == EAGAIN) return false;
      if (sent < 0) throw std::system_error(errno, std::generic_category(), "send");
      connection.sent += static_cast<std::size_t>(sent);
    }
    connection.sent = 0;
    if (connection.out.capacity() > most_unsent_per_turn)
      connection.out = {};
    else
      connection.out.clear();
    return true;
  }

  void answer(Connection& connection, Status status, std::string_view body = {}) {
    connection.answered += body.size();
    if (body.size() < most_unsent_per_turn) {
      connection.out += protocol::encode(status, body);
      return;
    }
    // Large: sent directly from the stored value; only what the kernel does not accept is copied.
    connection.out += protocol::encode(status, body.size());
    if (flush(connection)) {
      const auto sent = ::send(connection.fd.get(), body.data(), body.size(), MSG_NOSIGNAL);
      if (sent > 0) body.remove_prefix(static_cast<std::size_t>(sent));
    }
    connection.out += body;
  }

  void make_ready(Connection& connection) {
    connection.ready = true;
    ready_.push_back(connection.id);
  }

  void execute(Connection& connection, Request request) {
    switch (request.operation) {
      case Operation::set:
        if (store(request.keys[0], request.value))
          answer(connection, Status::done);
        else
          refuse_full(connection);
        break;
      case Operation::compare_set: {
        const auto found = values_.find(request.keys[0]);
        const std::string_view value = found == values_.end() ? std::string_view() : found->second;
        if (value != request.expected)
          answer(connection, Status::done, value);
        else if (store(request.keys[0], request.value))
          answer(connection, Status::done, request.value);
        else
          refuse_full(connection);
        break;
      }
      case Operation::add:
        add(connection, request);
        break;
      case Operation::will: {
        // Its space is reserved now, so that it can be executed later.
        Will will(std::move(request.keys[0]), std::move(request.value));
        const auto bytes = stored_bytes_ - size_of(connection.will) + size_of(will);
        if (bytes > most_stored_bytes) {
          refuse_full(connection);
          break;
        }
        stored_bytes_ = bytes;
        connection.will = std::move(will);
        answer(connection, Status::done);
        break;
      }
      case Operation::goodbye:
        stored_bytes_ -= size_of(connection.will);
        connection.will.reset();
        connection.leaving = true;
        answer(connection, Status::done);
        break;
      case Operation::get:
      case Operation::wait:
        connection.pending = std::move(request);
        connection.next_key = 0;
        if (!look(connection))
          set_deadline(
              connection,
              detail::deadline_in(milliseconds(std::min<std::uint64_t>(connection.pending->timeout_ms, longest_wait))));
        break;
    }
  }

  void add(Connection& connection, const Request& request) {
    const auto found = values_.find(request.keys[0]);
    std::int64_t sum = 0;
    if (found != values_.end()) {
      const auto& text = found->second;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), sum);
      if (error != std::errc() || end != text.data() + text.size())
        return answer(connection, Status::refused, "its value is not a number");
    }
    if (__builtin_add_overflow(sum, request.amount, &sum))
      return answer(connection, Status::refused, "the sum overflows 64 bits");
    const auto text = std::to_string(sum);
    if (!store(request.keys[0], text)) return refuse_full(connection);
    answer(connection, Status::done, text);
  }

  void refuse_full(Connection& connection) { answer(connection, Status::refused, "the store is full"); }

  // Sets the value and wakes its waiters; returns false if the store is full.
  bool store(const std::string& key, std::string_view value, std::size_t keys = most_keys) {
    const auto found = values_.find(key);
    const bool fresh = found == values_.end();
    const auto before = fresh ? 0 : found->second.size();
    const auto bytes = stored_bytes_ - before + value.size() + (fresh ? key.size() + overhead_of_key : 0);
    if ((bytes > most_stored_bytes && bytes > stored_bytes_) || (fresh && values_.size() >= keys)) return false;
    if (fresh)
      values_.emplace(key, value);
    else
      found->second = std::string(value);  // not assign(): it would keep the larger buffer
    stored_bytes_ = bytes;
    if (const auto waiting = waiting_.find(key); waiting != waiting_.end()) {
      for (const auto id : waiting->second) make_ready(*connections_.at(id));
      waiting_.erase(waiting);
    }
    return true;
  }

  // Answers the pending request if all its keys exist; else the connection waits for the first missing one. Returns
  // whether it was answered.
  bool look(Connection& connection) {
    auto& request = *connection.pending;
    while (connection.next_key < request.keys.size()) {
      const auto& key = request.keys[connection.next_key];
      const auto found = values_.find(key);
      if (found == values_.end()) {
        if (request.timeout_ms == 0)
          finish(connection, Status::timed_out, key);
        else
          waiting_[key].insert(connection.id);
        return request.timeout_ms == 0;
      }
      if (request.operation == Operation::get) {
        finish(connection, Status::done, found->second);
        return true;
      }
      ++connection.next_key;
    }
    finish(connection, Status::done, {});
    return true;
  }

  void finish(Connection& connection, Status status, std::string_view body) {
    answer(connection, status, body);
    clear_deadline(connection);
    connection.pending.reset();
  }

  void stop_waiting(Connection& connection) {
    if (!connection.pending || connection.next_key >= connection.pending->keys.size()) return;
    const auto found = waiting_.find(connection.pending->keys[connection.next_key]);
    if (found == waiting_.end()) return;
    found->second.erase(connection.id);
    if (found->second.empty()) waiting_.erase(found);
  }

  void resume(Connection& connection) {
    if (connection.pending) look(connection);
    process(connection);
  }

  void expire(Connection& connection) {
    connection.deadline.reset();
    if (!connection.member) return connection.fd.reset();
    if (!connection.pending) return;
    if (!look(connection)) {  // a value may have arrived in this turn
      stop_waiting(connection);
      finish(connection, Status::timed_out, std::string(connection.pending->keys[connection.next_key]));
    }
    process(connection);
  }

  static std::size_t size_of(const std::optional<Will>& will) {
    return will ? will->first.size() + will->second.size() + overhead_of_key : 0;
  }

  void drop(Id id) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    const auto connection = std::move(found->second);
    stop_waiting(*connection);
    connections_.erase(found);
    strangers_.erase(id);
    clear_deadline(*connection);
    buffered_ -= connection->buffered;
    stored_bytes_ -= size_of(connection->will);
    if (connection->will) {
      const auto& [key, value] = *connection->will;
      const auto present = values_.find(key);
      if (present == values_.end() || present->second.empty()) store(key, value, most_keys + most_members);
    }
    if (connection->member) count_members(-1);
  }

  Descriptor listener_, epoll_, stop_;
  std::uint16_t port_ = 0;
  std::size_t most_members_ = most_members, most_strangers_ = most_strangers;
  std::unordered_map<Id, std::unique_ptr<Connection>> connections_;
  Id next_id_ = listener_id + 1;
  std::set<Id> strangers_;
  std::set<std::pair<Clock::time_point, Id>> timers_;
  std::vector<Id> ready_;
  std::map<std::string, std::string> values_;  // not hashed, so that clients cannot send colliding keys
  std::map<std::string, std::set<Id>> waiting_;
  std::size_t stored_bytes_ = 0;
  std::size_t buffered_ = 0;
  std::array<char, 64 << 10> chunk_{};

  std::mutex mutex_;
  std::condition_variable gone_;
  std::size_t members_ = 0;
  std::thread thread_;
};

TcpStoreServer::TcpStoreServer(const std::string& bind_address, std::uint16_t port)
    : implementation_(std::make_unique<Implementation>(bind_address, port)) {}
TcpStoreServer::~TcpStoreServer() = default;
std::uint16_t TcpStoreServer::port() const { return implementation_->port(); }
bool TcpStoreServer::linger(milliseconds timeout, std::size_t own) { return implementation_->linger(timeout, own); }

namespace {

void shake_hands(detail::TcpClient& client, Clock::time_point deadline) {
  client.send(protocol::hello, deadline, "saying hello");
  std::string hello(protocol::hello.size(), '\0');
  for (auto& byte : hello) {
    client.receive(&byte, 1, deadline, "waiting for its hello");
    if (!protocol::hello.starts_with(std::string_view(hello).substr(0, std::size_t(&byte - hello.data()) + 1)))
      client.lose("the server there is not this store, or has another version");
  }
}

std::uint64_t count(milliseconds timeout) { return std::uint64_t(std::max(timeout, milliseconds(0)).count()); }

}  // namespace

TcpStore::TcpStore(const Endpoint& server, milliseconds timeout, const std::string& prefix)
    : prefix_(prefix.empty() ? "" : prefix + "/"), timeout_(timeout), client_(server, timeout, shake_hands) {}

void TcpStore::set(const std::string& key, std::string_view value) {
  call({Operation::set, {key}, std::string(value)}, timeout_, "setting");
}

std::string TcpStore::get(const std::string& key, milliseconds timeout) {
  return call({.operation = Operation::get, .keys = {key}, .timeout_ms = count(timeout)}, timeout, "getting");
}

std::int64_t TcpStore::add(const std::string& key, std::int64_t amount) {
  const auto text = call({.operation = Operation::add, .keys = {key}, .amount = amount}, timeout_, "adding to");
  std::int64_t sum = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), sum);
  if (error != std::errc() || end != text.data() + text.size())
    client_.lose("its answer violates the protocol: the sum is not a number");
  return sum;
}

void TcpStore::wait(std::span<const std::string> keys, milliseconds timeout) {
  call({.operation = Operation::wait, .keys = {keys.begin(), keys.end()}, .timeout_ms = count(timeout)}, timeout,
       "waiting for");
}

std::string TcpStore::compare_set(const std::string& key, std::string_view expected, std::string_view desired) {
  return call({Operation::compare_set, {key}, std::string(desired), std::string(expected)}, timeout_,
              "compare-and-set of");
}

void TcpStore::will(const std::string& key, std::string_view value) {
  call({Operation::will, {key}, std::string(value)}, timeout_, "leaving a will at");
}

void TcpStore::goodbye() {
  call({.operation = Operation::goodbye, .keys = {}}, timeout_, "saying goodbye to");
  client_.close();
}

std::string TcpStore::call(Request request, milliseconds timeout, std::string_view verb) {
  for (std::string& key : request.keys) key.insert(0, prefix_);
  const std::string key = request.keys.empty() ? client_.name() : detail::quoted(request.keys[0]);
  const std::string doing = std::string(verb) + " " + key;
  for (const auto& each : request.keys)
    if (each.size() > max_key)
      throw StoreRefused("a key of " + std::to_string(each.size()) + " bytes is too long for " + client_.name() + ": " +
                         detail::quoted(each));
  if (const auto size = std::max(request.value.size(), request.expected.size()); size > max_value)
    throw StoreRefused("a value of " + std::to_string(size) + " bytes is too long for " + client_.name() + ", while " +
                       doing);
  const auto frame = protocol::encode(request);
  if (request.keys.size() > protocol::max_keys || frame.size() - sizeof(std::uint32_t) > protocol::max_frame)
    throw StoreRefused(std::to_string(request.keys.size()) + " keys at once are too many for " + client_.name());

  // A server that is late with its answer by as much as it may take to connect to it counts as silent.
  const bool waits = request.operation == Operation::get || request.operation == Operation::wait;
  const auto deadline = detail::deadline_in(
      waits ? std::min(timeout, milliseconds::max() / 2) + std::min(timeout_, milliseconds::max() / 2) : timeout);
  client_.send(frame, deadline, doing);
  const auto answer = receive(deadline, doing);
  switch (answer.status) {
    case Status::done:
      return answer.body;
    case Status::timed_out:
      throw StoreTimeout("no value for " + detail::quoted(answer.body) + " in " + client_.name() + " within " +
                         detail::to_text(timeout));
    case Status::refused:
      throw StoreRefused(client_.name() + " refuses, while " + doing + ": " + answer.body);
  }
  client_.lose("its answer violates the protocol");
}

protocol::Answer TcpStore::receive(Clock::time_point deadline, std::string_view doing) {
  try {
    std::array<char, sizeof(std::uint32_t)> length{};
    client_.receive(length.data(), length.size(), deadline, doing);
    std::string frame(protocol::frame_length({length.data(), length.size()}), '\0');
    client_.receive(frame.data(), frame.size(), deadline, doing);
    return protocol::parse_answer(frame);
  } catch (const protocol::Violation& violation) {
    client_.lose("its answer violates the protocol: " + std::string(violation.what()));
  }
}

}  // namespace multinode
