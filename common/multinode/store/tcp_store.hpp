// tcp_store.hpp: the store over TCP: a server (a thread in one process) and its clients.
// The wire protocol is described in store_protocol.cpp.
//
// Why not PyTorch's TCPStore or etcd: no server needs to be installed, a stranger cannot join (tokens), a key may be
// deleted by its last reader, and the server hears of a dead process at once: that is what a verdict needs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <multinode/launch/endpoint.hpp>
#include <multinode/net/socket.hpp>
#include <multinode/store/store_protocol.hpp>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace multinode {

// Serves on its own thread until it is destroyed. It does not trust its clients: requests, connections and memory are
// bounded, and a connection that violates the protocol is closed without disturbing the others. It judges the ranks
// among its clients: see Arbiter and Watchdog.
class TcpStoreServer {
 public:
  // A client needs this token to connect, and with `ranks_only` it must be a rank. A rank can be claimed once.
  struct Entry {
    std::string token{};
    bool ranks_only = false;
  };

  // Listens on `bind_address` (loopback unless the job has other nodes; "": all addresses, IPv6 and IPv4) and `port`
  // (0: any free one). Throws std::system_error, which names address and port, if it cannot.
  explicit TcpStoreServer(const std::string& bind_address = "127.0.0.1", std::uint16_t port = 0)
      : TcpStoreServer(bind_address, port, Entry{}) {}
  TcpStoreServer(const std::string& bind_address, std::uint16_t port, Entry entry);
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;
  std::uint16_t port() const;
  // Where processes of this host reach it. They may not reach the address by which others do, such as a service's.
  Endpoint endpoint() const;

  // Waits until at most `own` clients are connected; returns false after `timeout`. The process that hosts the store
  // calls it before it ends.
  bool wait_for_disconnects(std::chrono::milliseconds timeout, std::size_t own = 0);

 private:
  class Implementation;
  std::string bind_address_;
  std::unique_ptr<Implementation> implementation_;
};

// A server for clients that know this machine as `place.host`: on that address, or, if it is not this machine's (a
// service in front of a pod), on all addresses.
std::unique_ptr<TcpStoreServer> serve_at(const StorePlace& place, bool ranks_only);

// A random token, hard to guess.
std::string random_token();

// The store refuses this process because another one has its rank.
class RankTaken : public StoreRefused {
 public:
  using StoreRefused::StoreRefused;
};

// A connection to a server: one thread at a time may use it. Keys and values are byte strings. All functions may throw
// StoreTimeout, StoreLost and StoreRefused. The destructor closes the connection without goodbye(): the server executes
// the will, and a rank counts as dead.
class TcpStore {
 public:
  // Connects, with retries, because the server may not listen yet; throws StoreTimeout after `timeout`, and
  // StoreRefused or RankTaken if the server does not admit this process, or does not know the token. `timeout` is also
  // that of the functions that have none of their own; `to_connect` is another one for the connection. The server puts
  // the attempt's name and a slash before every key: they separate the attempts of a run in a store that outlives them
  // (see attempt_name() in launch.hpp).
  TcpStore(const Endpoint& server, std::chrono::milliseconds timeout, const protocol::Hello& hello = {},
           std::optional<std::chrono::milliseconds> to_connect = {});

  void set(const std::string& key, std::string_view value) { set_for_readers(key, value, 0); }

  // Waits for the value and returns it; throws StoreTimeout after `timeout`.
  std::string get(const std::string& key, std::chrono::milliseconds timeout);

  // Atomically adds to the decimal integer at `key` (absent: 0) and returns the sum.
  std::int64_t add(const std::string& key, std::int64_t amount);

  // Sets `key` to `desired` if its value is `expected` ("" also stands for: absent), atomically.
  // Returns the value that the key has afterwards: `desired` if this call won.
  std::string compare_set(const std::string& key, std::string_view expected, std::string_view desired);

  // Like set(), but after so many gets, by any clients, the key is deleted.
  void set_for_readers(const std::string& key, std::string_view value, std::uint32_t readers);

  // Last will (MQTT's term): when this connection closes without goodbye(), for example because its process was killed,
  // the server at once does compare_set(key, "", value). One will per connection; a second replaces it.
  void set_on_disconnect(const std::string& key, std::string_view value);

  // Withdraws the will and closes the connection.
  void goodbye();

  // For the thread that receives for all others (a Watchdog's), after start_receiving(). The other functions may then
  // be called from any thread. receive_event() returns what the server says on its own account: a verdict, a notice or
  // a pulse; nullopt after `limit`. Throws StoreLost.
  void start_receiving() { receiving_elsewhere_ = true; }
  std::optional<protocol::Answer> receive_event(std::chrono::milliseconds limit);
  // Sends without an answer; returns false if it did not because another thread is sending and this is not urgent.
  bool send_status(const protocol::Request& request, bool urgent);

 private:
  std::string call(protocol::Request request, std::chrono::milliseconds timeout, std::string_view verb);
  protocol::Answer receive(Deadline& deadline, std::string_view doing);
  protocol::Answer await(Deadline& deadline, std::string_view doing);

  std::string prefix_;  // that the server puts before keys: for messages
  std::chrono::milliseconds timeout_;
  TcpClient client_;
  std::atomic<bool> receiving_elsewhere_ = false;
  bool unanswered_ = false;               // guarded by calling_
  std::mutex calling_, sending_, mutex_;  // one call at a time, one frame at a time, of the following
  std::condition_variable answered_;
  std::optional<protocol::Answer> answer_;
  std::string lost_;
};

}  // namespace multinode
