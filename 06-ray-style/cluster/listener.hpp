// listener.hpp: accepts connections for a gRPC server, which gets to see only those that begin like gRPC's.
#pragma once

#include <multinode/descriptor.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include <sys/types.h>

namespace cluster {

class Listener {
 public:
  static constexpr std::size_t most_connections = 4096;        // open at a time
  static constexpr std::chrono::milliseconds to_begin{5'000};  // for HTTP/2's preface

  // Listens; nobody is accepted before start(). Throws UsageError where `host` has no address, std::system_error,
  // naming host and port, where it cannot listen.
  Listener(const std::string& host, std::uint16_t port);
  ~Listener() { stop(); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // Calls both functions on a thread of its own: `take` with the descriptor of each connection that began with HTTP/2's
  // preface, of which nothing is read yet; `refused` with the address of the other side and the reason.
  void start(std::function<void(int fd)> take,
             std::function<void(const std::string& peer, const std::string& why)> refused);
  void stop();  // and calls neither any more

  std::uint16_t port() const { return port_; }

  // The address behind "fd:12", which is what gRPC knows of such a connection. From any thread.
  std::string peer(const std::string& of_call) const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Silent {  // a connection that did not begin yet
    multinode::Descriptor fd;
    std::string peer;
    Clock::time_point end;
  };
  struct Taken {
    std::string peer;
    ino_t socket;  // another one: the descriptor was closed, and its number used again
  };

  void serve();
  void accept_all();
  void look_at(int fd);
  std::size_t count_open();

  std::function<void(int)> take_;
  std::function<void(const std::string&, const std::string&)> refused_;
  multinode::Descriptor listening_, epoll_, stop_;
  std::uint16_t port_ = 0;
  std::map<int, Silent> silent_;
  mutable std::mutex mutex_;  // of taken_
  std::map<int, Taken> taken_;
  std::thread thread_;
};

}  // namespace cluster
