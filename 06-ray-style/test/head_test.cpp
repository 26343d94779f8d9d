#include "cluster/head.hpp"
#include "cluster/client.hpp"
#include "test/fake_node.hpp"

#include <multinode/check.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <memory>
#include <string>
#include <vector>

namespace {

using namespace std::chrono_literals;
using namespace cluster;
using cluster::testing::FakeNode;
using cluster::testing::Inbox;

Job job_of(int workers, int max_failures = 0) {
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
      : client({"127.0.0.1", port}, token, 5s), result_(std::async(std::launch::async, [this, job] {
          try {
            const Result result = client.submit(job, [this](const ToClient& message) { inbox.put(message); });
            inbox.close();
            return result;
          } catch (...) {
            inbox.close();
            throw;
          }
        })) {}

  Result result() {
    if (result_.wait_for(15s) != std::future_status::ready) {
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

class HeadTest : public ::testing::Test {
 protected:
  std::unique_ptr<Submitted> submit(const Job& job) { return std::make_unique<Submitted>(head->port(), token, job); }
  std::unique_ptr<FakeNode> node(const std::string& host, int cpus) {
    return std::make_unique<FakeNode>(head->port(), token, host, cpus);
  }
  std::size_t logged(const std::string& what) {
    const std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(std::count_if(
        log_.begin(), log_.end(), [&](const std::string& line) { return line.find(what) != std::string::npos; }));
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

TEST_F(HeadTest, RunsAJobOnItsNodes) {
  auto a = node("a", 2), b = node("b", 2);
  auto job = submit(job_of(3));
  const Start on_a = a->start(), on_b = b->start();
  EXPECT_EQ(on_a.count() + on_b.count(), 3);
  a->started(on_a);
  b->started(on_b);
  const Running running = job->running();
  ASSERT_EQ(running.processes_size(), 3);
  EXPECT_EQ(running.processes(0).host(), "a");
  EXPECT_EQ(running.processes(2).host(), "b");
  EXPECT_EQ(running.processes(2).pid(), 1002);
  b->output(on_b, 2, "hello\n");
  const Output output = job->inbox.next([](const ToClient& m) { return m.has_output(); }).output();
  EXPECT_EQ(output.text(), "hello\n");
  EXPECT_EQ(output.process().host(), "b");
  EXPECT_EQ(output.process().pid(), 1002);
  a->report(on_a, 0, R"({"loss": 1, "checkpoint": "/tmp/c"})");
  a->all_ended(on_a, 0);
  b->all_ended(on_b, 0);
  const Result result = job->result();
  EXPECT_EQ(result.status(), 0) << result.what();
  EXPECT_EQ(result.checkpoint(), "/tmp/c");
  EXPECT_EQ(result.last_report(), R"({"loss": 1, "checkpoint": "/tmp/c"})");
}

}  // namespace
