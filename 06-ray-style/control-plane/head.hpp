// head.hpp: the head of a cluster: nodes join it, clients submit jobs to it.
#pragma once

#include "control-plane/cluster.grpc.pb.h"
#include "records.hpp"
#include "scheduler.hpp"

#include <grpcpp/server.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace cluster {

struct HeadOptions {
  std::string host = "127.0.0.1";                                           // name or address to listen on
  std::uint16_t port = 6379;                                                // 0: any free one
  std::string key;                                                          // of make_key()
  std::filesystem::path records;                                            // folder for what jobs write
  std::function<void(const std::string&)> log = [](const std::string&) {};  // one line per event, from any thread
};

// Serves nodes and clients on its threads until it is destroyed. A slow or frozen one blocks nobody else.
class Head : public Cluster::Service {
 public:
  // Listens. Throws UsageError if `host` has no address, std::runtime_error if it cannot listen. Raises this process's
  // limit of open files as far as it may.
  explicit Head(HeadOptions options);
  ~Head()
      override;  // leave(), if that has not been called; waits 2 s for nodes and clients to go, then ends their calls
  Head(const Head&) = delete;
  Head& operator=(const Head&) = delete;

  std::uint16_t port() const { return static_cast<std::uint16_t>(port_); }

  // From any thread: ends all jobs and sends nodes and clients the reason. Returns at once; no node can join
  // afterwards.
  void leave(const std::string& reason);

 private:
  using Clock = Scheduler::Clock;
  grpc::Status Join(grpc::ServerContext* call, grpc::ServerReaderWriter<ToNode, FromNode>* stream) override;
  grpc::Status Submit(grpc::ServerContext* call, const Job* job, JobNumber* number) override;
  grpc::Status Follow(grpc::ServerContext* call, const JobNumber* number, grpc::ServerWriter<Record>* stream) override;
  grpc::Status StopJob(grpc::ServerContext* call, const JobNumber* number, Nothing* nothing) override;
  grpc::Status StopCluster(grpc::ServerContext* call, const Nothing* nothing, Nothing* answer) override;
  grpc::Status GetStatus(grpc::ServerContext* call, const Nothing* nothing, Status* status) override;
  grpc::Status refuse(const grpc::ServerContext& call, const std::string& why);
  void watch(const std::stop_token& stop);
  Scheduler::Store make_store() const;

  const HeadOptions options_;
  const std::string address_;
  Records records_;
  std::mutex mutex_;  // of scheduler_
  Scheduler scheduler_;
  std::mutex heard_mutex_;                                   // of heard_: no beat waits for the scheduler
  std::map<grpc::ServerContext*, Clock::time_point> heard_;  // when each node's last beat came
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::jthread watch_;
};

}  // namespace cluster
