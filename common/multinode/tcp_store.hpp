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

// Serves until it is destroyed, on a thread of its own. What arrives on its port is bounded in size and in number
// and never trusted: a connection that breaks the protocol is closed, the others do not notice.
class TcpStoreServer {
 public:
  // Listens on `bind_address` (loopback unless the job has other nodes) and `port` (0: any free one).
  // Throws std::system_error, naming address and port, where that is impossible.
  explicit TcpStoreServer(const std::string& bind_address = "127.0.0.1", std::uint16_t port = 0);
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;
  std::uint16_t port() const;

  // Returns when every client that ever said hello, but for `own`, has said goodbye or is gone, or when `timeout` has
  // passed (false). The process that hosts the store calls it before it ends.
  bool linger(std::chrono::milliseconds timeout, std::size_t own = 0);

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

namespace protocol {
struct Answer;
struct Request;
}  // namespace protocol

// The destructor closes without a goodbye: the will is carried out.
class TcpStore : public Store {
 public:
  // Connects, trying again (the server may not listen yet) until `timeout` has passed; then throws StoreTimeout.
  // `prefix` and a slash go before every key: a run and its restarts keep apart in a store that outlives them (see
  // generation() in launch.hpp).
  TcpStore(const Endpoint& server, std::chrono::milliseconds timeout, const std::string& prefix = "");

  void set(const std::string& key, std::string_view value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  std::int64_t add(const std::string& key, std::int64_t amount) override;
  void wait(std::span<const std::string> keys, std::chrono::milliseconds timeout) override;
  std::string compare_set(const std::string& key, std::string_view expected, std::string_view desired) override;

  // Last will (the term is MQTT's): when this connection closes without goodbye(), because its process was killed, say,
  // the server does compare_set(key, "", value) in its name, at once. One will a connection; a second replaces it.
  void will(const std::string& key, std::string_view value);

  // Takes the will back. The connection can be used no more.
  void goodbye();

 private:
  std::string call(protocol::Request request, std::chrono::milliseconds timeout, std::string_view verb);
  protocol::Answer receive(detail::Clock::time_point deadline, std::string_view doing);

  std::string prefix_;
  std::chrono::milliseconds timeout_;
  detail::TcpClient client_;
};

}  // namespace multinode
