// head_fixture.hpp: a head in the process of the test, and its jobs.
#pragma once

#include "control-plane/head.hpp"
#include "test/fake_node.hpp"

#include <testing/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace cluster::testing {

using namespace std::chrono_literals;

inline Job job_of(int workers, int max_failures = 0, int gpus = 0) {
  Job job;
  job.set_program("program");
  job.set_num_workers(workers);
  job.set_gpus_per_worker(gpus);
  job.set_max_failures(max_failures);
  return job;
}

// A head whose log is looked at, and may be blocked.
class HeadTest : public ::testing::Test {
 protected:
  std::unique_ptr<FakeNode> node(const std::string& host, int cpus) {
    return std::make_unique<FakeNode>(head->port(), key, host, cpus);
  }
  // The lines that hold `what`.
  std::vector<std::string> logged(const std::string& what) {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> lines;
    std::copy_if(log_.begin(), log_.end(), std::back_inserter(lines),
                 [&](const std::string& line) { return line.find(what) != std::string::npos; });
    return lines;
  }
  void expect_logged(const std::string& what) {
    EXPECT_TRUE(multinode::testing::soon([&] { return !logged(what).empty(); })) << what;
  }

  template <class Request, class Answer>
  grpc::Status call(grpc::Status (Cluster::Stub::*function)(grpc::ClientContext*, const Request&, Answer*),
                    const Request& request, Answer& answer) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + multinode::testing::patience);
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
  // A job's record until its end, or until it contains `until`.
  std::string record(std::int64_t job, int status = 0, const std::string& until = "\r") {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + multinode::testing::patience);
    JobNumber number;
    number.set_job(job);
    const auto stream = stub->Follow(&context, number);
    std::string text;
    Record part;
    while (stream->Read(&part)) {
      text += part.text();
      if (text.find(until) != text.npos) {
        context.TryCancel();
        return text;
      }
      if (part.ended()) {
        EXPECT_EQ(part.status(), status) << text;
      }
    }
    EXPECT_TRUE(part.ended()) << text;
    EXPECT_EQ(until, "\r") << text;
    return text;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> log_;
  const multinode::testing::TemporaryFolder folder_;

 protected:
  std::mutex log_blocker;  // held: writing a line of the log takes until it is released
  const std::string key = make_key();
  std::unique_ptr<Head> head =
      std::make_unique<Head>(HeadOptions{"127.0.0.1", 0, key, folder_ / "jobs", [this](const std::string& line) {
                                           const std::lock_guard blocked(log_blocker);
                                           const std::lock_guard lock(mutex_);
                                           log_.push_back(line);
                                         }});
  const std::unique_ptr<Cluster::Stub> stub = Cluster::NewStub(make_channel({"127.0.0.1", head->port()}, key));
};

}  // namespace cluster::testing
