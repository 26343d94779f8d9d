// node.hpp: a node of a cluster: starts the processes of jobs as the head says, and tells what becomes of them.
#pragma once

#include <multinode/endpoint.hpp>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

namespace cluster {

class Guard;

struct NodeOptions {
  multinode::Endpoint head;
  std::string token;
  std::filesystem::path jobs;  // the job folder: its programs run, and no others
  int cpus = 1;
  int gpus = 0;
  std::chrono::milliseconds timeout{60'000};    // for the head to be there
  std::function<void(const std::string&)> log;  // a line an event; from the constructor and run()
  Guard* guard = nullptr;
};

class Node {
 public:
  // Joins, trying again while nobody listens. Throws UsageError where the head refuses (the token, the version), and
  // std::runtime_error where it is not there in time.
  explicit Node(NodeOptions options);
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // Returns when the head said so, or stop(), and no process of a job is left; with the reason. Throws
  // std::runtime_error, then too, where the head is gone. The calling thread is the processes' parent.
  std::string run();

  // From any thread: run() ends the processes and returns.
  void stop();

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace cluster
