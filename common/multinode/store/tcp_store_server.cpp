// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/signals.hpp>
#include <multinode/base/text.hpp>
#include <multinode/net/address.hpp>
#include <multinode/net/socket.hpp>
#include <multinode/store/arbiter.hpp>
#include <multinode/store/hmac.hpp>
#include <multinode/store/store_protocol.hpp>
#include <multinode/store/tcp_store.hpp>

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
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>

namespace multinode {

using std::chrono::milliseconds;

namespace {

using Clock = Deadline::Clock;
using protocol::Operation;
using protocol::Request;
using protocol::Status;

// A process that knows the run's secret is trusted (SECURITY.md). These limits keep strangers out, and keep a mistake
// from filling the memory.
constexpr std::size_t most_stored_bytes = 128 << 20;  // keys, values, wills
constexpr std::size_t overhead_of_key = 128;          // bytes of a map node
constexpr std::size_t most_unauthenticated = 4 << 10;
constexpr milliseconds hello_timeout(5'000);
constexpr milliseconds printing_limit(500);                     // see Attempt::waiting
constexpr milliseconds tick_interval(50);                       // of the arbiters, while there is something to judge
constexpr std::uint64_t longest_wait = std::uint64_t{1} << 40;  // ms, which a time point can hold

[[noreturn]] void throw_listen(int error, const std::string& address, std::uint16_t port, const std::string& why = "") {
  throw std::system_error(error, std::generic_category(),
                          "cannot listen on " + to_string(Endpoint{address, port}) + (why.empty() ? "" : ": " + why));
}

}  // namespace

class TcpStoreServer::Implementation {
 public:
  Implementation(const std::string& address, std::uint16_t port, Entry entry) : entry_(std::move(entry)) {
    try {
      listen(address.empty() ? "::" : address, port);
    } catch (const std::system_error& e) {  // a kernel without IPv6 has no "::"
      const int error = e.code().value();
      if (!address.empty() || (error != EAFNOSUPPORT && error != EADDRNOTAVAIL)) throw;
      listen("0.0.0.0", port);
    }
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    if (::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&own), &size) < 0)
      throw_listen(errno, address, port);
    port_ = ntohs(own.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(own).sin6_port
                                            : reinterpret_cast<sockaddr_in&>(own).sin_port);
    epoll_ = Descriptor(::epoll_create1(EPOLL_CLOEXEC));
    stop_ = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!epoll_ || !stop_) throw_listen(errno, address, port);
    watch(EPOLL_CTL_ADD, stop_.get(), stop_id, EPOLLIN);
    watch(EPOLL_CTL_ADD, listener_.get(), listener_id, EPOLLIN);

    limit_strangers(false);
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

  bool wait_for_disconnects(milliseconds timeout, std::size_t own) {
    std::unique_lock lock(mutex_);
    Deadline deadline(timeout);
    while (!gone_.wait_for(lock, deadline.left(), [&] { return admitted_ <= own; }))
      if (deadline.passed()) return false;
    return true;
  }

 private:
  using Id = std::uint64_t;
  using Will = std::pair<std::string, std::string>;
  using Waiting = std::multimap<std::string, Id>;  // by key
  static constexpr Id stop_id = 0, listener_id = 1, arbiters_id = 2;

  struct Value {
    std::string bytes;
    std::uint32_t readers = 0;  // gets until it is deleted; 0: never
  };

  // The ranks of one attempt.
  struct Attempt {
    Arbiter arbiter;
    std::map<int, Id> connections;  // of the ranks that are here
    bool told = false;              // the verdict has been sent to the ranks that print it
    // The others get it when those have left: as soon as one process ends, a launcher kills the rest.
    std::set<int> printers, waiting;
    Clock::time_point printing_until;
  };

  struct Connection {
    Id id = 0;
    Descriptor fd;
    bool admitted = false;  // has said hello
    std::string challenge;  // until then
    std::string prefix;     // of its keys
    std::string broken;     // why, if the network did it
    bool leaving = false;   // has said goodbye: to be closed when the answer is sent
    std::string magic;      // the part received so far
    protocol::FrameReader in;
    std::string out;                           // to be sent
    std::optional<Waiting::iterator> waiting;  // a get that is not answered yet
    std::optional<Clock::time_point> deadline;
    std::optional<Will> will;
    std::uint32_t events = EPOLLIN | EPOLLRDHUP;

    Attempt* attempt = nullptr;  // if it is a rank
    int rank = -1;
  };

  void listen(const std::string& address, std::uint16_t port) {
    std::string error;
    const auto addresses = resolve({address, port}, AI_PASSIVE, error);
    if (!addresses) throw_listen(EADDRNOTAVAIL, address, port, error);
    Descriptor fd(::socket(addresses->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd) throw_listen(errno, address, port);
    const int on = 1, off = 0;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (addresses->ai_family == AF_INET6)
      ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);  // "::" takes IPv4 too
    if (::bind(fd.get(), addresses->ai_addr, addresses->ai_addrlen) < 0 || ::listen(fd.get(), SOMAXCONN) < 0)
      throw_listen(errno, address, port);
    listener_ = std::move(fd);
  }

  // An eighth of the process's descriptors is for strangers. Their limit is raised only when it is needed: processes
  // that this one starts inherit it.
  void limit_strangers(bool raise) {
    rlimit descriptors{};
    if (std::exchange(raised_, raise) || ::getrlimit(RLIMIT_NOFILE, &descriptors) < 0) return;
    if (raise) {
      descriptors.rlim_cur = descriptors.rlim_max;
      ::setrlimit(RLIMIT_NOFILE, &descriptors);
    }
    most_unauthenticated_ = std::min<rlim_t>(most_unauthenticated, descriptors.rlim_cur / 8 + 1);
  }

  void serve() {
    std::array<epoll_event, 256> events{};
    while (true) {
      const auto before = Clock::now();
      const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), pause());
      try {
        if (const auto stopped = stopped_between(before, Clock::now()); stopped.count() > 0) postpone_timers(stopped);
        for (int i = 0; i < count; ++i) {
          const auto& event = events[static_cast<std::size_t>(i)];
          if (event.data.u64 == stop_id) return;
          if (event.data.u64 == listener_id)
            accept_some();
          else
            guarded(event.data.u64, [&](Connection& connection) { handle(connection, event.events); });
        }
        expire_timers();
        for (const auto id : std::exchange(woken_, {}))
          guarded(id, [&](Connection& connection) { process(connection); });
        tell_verdicts();
      } catch (const std::exception&) {  // out of memory, outside any connection: the next turn retries
      }
    }
  }

  // This process was stopped, and perhaps its clients with it.
  void postpone_timers(Clock::duration by) {
    for (auto& [time, id] : std::exchange(timers_, {})) {
      timers_.emplace(time + by, id);
      if (const auto found = connections_.find(id); found != connections_.end()) found->second->deadline = time + by;
    }
  }

  void expire_timers() {
    const auto now = Clock::now();
    while (!timers_.empty() && timers_.begin()->first <= now) {
      const auto id = timers_.begin()->second;
      timers_.erase(timers_.begin());
      if (id == listener_id)
        watch(EPOLL_CTL_MOD, listener_.get(), listener_id, EPOLLIN);
      else if (id == arbiters_id)
        ticking_ = false;
      else
        guarded(id, [&](Connection& connection) { expire(connection); });
    }
  }

  // After the heartbeats of this turn have been read.
  void tell_verdicts() {
    for (auto& [name, attempt] : attempts_) {
      auto& arbiter = attempt.arbiter;
      if (arbiter.busy()) arbiter.tick(Clock::now());
      if (const auto notice = arbiter.take_notice())
        if (const auto to = attempt.connections.find(notice->first); to != attempt.connections.end())
          push(to->second, protocol::encode(Status::notice, notice->second));
      if (arbiter.verdict()) tell_verdict(attempt);
      if ((arbiter.busy() || !attempt.waiting.empty()) && !std::exchange(ticking_, true))
        timers_.emplace(Clock::now() + tick_interval, Id{arbiters_id});
    }
  }
  void tell_verdict(Attempt& attempt) {
    if (!std::exchange(attempt.told, true)) {
      for (const auto& [rank, id] : attempt.connections)
        (attempt.arbiter.prints_verdict(rank) ? attempt.printers : attempt.waiting).insert(rank);
      attempt.printing_until = Clock::now() + printing_limit;
      for (const int rank : std::set(attempt.printers)) push_verdict(attempt, rank);
    }
    std::erase_if(attempt.printers, [&](int rank) { return !attempt.connections.contains(rank); });
    if (!attempt.printers.empty() && Clock::now() < attempt.printing_until) return;
    for (const int rank : std::exchange(attempt.waiting, {})) push_verdict(attempt, rank);
  }
  void push_verdict(Attempt& attempt, int rank) {  // unless the rank has left; a push may end another rank's connection
    if (const auto to = attempt.connections.find(rank); to != attempt.connections.end())
      push(to->second, verdict_for(attempt, rank));
  }

  static std::string verdict_for(Attempt& attempt, int rank) {
    const auto& [status, text] = *attempt.arbiter.verdict();
    return protocol::encode(
        protocol::Verdict{attempt.arbiter.prints_verdict(rank), static_cast<std::uint8_t>(status), text});
  }

  void push(Id id, const std::string& frame) {
    guarded(id, [&](Connection& connection) {
      connection.out += frame;
      if (!flush(connection)) listen_for(connection, (connection.events & ~std::uint32_t{EPOLLIN}) | EPOLLOUT);
    });
  }

  // The timeout for epoll_wait: milliseconds until the next timer, but at most a slice; -1: there is no timer.
  int pause() const {
    if (!woken_.empty()) return 0;
    if (timers_.empty()) return -1;
    const auto left = std::chrono::ceil<milliseconds>(timers_.begin()->first - Clock::now());
    return static_cast<int>(std::clamp(left, milliseconds(0), Deadline::slice).count());
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
    if (!keep) drop(id);
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

  void set_deadline(Connection& connection, milliseconds timeout) {
    connection.deadline = Clock::now() + timeout;
    timers_.emplace(*connection.deadline, connection.id);
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
        if (errno == EMFILE && !raised_) {
          limit_strangers(true);
          continue;
        }
        if (!unauthenticated_.empty()) {
          drop(*unauthenticated_.begin());
          continue;
        }
        // No descriptor is free: retry later instead of spinning.
        watch(EPOLL_CTL_MOD, listener_.get(), listener_id, 0);
        timers_.emplace(Clock::now() + milliseconds(50), listener_id);
        return;
      }
      auto connection = std::make_unique<Connection>();
      connection->fd = Descriptor(fd);
      set_connection_options(fd);
      const auto id = connection->id = next_id_++;
      connections_.emplace(id, std::move(connection));
      unauthenticated_.insert(id);  // ids grow: the oldest comes first
      if (unauthenticated_.size() > most_unauthenticated_) limit_strangers(true);
      if (unauthenticated_.size() > most_unauthenticated_) drop(*unauthenticated_.begin());
      guarded(id, [this](Connection& fresh) {
        watch(EPOLL_CTL_ADD, fresh.fd.get(), fresh.id, fresh.events);
        set_deadline(fresh, hello_timeout);
        receive(fresh);  // its magic has usually arrived
      });
    }
  }

  void handle(Connection& connection, std::uint32_t events) {
    if (events & (EPOLLERR | EPOLLHUP)) {
      int error = 0;
      socklen_t size = sizeof error;
      ::getsockopt(connection.fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      return broke(connection, error);
    }
    if (events & EPOLLOUT) return process(connection);
    receive(connection);
  }

  // The kernel resets the connections of a process that has ended.
  static void broke(Connection& connection, int error) {
    if (error != 0 && error != ECONNRESET && error != EPIPE) connection.broken = why_broken(connection.fd.get(), error);
    connection.fd.reset();
  }

  void receive(Connection& connection) {
    const auto room = connection.admitted ? chunk_.size() : protocol::max_hello;
    const auto got = ::recv(connection.fd.get(), chunk_.data(), room, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) return broke(connection, got == 0 ? 0 : errno);
    std::string_view bytes(chunk_.data(), static_cast<std::size_t>(got));
    if (const auto part = bytes.substr(0, protocol::magic.size() - connection.magic.size()); !part.empty()) {
      connection.magic += part;
      bytes.remove_prefix(part.size());
      if (!protocol::magic.starts_with(connection.magic)) throw protocol::Violation("a wrong magic");
      if (connection.magic == protocol::magic) {
        connection.challenge = random_bytes(protocol::nonce_bytes);
        connection.out += std::string(protocol::magic) + connection.challenge;
        flush(connection);  // 24 bytes, the first
      }
    }
    connection.in.append(bytes);
    if (!connection.admitted) {
      const auto frame = connection.in.next(protocol::max_hello);
      if (!frame) return;
      admit(connection, protocol::parse_hello(*frame));
    }
    process(connection);
  }

  void admit(Connection& connection, protocol::Hello hello) {
    const auto refuse = [&](Status status, std::string_view why) {
      answer(connection, status, why);
      connection.leaving = true;
    };
    if (!protocol::proves(hello, entry_.token, connection.challenge))
      return refuse(Status::refused,
                    "it serves another run, or has another secret: give each run its own port, all its processes the "
                    "same environment of their launcher, and all nodes the same MULTINODE_SECRET or a secret file that "
                    "all of them see");
    const std::string proof = protocol::proof_of_server(hello, entry_.token, connection.challenge);
    hello.nonce.clear();  // a rank that connects again has another one
    hello.proof.clear();
    if (entry_.ranks_only && hello.rank < 0) return refuse(Status::refused, "it serves only ranks of its run");
    if (hello.rank >= 0) {
      Attempt& attempt = attempts_[hello.attempt];
      // Ids grow, so this is the later one of the two connections.
      if (const auto first = attempt.connections.find(hello.rank);
          attempt.arbiter.repeats(hello) && first != attempt.connections.end() && first->second < connection.id)
        drop(Id{first->second});
      if (const auto why = attempt.arbiter.join(hello, Clock::now()); !why.empty()) return refuse(Status::taken, why);
      connection.attempt = &attempt;
      connection.rank = hello.rank;
      attempt.connections[hello.rank] = connection.id;
    }
    connection.admitted = true;
    unauthenticated_.erase(connection.id);
    clear_deadline(connection);
    count_admitted(1);
    if (!hello.attempt.empty()) connection.prefix = hello.attempt + "/";
    answer(connection, Status::done, proof);
    if (connection.attempt && connection.attempt->told)
      connection.out += verdict_for(*connection.attempt, connection.rank);
  }

  void count_admitted(int change) {
    std::lock_guard lock(mutex_);
    admitted_ += static_cast<std::size_t>(change);
    if (change < 0) gone_.notify_all();
  }

  // Answers what can be answered. Further requests stay in the kernel until the client has read the answers.
  void process(Connection& connection) {
    if (connection.waiting) answer_get(connection);
    while (!connection.leaving && flush(connection)) {
      const auto frame = connection.in.next();
      if (!frame) break;
      Request request = protocol::parse_request(*frame);
      if (request.operation < Operation::goodbye) request.key.insert(0, connection.prefix);
      execute(connection, std::move(request));
    }
    if (!flush(connection))
      listen_for(connection, EPOLLOUT);
    else if (connection.leaving)
      connection.fd.reset();
    else
      listen_for(connection, EPOLLIN | EPOLLRDHUP);
  }

  // Returns whether everything is sent.
  bool flush(Connection& connection) {
    std::size_t sent = 0;
    while (sent < connection.out.size()) {
      const auto count =
          ::send(connection.fd.get(), connection.out.data() + sent, connection.out.size() - sent, MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;
      if (const int error = errno; count < 0 && error != EAGAIN) {
        broke(connection, error);
        throw std::system_error(error, std::generic_category(), "send");
      }
      if (count < 0) break;
      sent += static_cast<std::size_t>(count);
    }
    connection.out.erase(0, sent);
    return connection.out.empty();
  }

  void answer(Connection& connection, Status status, std::string_view body = {}) {
    connection.out += protocol::encode(status, body);
  }

  void execute(Connection& connection, Request request) {
    if (request.operation >= Operation::beat) return on_status_of_rank(connection, std::move(request));
    if (connection.waiting) throw protocol::Violation("a request before the answer to the one before");
    switch (request.operation) {
      case Operation::set:
        return answer_if(store(request.key, std::move(request.value), request.readers), connection);
      case Operation::compare_set: {
        const auto found = values_.find(request.key);
        const std::string_view value = found == values_.end() ? std::string_view() : found->second.bytes;
        if (value != request.expected) return answer(connection, Status::done, value);
        return answer_if(store(request.key, request.value), connection, request.value);
      }
      case Operation::add:
        return add(connection, request);
      case Operation::will: {
        // Its space is reserved now, so that it can be executed later.
        Will will(std::move(request.key), std::move(request.value));
        const auto bytes = stored_bytes_ - size_of(connection.will) + size_of(will);
        if (bytes > most_stored_bytes) return answer_if(false, connection);
        stored_bytes_ = bytes;
        connection.will = std::move(will);
        return answer(connection, Status::done);
      }
      case Operation::goodbye:
        stored_bytes_ -= size_of(connection.will);
        connection.will.reset();
        if (connection.attempt) connection.attempt->arbiter.leave(connection.rank);
        connection.leaving = true;
        return answer(connection, Status::done);
      case Operation::get:
        connection.waiting = waiting_.emplace(std::move(request.key), connection.id);
        set_deadline(connection, milliseconds(std::min(request.timeout_ms, longest_wait)));
        return answer_get(connection);
      default:
        throw protocol::Violation("a second hello");
    }
  }

  // A rank's heartbeat or failure.
  void on_status_of_rank(Connection& connection, Request request) {
    if (!connection.attempt) throw protocol::Violation("a heartbeat, but not of a rank");
    auto& arbiter = connection.attempt->arbiter;
    if (request.operation == Operation::fail)
      return arbiter.fail(connection.rank, request.status, std::move(request.value), Clock::now());
    arbiter.beat(connection.rank, std::move(request.progress), Clock::now());
    if (request.status == 1) answer(connection, Status::pulse);
  }

  void add(Connection& connection, const Request& request) {
    const auto found = values_.find(request.key);
    std::int64_t sum = 0;
    if (found != values_.end()) {
      const auto number = number_of<std::int64_t>(found->second.bytes);
      if (!number) return answer(connection, Status::refused, "its value is not a number");
      sum = *number;
    }
    if (__builtin_add_overflow(sum, request.amount, &sum))
      return answer(connection, Status::refused, "the sum overflows 64 bits");
    const auto text = std::to_string(sum);
    answer_if(store(request.key, text), connection, text);
  }

  void answer_if(bool stored, Connection& connection, std::string_view body = {}) {
    answer(connection, stored ? Status::done : Status::refused, stored ? body : "the store is full");
  }

  // Sets the value and wakes its waiters; returns false if the store is full.
  bool store(const std::string& key, std::string value, std::uint32_t readers = 0) {
    const auto found = values_.find(key);
    const bool fresh = found == values_.end();
    const auto before = fresh ? 0 : found->second.bytes.size();
    const auto bytes = stored_bytes_ - before + value.size() + (fresh ? key.size() + overhead_of_key : 0);
    if (bytes > most_stored_bytes && bytes > stored_bytes_) return false;
    values_[key] = {std::move(value), readers};
    stored_bytes_ = bytes;
    for (auto [next, end] = waiting_.equal_range(key); next != end; ++next) woken_.push_back(next->second);
    return true;
  }

  // Answers the get that waits if its key exists or its time is over.
  void answer_get(Connection& connection) {
    const auto& key = (*connection.waiting)->first;
    const auto found = values_.find(key);
    if (found == values_.end()) {
      if (*connection.deadline > Clock::now()) return;
      answer(connection, Status::timed_out, key);
    } else {
      auto& [bytes, readers] = found->second;
      answer(connection, Status::done, bytes);
      if (readers > 0 && --readers == 0) {
        stored_bytes_ -= bytes.size() + key.size() + overhead_of_key;
        values_.erase(found);
      }
    }
    stop_waiting(connection);
  }

  void stop_waiting(Connection& connection) {
    if (connection.waiting) waiting_.erase(*std::exchange(connection.waiting, {}));
    clear_deadline(connection);
  }

  void expire(Connection& connection) {
    if (!connection.admitted) return connection.fd.reset();
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
    unauthenticated_.erase(id);
    stored_bytes_ -= size_of(connection->will);
    if (connection->will) {
      const auto& [key, value] = *connection->will;
      const auto present = values_.find(key);
      if (present == values_.end() || present->second.bytes.empty()) store(key, value);
    }
    if (connection->attempt) {
      connection->attempt->connections.erase(connection->rank);
      connection->attempt->arbiter.lose(connection->rank, connection->broken);
      if (connection->attempt->connections.empty() && !connection->prefix.empty()) erase_keys_of(connection->prefix);
    }
    if (connection->admitted) count_admitted(-1);
  }

  // The last rank of an attempt has left. The store of mnrun outlives it, and serves the next one.
  void erase_keys_of(const std::string& prefix) {
    for (auto at = values_.lower_bound(prefix); at != values_.end() && at->first.starts_with(prefix);
         at = values_.erase(at))
      stored_bytes_ -= at->second.bytes.size() + at->first.size() + overhead_of_key;
  }

  const Entry entry_;
  Descriptor listener_, epoll_, stop_;
  std::uint16_t port_ = 0;
  std::size_t most_unauthenticated_ = most_unauthenticated;
  std::unordered_map<Id, std::unique_ptr<Connection>> connections_;
  Id next_id_ = arbiters_id + 1;
  std::set<Id> unauthenticated_;
  std::set<std::pair<Clock::time_point, Id>> timers_;
  std::vector<Id> woken_;                // whose get can be answered
  std::map<std::string, Value> values_;  // not hashed, so that clients cannot send colliding keys
  Waiting waiting_;
  std::map<std::string, Attempt> attempts_;  // by attempt
  bool ticking_ = false;                     // a timer for the arbiters is set
  bool raised_ = false;                      // the limit of descriptors
  std::size_t stored_bytes_ = 0;
  std::array<char, 64 << 10> chunk_{};

  std::mutex mutex_;
  std::condition_variable gone_;
  std::size_t admitted_ = 0;
  std::thread thread_;
};

TcpStoreServer::TcpStoreServer(const std::string& bind_address, std::uint16_t port, Entry entry)
    : bind_address_(bind_address),
      implementation_(std::make_unique<Implementation>(bind_address, port, std::move(entry))) {}
TcpStoreServer::~TcpStoreServer() = default;
std::uint16_t TcpStoreServer::port() const { return implementation_->port(); }
Endpoint TcpStoreServer::endpoint() const {
  return {bind_address_.empty() ? loopback_address() : bind_address_, port()};
}
bool TcpStoreServer::wait_for_disconnects(milliseconds timeout, std::size_t own) {
  return implementation_->wait_for_disconnects(timeout, own);
}

std::unique_ptr<TcpStoreServer> serve_at(const StorePlace& place, bool ranks_only) {
  const TcpStoreServer::Entry entry{place.token, ranks_only};
  try {
    return std::make_unique<TcpStoreServer>(listening_address(place.host), place.port, entry);
  } catch (const std::system_error& e) {
    if (e.code().value() != EADDRNOTAVAIL) throw;
    return std::make_unique<TcpStoreServer>("", place.port, entry);
  }
}

}  // namespace multinode
