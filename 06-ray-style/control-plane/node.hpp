// node.hpp: a node of a cluster: starts the processes of jobs as the head says, and reports how they end.
#pragma once

#include <multinode/base/signals.hpp>
#include <multinode/launch/endpoint.hpp>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>

namespace cluster {

struct NodeOptions {
  multinode::Endpoint head;
  std::string key;
  std::filesystem::path jobs;    // the job folder: its programs can run, and no others
  std::filesystem::path keeper;  // the program job_keeper
  int cpus = 1;
  int gpus = 0;
  std::chrono::milliseconds timeout{60'000};          // for the head to answer
  std::function<void(const std::string&)> log;        // one line per event
  std::function<void(const std::string&)> on_signal;  // told which of the signals came
};

// Joins, and returns the reason when the head or a signal has ended the node, and no process of a job is left. Throws
// UsageError if the head refuses this node, std::runtime_error if the head does not answer in time or is gone, and no
// process is left.
std::string run_node(const NodeOptions& options, const multinode::Signals& signals);

}  // namespace cluster
