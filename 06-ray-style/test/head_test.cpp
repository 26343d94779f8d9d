#include "cluster/listener.hpp"
#include "cluster/scheduler.hpp"
#include "test/head_fixture.hpp"

#include <multinode/check.hpp>
#include <multinode/tcp_store.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

namespace head_test {

using namespace std::chrono_literals;
using namespace cluster;
using namespace cluster::testing;
using Clock = std::chrono::steady_clock;

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
  a->report(on_a, 0, R"({"loss": 1, "checkpoint": "saved/c"})");
  a->all_ended(on_a, 0);
  b->all_ended(on_b, 0);
  const Result result = job->result();
  EXPECT_EQ(result.status(), 0) << result.what();
  EXPECT_EQ(result.checkpoint(), "saved/c");
  EXPECT_EQ(result.last_report(), R"({"loss": 1, "checkpoint": "saved/c"})");
}

TEST_F(HeadTest, SeesADeadNodeAndAFrozenOne) {
  auto a = node("a", 1), b = node("b", 1), c = node("c", 1);
  auto job = submit(job_of(2, 2));
  const Start on_a = a->start();
  a->started(on_a);
  b->started(b->start());
  job->running();
  std::this_thread::sleep_for(Scheduler::between_attempts);  // so that the next attempt does not wait
  b->die();
  EXPECT_EQ(job->failure().what(), "node 1 (b, pid 4711) is gone: its connection is closed");
  a->stop();
  a->all_ended(on_a, 143);
  const Start again = a->start();
  EXPECT_EQ(again.attempt(), 1);
  a->started(again);
  c->started(c->start());
  job->running();
  const auto since = Clock::now();
  c->freeze();
  EXPECT_EQ(job->failure().what(), "node 2 (c, pid 4711) is gone: no word from it for 3 s");
  EXPECT_GT(Clock::now() - since, silence / 2);
  EXPECT_TRUE(c->inbox.wait_until_closed());
  a->stop();
  a->all_ended(again, 143);
  EXPECT_EQ(job->waiting(), "2 workers want 2 CPUs, the cluster has only 1");
  EXPECT_EQ(logged("failed: node").size(), 2u);
}

TEST_F(HeadTest, ANodeThatLeavesIsSaidToHaveLeft) {
  node("a", 1)->leave();
  EXPECT_EQ(logged("node 0 (a, pid 4711) is gone: it left").size(), 1u);
}

TEST_F(HeadTest, TheStoreOfAnAttemptLivesAsLong) {
  auto a = node("a", 1);
  auto job = submit(job_of(1));
  const Start start = a->start();
  const multinode::Endpoint endpoint{"127.0.0.1", static_cast<std::uint16_t>(start.store_port())};
  {
    multinode::TcpStore store(endpoint, 60s);
    store.set("key", "value");
    EXPECT_EQ(store.get("key", 60s), "value");
  }
  a->all_ended(start, 0);
  job->result();
  EXPECT_THROW(multinode::TcpStore(endpoint, 100ms), multinode::StoreTimeout);
}

TEST_F(HeadTest, CtrlCEndsAJob) {
  auto a = node("a", 1);
  auto job = submit(job_of(1, -1)), waits = submit(job_of(2));
  const Start start = a->start();
  a->started(start);
  job->running();
  EXPECT_EQ(waits->waiting(), "2 workers want 2 CPUs, the cluster has only 1");
  waits->client.cancel();
  EXPECT_EQ(waits->result().status(), 130);
  job->client.cancel();
  a->stop();
  a->all_ended(start, 143);
  const Result result = job->result();
  EXPECT_EQ(result.status(), 130);
  EXPECT_EQ(result.failures(), 0);
  Client early({"127.0.0.1", head->port()}, token, 60s);
  early.cancel();
  EXPECT_EQ(early.submit(job_of(2), [](const ToClient&) {}).status(), 130);
}

// A client that is no Client: it says its job, and then what the test says.
class RawClient {
 public:
  RawClient(std::uint16_t port, const std::string& token, const Job& job)
      : stub_(Cluster::NewStub(
            grpc::CreateChannel("127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials()))) {
    add_token(call_, token);
    stream = stub_->Submit(&call_);
    FromClient message;
    *message.mutable_job() = job;
    stream->Write(message);
  }
  ~RawClient() { call_.TryCancel(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;
  void die() { call_.TryCancel(); }

 private:
  std::unique_ptr<Cluster::Stub> stub_;
  grpc::ClientContext call_;

 public:
  std::unique_ptr<grpc::ClientReaderWriter<FromClient, ToClient>> stream;
};

TEST_F(HeadTest, TheJobOfADeadOrFrozenClientEnds) {
  auto a = node("a", 2);
  RawClient frozen(head->port(), token, job_of(1)), dies(head->port(), token, job_of(1));
  const Start first = a->start(), second = a->start();
  const auto since = Clock::now();
  dies.die();
  const Stop at_once = a->stop();
  EXPECT_LT(Clock::now() - since, silence);
  const Stop later = a->stop();
  EXPECT_NE(at_once.job(), later.job());
  a->all_ended(first, 143);
  a->all_ended(second, 143);
  auto job = submit(job_of(2));
  a->all_ended(a->start(), 0);
  EXPECT_EQ(job->result().status(), 0);
}

TEST_F(HeadTest, ASlowClientLosesLinesAndStopsNobody) {
  auto a = node("a", 2);
  RawClient slow(head->port(), token, job_of(1));
  Outbox<FromClient> beats([&](const FromClient& message) { return slow.stream->Write(message); });
  const Start start = a->start();
  a->started(start);
  const std::string line = std::string(65535, 'x') + "\n";
  const int lines = 500;
  for (int i = 0; i < lines; ++i) a->output(start, 0, line);
  auto other = submit(job_of(1));
  const Start its = a->start();
  a->started(its);
  a->output(its, 0, "quick\n");
  EXPECT_EQ(other->inbox.next([](const ToClient& m) { return m.has_output(); }).output().text(), "quick\n");
  a->all_ended(its, 0);
  EXPECT_EQ(other->result().status(), 0);
  a->all_ended(start, 0);
  std::int64_t came = 0, lost = 0;
  for (ToClient message; slow.stream->Read(&message) && !message.has_result();)
    if (message.has_output()) {
      came += !message.output().text().empty();
      lost += message.output().lost();
    }
  EXPECT_EQ(came + lost, lines);
  EXPECT_GT(lost, 0);
  EXPECT_GT(came, 0);
}

TEST_F(HeadTest, AClientMayTakeItsTime) {
  auto a = node("a", 1);
  Client client({"127.0.0.1", head->port()}, token, 60s);
  auto result = std::async(std::launch::async, [&] {
    return client.submit(job_of(1), [](const ToClient& message) {
      if (message.has_running()) std::this_thread::sleep_for(silence + 500ms);
    });
  });
  const Start start = a->start();
  a->started(start);
  a->all_ended(start, 0);
  EXPECT_EQ(result.get().status(), 0);
}

TEST_F(HeadTest, WhatTheClientThrowsEndsTheJob) {
  auto a = node("a", 1);
  Client client({"127.0.0.1", head->port()}, token, 60s);
  auto result = std::async(std::launch::async, [&] {
    return client.submit(job_of(1), [](const ToClient& message) {
      if (message.has_running()) throw std::runtime_error("the disk is full");
    });
  });
  const Start start = a->start();
  a->started(start);
  EXPECT_THROW(result.get(), std::runtime_error);
  a->stop();
  a->all_ended(start, 143);
}

TEST_F(HeadTest, LeaveTellsNodesAndClients) {
  auto a = node("a", 1);
  auto runs = submit(job_of(1, -1)), waits = submit(job_of(2));
  a->start();
  waits->waiting();
  head->leave("stopped by its user");
  EXPECT_EQ(a->inbox.next([](const ToNode& m) { return m.has_leave(); }).leave().reason(), "stopped by its user");
  for (auto* job : {runs.get(), waits.get()}) {
    const Result result = job->result();
    EXPECT_EQ(result.status(), 1);
    EXPECT_EQ(result.what(), "the cluster ended: stopped by its user");
  }
  EXPECT_THROW(submit(job_of(1))->result(), std::runtime_error);
  const auto since = Clock::now();
  head.reset();  // though the node stays
  EXPECT_LT(Clock::now() - since, 50s);
  EXPECT_TRUE(a->inbox.wait_until_closed());
}

TEST_F(HeadTest, SaysWhatIsThere) {
  auto a = node("a", 3);
  auto runs = submit(job_of(2));
  a->start();
  auto waits = submit(job_of(2));
  waits->waiting();
  const Status status = Client({"127.0.0.1", head->port()}, token, 60s).status();
  ASSERT_EQ(status.nodes_size(), 1);
  EXPECT_EQ(status.nodes(0).host(), "a");
  EXPECT_EQ(status.nodes(0).cpus(), 3);
  EXPECT_EQ(status.nodes(0).cpus_used(), 2);
  ASSERT_EQ(status.jobs_size(), 2);
  EXPECT_EQ(status.jobs(0).waiting(), "");
  EXPECT_EQ(status.jobs(1).waiting(), "2 workers want 2 CPUs, 1 of 3 is free");
  head->leave("");
}

TEST_F(HeadTest, TheClientSaysWhatIsWrong) {
  const auto error = [](auto call) {
    try {
      call();
    } catch (const multinode::UsageError& e) {
      return std::string("usage: ") + e.what();
    } catch (const NoHead& e) {
      return std::string("no head: ") + e.what();
    } catch (const std::runtime_error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const multinode::Endpoint here{"127.0.0.1", head->port()};
  const std::string name = "the head at 127.0.0.1:" + std::to_string(head->port());
  EXPECT_EQ(error([&] { Client(here, make_token(), 60s).status(); }),
            "usage: " + name + " refuses the token: it is not this cluster's");
  EXPECT_EQ(error([&] { Client(here, make_token(), 60s).submit(job_of(1), [](const ToClient&) {}); }),
            "usage: " + name + " refuses the token: it is not this cluster's");
  Job path = job_of(1);
  path.set_program("/bin/sh");
  EXPECT_EQ(error([&] { Client(here, token, 60s).submit(path, [](const ToClient&) {}); }),
            "usage: a job is the name of a program in the job folder, without '/', not beginning with '.'");
  RawClient raw(head->port(), token, path);
  ToClient message;
  EXPECT_FALSE(raw.stream->Read(&message));
  EXPECT_EQ(raw.stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT) << "the head looks, too";

  const std::string nobody = "no head: " + name + " does not answer; is it 'cluster start --head' that runs there?";
  head.reset();
  auto since = Clock::now();
  EXPECT_EQ(error([&] { Client(here, token, 60s).status(); }), nobody);
  EXPECT_LT(Clock::now() - since, 50s);
  const Listener mute("127.0.0.1", here.port);
  since = Clock::now();
  EXPECT_EQ(error([&] { Client(here, token, 500ms).submit(job_of(1), [](const ToClient&) {}); }), nobody);
  EXPECT_LT(Clock::now() - since, 50s);
}

TEST(HeadAddress, ThatIsTakenOrUnknownIsNamed) {
  const Head first({"127.0.0.1", 0, make_token(), [](const std::string&) {}});
  try {
    Head({"127.0.0.1", first.port(), make_token(), [](const std::string&) {}});
    FAIL();
  } catch (const std::system_error& e) {
    EXPECT_NE(std::string(e.what()).find("cannot listen on 127.0.0.1:" + std::to_string(first.port())),
              std::string::npos)
        << e.what();
  }
  EXPECT_THROW(Head({"no.such.host.invalid", 0, make_token(), [](const std::string&) {}}), multinode::UsageError);
}

}  // namespace head_test
