// node.hpp: a node of a cluster: starts the processes of jobs as the head says, and reports how they end.
#pragma once

#include <multinode/endpoint.hpp>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

namespace cluster {

struct NodeOptions {
  multinode::Endpoint head;
  std::string key;
  std::filesystem::path jobs;    // the job folder: its programs can run, and no others
  std::filesystem::path keeper;  // the program job_keeper
  int cpus = 1;
  int gpus = 0;
  std::chrono::milliseconds timeout{60'000};    // for the head to answer
  std::function<void(const std::string&)> log;  // one line per event; called by the constructor and run()
};

class Node {
 public:
  // Joins; retries while nobody listens. Throws UsageError if the head refuses this node, std::runtime_error if it does
  // not answer in time.
  explicit Node(NodeOptions options);
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // Returns the reason when the head said so, or stop(), and no process of a job is left. Throws std::runtime_error if
  // the head is gone, also when no process is left.
  std::string run();

  // From any thread: run() ends the processes and returns.
  void stop();

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace cluster
