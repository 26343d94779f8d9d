// socket.hpp: shared by the stores: the TCP connection of a client, with a deadline for every step.
//
// Plain sockets and poll(): a client has one connection and waits for one thing at a time. Boost.Asio has no deadline
// for a blocking call, and would add more than a second to each compilation that includes it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <multinode/base/deadline.hpp>
#include <multinode/base/descriptor.hpp>
#include <multinode/launch/endpoint.hpp>

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>

struct addrinfo;

namespace multinode {

// The deadline passed without a value. what() names the key and the store.
class StoreTimeout : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The store can no longer be reached, or its answer violates the protocol.
class StoreLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The store rejected the request: the key or the value is too large (max_key, max_value), the store is full, or the
// value is not a number for add().
class StoreRefused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// For messages: "2 s", "150 ms"; a key in quotes, truncated if it is long, with other bytes than text escaped.
std::string to_text(std::chrono::milliseconds duration);
std::string in_quotes(std::string_view key);

// The addresses of a host ("" with AI_PASSIVE: all) from getaddrinfo with these AI_ flags; null, with the reason in
// `error`, if there are none.
using Addresses = std::shared_ptr<addrinfo>;
Addresses resolve(const Endpoint& endpoint, int flags, std::string& error);

// Sets the options of a connection between ranks: TCP_NODELAY, and keep-alive that detects a dead host within 10 s.
void set_connection_options(int fd) noexcept;

// For messages: why the connection broke with this error, and if the other host acknowledged nothing, where to look.
std::string why_broken(int fd, int error);

// The other side closed the connection.
class ConnectionClosed : public StoreLost {
 public:
  using StoreLost::StoreLost;
};

// One thread may send and another receive.
class TcpClient {
 public:
  using Handshake = std::function<void(TcpClient&, Deadline& deadline)>;

  // Connects and calls `handshake`. Retries, after pauses of random lengths, while the connection is refused, the name
  // does not resolve, or the server closes the connection; throws StoreTimeout after `timeout`. Other exceptions of
  // `handshake` pass through.
  TcpClient(Endpoint server, std::chrono::milliseconds timeout, const Handshake& handshake);

  // Throw StoreTimeout at the deadline and StoreLost when the connection breaks; `doing` completes "while ..." in the
  // message. After either, every call throws StoreLost, because a late answer would be taken for that of the next
  // request.
  void send(std::string_view bytes, Deadline& deadline, std::string_view doing);
  void receive(char* to, std::size_t count, Deadline& deadline, std::string_view doing);
  // Waits for input. Returns false at the deadline; the connection stays usable.
  bool poll_input(Deadline& deadline, std::string_view doing);

  // Marks the connection as lost and throws StoreLost.
  [[noreturn]] void lose(const std::string& reason);
  void close() noexcept { fd_.reset(); }
  const std::string& name() const { return name_; }  // "the store at host:port"

 private:
  bool try_connect(Deadline& deadline, std::string& error);
  bool try_address(const addrinfo& address, Deadline& deadline, std::string& error);
  bool wait_for(short events, Deadline& deadline);
  void usable(std::string_view doing) const;
  std::string lost(std::string reason);

  Endpoint server_;
  std::string name_;
  Descriptor fd_;
  std::array<char, 16 << 10> buffer_{};  // from taken_ to filled_: received, not consumed yet
  std::size_t taken_ = 0, filled_ = 0;
  mutable std::mutex mutex_;  // of lost_: one thread may send while another receives
  std::string lost_;
  Addresses addresses_;
  Deadline::Clock::time_point resolved_{};
};

}  // namespace multinode
