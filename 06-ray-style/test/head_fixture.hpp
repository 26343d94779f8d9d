// head_fixture.hpp: a head, and clients with a job, in the process of the test.
#pragma once

#include "cluster/client.hpp"
#include "cluster/head.hpp"
#include "test/fake_node.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace cluster::testing {

using namespace std::chrono_literals;

inline Job job_of(int workers, int max_failures = 0) {
  Job job;
  job.set_program("program");
  job.set_num_workers(workers);
  job.set_cpus_per_worker(1);
  job.set_max_failures(max_failures);
  return job;
}

// A client with a job, on a thread of its own.
class Submitted {
 public:
  Submitted(std::uint16_t port, const std::string& token, const Job& job)
      : client({"127.0.0.1", port}, token, multinode::testing::patience),
        result_(std::async(std::launch::async, [this, job] {
          try {
            const Result result = client.submit(job, [this](const ToClient& message) { inbox.put(message); });
            inbox.close();
            return result;
          } catch (...) {
            inbox.close();
            throw;
          }
        })) {}

  ~Submitted() { client.cancel(); }
  Submitted(const Submitted&) = delete;
  Submitted& operator=(const Submitted&) = delete;

  Result result() {
    if (result_.wait_for(multinode::testing::patience) != std::future_status::ready) {
      ADD_FAILURE() << "the job does not end";
      client.cancel();
    }
    return result_.get();
  }
  Running running() {
    return inbox.next([](const ToClient& m) { return m.has_running(); }).running();
  }
  std::string waiting() {
    return inbox.next([](const ToClient& m) { return m.has_waiting(); }).waiting().reason();
  }
  Failure failure() {
    return inbox.next([](const ToClient& m) { return m.has_failure(); }).failure();
  }

  Client client;
  Inbox<ToClient> inbox;

 private:
  std::future<Result> result_;
};

// A head whose log is looked at.
class HeadTest : public ::testing::Test {
 protected:
  std::unique_ptr<Submitted> submit(const Job& job) { return std::make_unique<Submitted>(head->port(), token, job); }
  std::unique_ptr<FakeNode> node(const std::string& host, int cpus) {
    return std::make_unique<FakeNode>(head->port(), token, host, cpus);
  }
  // The lines that hold `what`.
  std::vector<std::string> logged(const std::string& what) {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> lines;
    std::copy_if(log_.begin(), log_.end(), std::back_inserter(lines),
                 [&](const std::string& line) { return line.find(what) != std::string::npos; });
    return lines;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> log_;

 protected:
  const std::string token = make_token();
  std::unique_ptr<Head> head = std::make_unique<Head>(HeadOptions{"127.0.0.1", 0, token, [this](const std::string& s) {
                                                                    const std::lock_guard lock(mutex_);
                                                                    log_.push_back(s);
                                                                  }});
};

}  // namespace cluster::testing
