#include "control-plane/scheduler.hpp"
#include "test/head_fixture.hpp"

#include <multinode/base/check.hpp>

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
  a->next(&ToNode::has_stop);
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
  c->wait_until_closed();
  a->next(&ToNode::has_stop);
  a->all_ended(again, 143);
  while (status().jobs(0).waiting() != "2 workers want 2 CPUs, the cluster has only 1")
    std::this_thread::sleep_for(1ms);
  EXPECT_EQ(logged("failed: node"), 2u);
}

// The head must not lose its nodes when its log is on a file server that stalls.
TEST_F(HeadTest, ABlockedSchedulerLosesNoNode) {
  auto a = node("a", 1), b = node("b", 1);
  std::jthread client;
  {
    const std::lock_guard blocked(log_blocker);
    client = std::jthread([this] { submit(job_of(1)); });  // is logged, under the scheduler's mutex
    for (const auto until = Clock::now() + silence + 1s; Clock::now() < until;)
      for (const auto& node : {a.get(), b.get()}) node->next(&ToNode::has_beat);
  }
  a->all_ended(a->start(), 0);
  record(1);
  EXPECT_EQ(status().nodes_size(), 2);
  EXPECT_EQ(logged("is gone"), 0u);
}

TEST_F(HeadTest, LogsThatANodeLeft) {
  node("a", 1)->leave();
  EXPECT_EQ(logged("node 0 (a, pid 4711) is gone: it left"), 1u);
}

TEST_F(HeadTest, EndsThoughANodeStays) {
  auto a = node("a", 1);
  head->leave("stopped by its user");
  EXPECT_EQ(a->next(&ToNode::has_leave).leave().reason(), "stopped by its user");
  JobNumber number;
  EXPECT_EQ(call(&Cluster::Stub::Submit, job_of(1), number).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const auto since = Clock::now();
  head.reset();
  EXPECT_LT(Clock::now() - since, 50s);
  a->wait_until_closed();
}

TEST_F(HeadTest, RefusesANodeWithoutAHello) {
  grpc::ClientContext context;
  const auto stream = stub->Join(&context);
  stream->Write(FromNode());
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_TRUE(multinode::testing::soon([&] { return logged(": it said no hello") == 1; }));
}

}  // namespace head_test
