// tcp_store.hpp: the store over TCP: a server (a thread in one process) and its clients.
// The wire protocol is described in tcp_store.cpp.
#pragma once

#include <multinode/endpoint.hpp>
#include <multinode/socket.hpp>
#include <multinode/store.hpp>

#include <cstdint>
#include <memory>
#include <string>

namespace multinode {

// Serves on its own thread until it is destroyed. It does not trust its clients: requests, connections and memory are
// bounded, and a connection that violates the protocol is closed without disturbing the others.
class TcpStoreServer {
 public:
  // Listens on `bind_address` (loopback unless the job has other nodes) and `port` (0: any free one).
  // Throws std::system_error, which names address and port, if it cannot.
  explicit TcpStoreServer(const std::string& bind_address = "127.0.0.1", std::uint16_t port = 0);
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;
  std::uint16_t port() const;

  // Waits until at most `own` clients are connected; returns false after `timeout`. The process that hosts the store
  // calls it before it ends.
  bool linger(std::chrono::milliseconds timeout, std::size_t own = 0);

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

namespace protocol {
struct Answer;
struct Request;
}  // namespace protocol

// The destructor closes the connection without goodbye(): the server executes the will.
class TcpStore : public Store {
 public:
  // Connects, with retries, because the server may not listen yet; throws StoreTimeout after `timeout`. That is also
  // the timeout of the functions that have none of their own. `prefix` and a slash precede every key: they separate a
  // run and its restarts in a store that outlives them (see generation() in launch.hpp).
  TcpStore(const Endpoint& server, std::chrono::milliseconds timeout, const std::string& prefix = "");

  void set(const std::string& key, std::string_view value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  std::int64_t add(const std::string& key, std::int64_t amount) override;
  void wait(std::span<const std::string> keys, std::chrono::milliseconds timeout) override;
  std::string compare_set(const std::string& key, std::string_view expected, std::string_view desired) override;

  // Last will (MQTT's term): when this connection closes without goodbye(), for example because its process was killed,
  // the server at once does compare_set(key, "", value). One will per connection; a second replaces it.
  void will(const std::string& key, std::string_view value);

  // Withdraws the will and closes the connection.
  void goodbye();

 private:
  std::string call(protocol::Request request, std::chrono::milliseconds timeout, std::string_view verb);
  protocol::Answer receive(detail::Clock::time_point deadline, std::string_view doing);

  std::string prefix_;
  std::chrono::milliseconds timeout_;
  detail::TcpClient client_;
};

}  // namespace multinode
