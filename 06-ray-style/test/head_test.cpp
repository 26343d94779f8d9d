#include "control-plane/scheduler.hpp"
#include "test/head_fixture.hpp"

#include <multinode/check.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

namespace head_test {

using namespace std::chrono_literals;
using namespace cluster;
using namespace cluster::testing;
using Clock = std::chrono::steady_clock;

TEST_F(HeadTest, SeesADeadNodeAndAFrozenOne) {
  auto a = node("a", 1), b = node("b", 1), c = node("c", 1);
  const auto job = submit(job_of(2, 2));
  const Start on_a = a->start();
  a->started(on_a);
  b->started(b->start());
  record(job, 0, "2 workers on 2 nodes");
  auto since = Clock::now();
  b->die();
  record(job, 0, "failed and will start again: node 1 (b, pid 4711) is gone: its connection is closed\n");
  a->stop();
  a->all_ended(on_a, 143);
  const Start again = a->start();
  EXPECT_GE(Clock::now() - since, lease) << "b's processes may have run until now";
  EXPECT_EQ(again.attempt(), 1);
  a->started(again);
  c->started(c->start());
  since = Clock::now();
  c->freeze();
  record(job, 0, "failed and will start again: node 2 (c, pid 4711) is gone: no word from it for 3 s\n");
  EXPECT_GT(Clock::now() - since, silence - heartbeat);
  EXPECT_TRUE(c->inbox.wait_until_closed());
  a->stop();
  a->all_ended(again, 143);
  while (status().jobs(0).waiting() != "2 workers want 2 CPUs, the cluster has only 1")
    std::this_thread::sleep_for(1ms);
  EXPECT_EQ(logged("failed: node").size(), 2u);
}

// A log on a file server that stalls must not cost the cluster its nodes.
TEST_F(HeadTest, ABlockedSchedulerLosesNoNode) {
  auto a = node("a", 1), b = node("b", 1);
  std::jthread client;
  {
    const std::lock_guard blocked(log_blocker);
    client = std::jthread([this] { submit(job_of(1)); });  // is logged, under the scheduler's mutex
    for (const auto until = Clock::now() + silence + 1s; Clock::now() < until;)
      for (const auto& node : {a.get(), b.get()}) node->inbox.next([](const ToNode& m) { return m.has_beat(); });
  }
  a->all_ended(a->start(), 0);
  record(1);
  EXPECT_EQ(status().nodes_size(), 2);
  EXPECT_TRUE(logged("is gone").empty());
}

TEST_F(HeadTest, ANodeThatLeavesIsSaidToHaveLeft) {
  node("a", 1)->leave();
  EXPECT_EQ(logged("node 0 (a, pid 4711) is gone: it left").size(), 1u);
}

// A client that does not read any more, because its user typed Ctrl-Z, and one that is killed: their jobs go on.
TEST_F(HeadTest, AFrozenClientHoldsUpNobody) {
  auto a = node("a", 2);
  const auto job = submit(job_of(1)), other = submit(job_of(1));
  grpc::ClientContext frozen, killed;
  JobNumber number;
  number.set_job(job);
  const auto frozen_stream = stub->Follow(&frozen, number), killed_stream = stub->Follow(&killed, number);
  const Start start = a->start(), its = a->start();
  a->started(start);
  killed.TryCancel();
  const std::string line = std::string(65535, 'x') + "\n";
  const int bursts = 3, lines = 100;  // a burst is less than Records::most_waiting, so a slow disk leaves out nothing
  for (int burst = 0; burst < bursts; ++burst) {
    for (int i = 0; i < lines; ++i) a->output(start, 0, line);
    const std::string last = "burst " + std::to_string(burst) + "\n";
    a->output(start, 0, last);
    record(job, 0, last);
  }
  a->output(its, 0, "quick\n");
  record(other, 0, "quick\n");
  std::this_thread::sleep_for(silence + 500ms);
  a->all_ended(its, 0);
  a->all_ended(start, 0);
  record(other);
  std::size_t came = 0;
  Record part;
  while (frozen_stream->Read(&part))
    came += static_cast<std::size_t>(std::count(part.text().begin(), part.text().end(), '\n'));
  EXPECT_TRUE(part.ended());
  EXPECT_EQ(came, bursts * (lines + 1) + 4u) << "it has missed nothing";
}

TEST_F(HeadTest, LeaveTellsNodesAndClients) {
  auto a = node("a", 1);
  const auto runs = submit(job_of(1, -1)), waits = submit(job_of(2));
  a->start();
  head->leave("stopped by its user");
  EXPECT_EQ(a->inbox.next([](const ToNode& m) { return m.has_leave(); }).leave().reason(), "stopped by its user");
  for (const auto job : {runs, waits})
    EXPECT_TRUE(record(job, 1).ends_with("failed with status 1: the cluster ended: stopped by its user\n"));
  JobNumber number;
  EXPECT_EQ(call(&Cluster::Stub::Submit, job_of(1), number).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const auto since = Clock::now();
  head.reset();  // though the node stays
  EXPECT_LT(Clock::now() - since, 50s);
  EXPECT_TRUE(a->inbox.wait_until_closed());
}

TEST_F(HeadTest, RefusesANodeWithoutAHello) {
  grpc::ClientContext context;
  const auto stream = stub->Join(&context);
  stream->Write(FromNode());
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  expect_logged(": it said no hello");
}

}  // namespace head_test
