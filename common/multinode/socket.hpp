// socket.hpp: what the stores share: a TCP connection of a client whose every step has a deadline.
#pragma once

#include <multinode/descriptor.hpp>
#include <multinode/endpoint.hpp>
#include <multinode/store.hpp>

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

struct addrinfo;

namespace multinode::detail {

using Clock = std::chrono::steady_clock;

// Now plus `timeout`, which may be negative or milliseconds::max().
Clock::time_point deadline_in(std::chrono::milliseconds timeout);

// For messages: "2 s", "150 ms"; a key in quotes, cut where it is long, escaped where it is not text.
// With detail:: before it, or std::quoted may be meant.
std::string to_text(std::chrono::milliseconds duration);
std::string quoted(std::string_view key);

// The addresses of a host, as getaddrinfo gives them with these AI_ flags; empty, with the reason in `error`, where
// there are none.
using Addresses = std::shared_ptr<addrinfo>;
Addresses resolve(const Endpoint& endpoint, int flags, std::string& error);

// The options of a connection between ranks: no delay, and a dead host is noticed within 10 s.
void set_connection_options(int fd) noexcept;

// The other side closed the connection.
class ConnectionClosed : public StoreLost {
 public:
  using StoreLost::StoreLost;
};

class TcpClient {
 public:
  using Handshake = std::function<void(TcpClient&, Clock::time_point deadline)>;

  // Connects and shakes hands; where nobody listens yet, the name is unknown yet, or the server hangs up, tries again
  // until `timeout` has passed; then throws StoreTimeout. What else `handshake` throws goes through.
  TcpClient(Endpoint server, std::chrono::milliseconds timeout, const Handshake& handshake);

  // Throw StoreTimeout at the deadline and StoreLost when the connection breaks; `doing` ends the sentence "while ...".
  // After either the connection is of no use (an answer may still come that belongs to no question) and every call
  // throws StoreLost.
  void send(std::string_view bytes, Clock::time_point deadline, std::string_view doing);
  void receive(char* to, std::size_t count, Clock::time_point deadline, std::string_view doing);
  // Returns false at the deadline: nothing came, and the connection is as good as before.
  bool poll_input(Clock::time_point deadline, std::string_view doing);

  [[noreturn]] void lose(const std::string& reason);
  void close() noexcept { fd_.reset(); }
  const std::string& name() const { return name_; }  // "the store at host:port"

 private:
  bool try_connect(Clock::time_point deadline, std::string& error);
  bool wait_for(short events, Clock::time_point deadline);
  void usable(std::string_view doing) const;

  Endpoint server_;
  std::string name_;
  Descriptor fd_;
  std::array<char, 16 << 10> buffer_{};  // from taken_ to filled_: received, not asked for yet
  std::size_t taken_ = 0, filled_ = 0;
  std::string lost_;
};

}  // namespace multinode::detail
