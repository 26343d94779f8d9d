// head_fixture.hpp: a head in the process of the test, its jobs, and nodes that the test controls.
#pragma once

#include "control-plane/head.hpp"
#include "control-plane/outbox.hpp"
#include "control-plane/tls.hpp"

#include <testing/program_test.hpp>
#include <testing/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace cluster::testing {

using namespace std::chrono_literals;
using multinode::testing::patience;

inline Job job_of(int workers, int max_failures = 0, int gpus = 0) {
  Job job;
  job.set_program("program");
  job.set_num_workers(workers);
  job.set_gpus_per_worker(gpus);
  job.set_max_failures(max_failures);
  return job;
}
inline Hello hello_of(const std::string& host, int cpus, int gpus) {
  Hello hello;
  hello.set_version("3");
  hello.set_host(host);
  hello.set_pid(4711);
  hello.set_cpus(cpus);
  hello.set_gpus(gpus);
  return hello;
}

// What a node reports about the processes of a start.
inline Which which_of(const Start& start, int rank) {
  Which which;
  which.set_job(start.job());
  which.set_attempt(start.attempt());
  which.set_rank(rank);
  return which;
}
inline FromNode end_of(const Start& start, int rank, int status, const std::string& error = "") {
  FromNode message;
  *message.mutable_ended()->mutable_which() = which_of(start, rank);
  message.mutable_ended()->set_status(status);
  message.mutable_ended()->set_error(error);
  return message;
}
inline std::vector<FromNode> starts_of(const Start& start) {
  std::vector<FromNode> messages;
  for (int i = 0; i < start.count(); ++i) {
    Started& started = *messages.emplace_back().mutable_started();
    *started.mutable_which() = which_of(start, start.first_rank() + i);
    started.set_pid(1000 + started.which().rank());
  }
  return messages;
}
inline std::vector<FromNode> ends_of(const Start& start, int status) {
  std::vector<FromNode> messages;
  for (int i = 0; i < start.count(); ++i) messages.push_back(end_of(start, start.first_rank() + i, status));
  return messages;
}

class FakeNode {
 public:
  FakeNode(std::uint16_t port, const std::string& key, const std::string& host, int cpus)
      : stub_(Cluster::NewStub(make_channel({"127.0.0.1", port}, key))) {
    call_.set_deadline(std::chrono::system_clock::now() + patience);
    stream_ = stub_->Join(&call_);
    outbox_.emplace([this](const FromNode& message) { return stream_->Write(message); },
                    [] {
                      FromNode message;
                      message.mutable_beat();
                      return message;
                    });
    FromNode message;
    *message.mutable_hello() = hello_of(host, cpus, 0);
    outbox_->put(message);
    next(&ToNode::has_welcome);
  }
  ~FakeNode() { die(); }
  FakeNode(const FakeNode&) = delete;
  FakeNode& operator=(const FakeNode&) = delete;

  // The next message that is wanted; those before it are dropped.
  ToNode next(bool (ToNode::*wanted)() const) {
    for (ToNode message; stream_->Read(&message);)
      if ((message.*wanted)()) return message;
    ADD_FAILURE() << "the message did not come";
    return {};
  }
  Start start() { return next(&ToNode::has_start).start(); }
  void wait_until_closed() {
    for (ToNode message; stream_->Read(&message);) continue;
    outbox_.reset();
    EXPECT_NE(stream_->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  }

  void started(const Start& start) {
    for (const FromNode& message : starts_of(start)) outbox_->put(message);
  }
  void all_ended(const Start& start, int status) {
    for (const FromNode& message : ends_of(start, status)) outbox_->put(message);
  }
  void leave() {  // ends its call in the regular way
    outbox_.reset();
    stream_->WritesDone();
    wait_until_closed();
  }
  void freeze() { outbox_.reset(); }  // sends nothing more, not even heartbeats
  void die() {
    call_.TryCancel();
    outbox_.reset();
  }

 private:
  std::unique_ptr<Cluster::Stub> stub_;
  grpc::ClientContext call_;
  std::unique_ptr<grpc::ClientReaderWriter<FromNode, ToNode>> stream_;
  std::optional<Outbox<FromNode>> outbox_;
};

// A head whose log the test reads and can block.
class HeadTest : public ::testing::Test {
 protected:
  std::unique_ptr<FakeNode> node(const std::string& host, int cpus) {
    return std::make_unique<FakeNode>(head->port(), key, host, cpus);
  }
  // How many times the log has `what`.
  std::size_t logged(const std::string& what) {
    const std::lock_guard lock(mutex_);
    return multinode::testing::occurrences(log_, what);
  }

  template <class Request, class Answer>
  grpc::Status call(grpc::Status (Cluster::Stub::*function)(grpc::ClientContext*, const Request&, Answer*),
                    const Request& request, Answer& answer) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + patience);
    return (stub.get()->*function)(&context, request, &answer);
  }
  std::int64_t submit(const Job& job) {
    JobNumber number;
    const grpc::Status status = call(&Cluster::Stub::Submit, job, number);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return number.job();
  }
  Status status() {
    Status status;
    EXPECT_TRUE(call(&Cluster::Stub::GetStatus, Nothing(), status).ok());
    return status;
  }
  // A job's record until it contains `until`, by default until its end.
  std::string record(std::int64_t job, int status = 0, const std::string& until = "") {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + patience);
    JobNumber number;
    number.set_job(job);
    const auto stream = stub->Follow(&context, number);
    std::string text;
    Record part;
    while (stream->Read(&part)) {
      text += part.text();
      if (until.empty() || text.find(until) == text.npos) continue;
      context.TryCancel();
      return text;
    }
    EXPECT_TRUE(part.ended() && until.empty()) << text;
    EXPECT_EQ(part.status(), status) << text;
    return text;
  }

 private:
  std::mutex mutex_;
  std::string log_;
  const multinode::testing::TemporaryFolder folder_;

 protected:
  std::mutex log_blocker;  // while it is locked, the head's log blocks
  const std::string key = make_key();
  std::unique_ptr<Head> head =
      std::make_unique<Head>(HeadOptions{"127.0.0.1", 0, key, folder_ / "jobs", [this](const std::string& line) {
                                           const std::lock_guard blocked(log_blocker);
                                           const std::lock_guard lock(mutex_);
                                           log_ += line + "\n";
                                         }});
  const std::unique_ptr<Cluster::Stub> stub = Cluster::NewStub(make_channel({"127.0.0.1", head->port()}, key));
};

}  // namespace cluster::testing
