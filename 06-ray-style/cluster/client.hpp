// client.hpp: asks the head of a cluster, and has it run a job.
#pragma once

#include "cluster/cluster.pb.h"

#include <multinode/endpoint.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

namespace cluster {

// No head answers at the address, or it is gone.
class NoHead : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Client {
 public:
  // Does not connect yet. `timeout` is for the answer to status() and for a job to be accepted.
  Client(multinode::Endpoint head, std::string token, std::chrono::milliseconds timeout);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Both throw NoHead, UsageError where the head refuses token or job, and std::runtime_error for all else.
  Status status();

  // Returns when the job has ended; one job at a time. What the head says meanwhile goes to `on_message`, on this
  // thread, the Result too; what that throws ends the job, and goes through.
  Result submit(const Job& job, const std::function<void(const ToClient&)>& on_message);

  // From any thread, but not in a signal handler: the job is ended, submit() then returns with status 130. A job that
  // is submitted later is ended at once.
  void cancel();

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace cluster
