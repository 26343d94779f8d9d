// engine.hpp: the two sides of `cluster start`.
#pragma once

#include <multinode/base/signals.hpp>
#include <multinode/launch/endpoint.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace cluster {

using Log = std::function<void(const std::string&)>;

// The head: serves the store in which nodes and clients meet, and decides what runs where. For all threads.
class Head {
 public:
  // Listens on this address; port 0: any free one.
  Head(const std::string& host, int port, Log log);
  ~Head();
  const multinode::StorePlace& place() const;
  void leave(const std::string& reason);  // ends all jobs, and waits for at most 10 s until the nodes have ended, too

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

struct NodeOptions {
  multinode::StorePlace head;
  int cpus = 1;
  std::chrono::milliseconds timeout{60'000};  // for the head to answer
  Log log;
};

// Joins, starts the processes of jobs as the head says, and reports how they end. Returns the reason when the head or a
// signal has ended the node. Throws std::runtime_error if the head does not answer in time or is gone. No process of a
// job is left then.
std::string run_node(const NodeOptions& options, const multinode::Signals& signals);

}  // namespace cluster
