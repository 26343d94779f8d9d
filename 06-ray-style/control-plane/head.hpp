// head.hpp: the head of a cluster: nodes join it, clients submit jobs to it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

namespace cluster {

struct HeadOptions {
  std::string host = "127.0.0.1";                                           // name or address to listen on
  std::uint16_t port = 6379;                                                // 0: any free one
  std::string key;                                                          // of make_key()
  std::filesystem::path records;                                            // folder for what jobs write
  std::function<void(const std::string&)> log = [](const std::string&) {};  // one line per event, from any thread
};

// Serves nodes and clients on threads of its own until it is destroyed. A slow or frozen one blocks nobody else.
class Head {
 public:
  // Listens. Throws UsageError if `host` has no address, std::runtime_error if it cannot listen. Raises this process's
  // limit of open files as far as it may.
  explicit Head(HeadOptions options);
  ~Head();  // leave(), if that has not been called; waits 2 s for nodes and clients to go, then ends their calls
  Head(const Head&) = delete;
  Head& operator=(const Head&) = delete;

  std::uint16_t port() const;

  // From any thread: all jobs are ended, nodes and clients are told why. Returns at once; from now on no node can join.
  void leave(const std::string& reason);

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace cluster
