// The scheduler with nodes that only collect their messages, and a clock that the test moves.
#include "control-plane/scheduler.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <random>

namespace scheduler_test {

using namespace std::chrono_literals;
using namespace cluster;
using json = nlohmann::json;

class SchedulerTest : public ::testing::Test {
 protected:
  std::int64_t join(int cpus) {
    const std::int64_t node = next_node++;
    scheduler.join(node, {{"host", "host" + std::to_string(node)}, {"pid", 17}, {"cpus", cpus}});
    return node;
  }
  std::int64_t submit(int workers, int max_failures = 0, int timeout_ms = 60'000) {
    scheduler.submit(next_job, {{"/bin/program"}, "/", workers, max_failures, timeout_ms, false});
    return next_job++;
  }
  // The node's newest start; null if it got none since the last call.
  json start(std::int64_t node) {
    json found;
    for (const json& message : std::exchange(to_node[node], {}))
      if (message.contains("start")) found = message["start"];
    return found;
  }
  json which(const json& start, std::size_t rank) {
    return {{"job", start["job"]}, {"attempt", start["attempt"]}, {"rank", rank}};
  }
  void each(std::int64_t node, const json& start, const char* key, int value) {
    for (std::size_t i = 0; i < start["count"]; ++i) {
      json message = which(start, start["first_rank"].get<std::size_t>() + i);
      message[key] = value;
      scheduler.hear(node, message);
    }
  }
  void ended(std::int64_t node, const json& start, std::size_t rank, int status) {
    json message = which(start, rank);
    message["status"] = status;
    scheduler.hear(node, message);
  }
  bool told_to(std::int64_t node, const char* what) const {
    const auto found = to_node.find(node);
    return found != to_node.end() && std::any_of(found->second.begin(), found->second.end(),
                                                 [&](const json& message) { return message.contains(what); });
  }
  // The status of an ended job.
  int end_of(std::int64_t job) {
    EXPECT_FALSE(scheduler.has_job(job));
    return ends.contains(job) ? ends[job] : -1;
  }
  int used() const {
    int sum = 0;
    const json status = scheduler.status();
    for (const json& node : status["nodes"]) sum += std::stoi(node[3].get<std::string>());
    return sum;
  }

  std::map<std::int64_t, std::vector<json>> to_node;
  std::map<std::int64_t, std::vector<std::string>> said;
  std::map<std::int64_t, int> ends;
  std::int64_t next_node = 0, next_job = 1;
  Scheduler::Clock::time_point now{1h};
  std::vector<std::weak_ptr<void>> stores;
  bool can_serve = true;
  Scheduler scheduler{{.make_store = [this]() -> Scheduler::Store {
                         if (!can_serve) throw std::runtime_error("too many open files");
                         const auto server = std::make_shared<int>();
                         stores.push_back(server);
                         return {7000, "token", server};
                       },
                       .to_node = [this](auto node, const json& message) { to_node[node].push_back(message); },
                       .to_client =
                           [this](auto job, const json& message) {
                             EXPECT_FALSE(ends.contains(job)) << "after its end: " << message;
                             if (message.contains("say")) said[job].push_back(message["say"]);
                             if (message.contains("end")) ends[job] = message["end"];
                           },
                       .log = [](const std::string&) {},
                       .now = [this] { return now; }}};
};

TEST_F(SchedulerTest, AGangRunsOnAllItsNodesAndEnds) {
  const auto a = join(2), b = join(2), job = submit(3);
  const json on_a = start(a), on_b = start(b);
  const std::vector<const char*> keys = {"world_size", "first_rank", "count", "node_rank", "node_count"};
  for (std::size_t i = 0; i < keys.size(); ++i) {
    EXPECT_EQ(on_a[keys[i]], std::vector({3, 0, 2, 0, 2})[i]) << keys[i];
    EXPECT_EQ(on_b[keys[i]], std::vector({3, 2, 1, 1, 2})[i]) << keys[i];
  }
  EXPECT_EQ(used(), 3);
  each(a, on_a, "pid", 100);
  EXPECT_TRUE(said[job].empty()) << "not all run yet";
  each(b, on_b, "pid", 200);
  EXPECT_EQ(said[job].at(0),
            "cluster: job 1: 3 workers on 2 nodes\ncluster: job 1: node 0 (host0) has rank 0 and up, pids 100 100\n"
            "cluster: job 1: node 1 (host1) has rank 2 and up, pids 200");
  each(a, on_a, "status", 0);
  EXPECT_FALSE(ends.contains(job));
  each(b, on_b, "status", 0);
  EXPECT_EQ(end_of(job), 0);
  EXPECT_EQ(used(), 0);
  EXPECT_TRUE(stores[0].expired());
}

TEST_F(SchedulerTest, AGangWaitsForAllItsPlacesAndThenGivesUp) {
  const auto a = join(2), first = submit(1), second = submit(2, 0, 5'000), third = submit(1);
  EXPECT_EQ(used(), 2) << "the third fits beside the first";
  EXPECT_EQ(said[second].at(0), "cluster: job 2 waits: 2 workers want 2 CPUs, 1 of 2 free");
  now += 5s;
  scheduler.tick();
  EXPECT_EQ(end_of(second), 1);
  EXPECT_EQ(said[second].back(), "cluster: job 2 failed with status 1: 2 workers want 2 CPUs, 0 of 2 free, for 5 s");
  const auto fourth = submit(3);
  const auto b = join(1);
  EXPECT_TRUE(start(b).is_null()) << "one place is not enough";
  scheduler.stop(first);
  scheduler.stop(third);
  ended(a, {{"job", 1}, {"attempt", 0}}, 0, 143);
  EXPECT_TRUE(start(b).is_null());
  ended(a, {{"job", 3}, {"attempt", 0}}, 0, 143);
  EXPECT_EQ(start(b)["job"], fourth);
}

TEST_F(SchedulerTest, AFailedGangIsStoppedAndStartsAgainWithAnotherAttemptNumber) {
  const auto a = join(1), b = join(1), job = submit(2, 1);
  const json first = start(a);
  start(b);
  ended(a, first, 0, 137);
  EXPECT_TRUE(told_to(b, "stop"));
  EXPECT_NE(
      said[job].back().find("failed and will start again: rank 0 (host0, pid 0) was killed by signal 9 (SIGKILL)"),
      std::string::npos)
      << said[job].back();
  EXPECT_TRUE(start(a).is_null()) << "rank 1 still runs";
  ended(b, first, 1, 143);
  EXPECT_TRUE(start(a).is_null()) << "at most one start a second";
  now += 1s;
  scheduler.tick();
  const json second = start(a);
  EXPECT_EQ(second["attempt"], 1);
  EXPECT_TRUE(stores[0].expired());
  ended(a, first, 0, 1);   // of the first attempt
  ended(b, second, 0, 1);  // of a rank that runs on another node
  ended(a, second, 7, 1);  // of no rank
  scheduler.hear(a, {{"beat", true}});
  EXPECT_EQ(used(), 2);
  EXPECT_FALSE(told_to(a, "stop"));
  ended(b, second, 1, 3);
  ended(a, second, 0, 143);
  EXPECT_EQ(end_of(job), 3) << "the second failure is one too many";
}

// A closed connection does not prove that the node's processes are dead. The end of their lease does.
TEST_F(SchedulerTest, AGangDoesNotStartAgainDuringTheLeaseOfALostNode) {
  const auto a = join(1), b = join(1), job = submit(1, 1), other = submit(1, 1);
  start(a);
  now += 10s;
  scheduler.lose(a, "its connection closed", 2s);
  const auto c = join(1);
  now += 1999ms;
  scheduler.tick();
  EXPECT_TRUE(start(c).is_null());
  now += 1ms;
  scheduler.tick();
  EXPECT_EQ(start(c)["job"], job);
  EXPECT_FALSE(told_to(b, "stop")) << "the gang on the other node keeps running";
  EXPECT_TRUE(scheduler.has_job(other));
  EXPECT_TRUE(told_to(a, "leave")) << "should it still be there";
}

TEST_F(SchedulerTest, ANodeThatDoesNotEndItsProcessesIsGivenUp) {
  const auto a = join(1), job = submit(1);
  scheduler.stop(job);
  now += Scheduler::to_stop - 1ms;
  scheduler.tick();
  EXPECT_TRUE(scheduler.has_node(a));
  now += 1ms;
  scheduler.tick();
  EXPECT_FALSE(scheduler.has_node(a));
  EXPECT_EQ(end_of(job), 130);
}

TEST_F(SchedulerTest, AProgramThatCannotBeStartedIsNotTriedAgain) {
  const auto a = join(1), job = submit(1, -1);
  json message = which(start(a), 0);
  message["status"] = 127;
  message["error"] = "cannot start '/bin/program'";
  scheduler.hear(a, message);
  EXPECT_EQ(end_of(job), 127);
  EXPECT_NE(said[job].back().find("cannot start '/bin/program'"), std::string::npos);
}

TEST_F(SchedulerTest, WrongJobsAreRefusedAndAStoreThatFailsEndsItsJobOnly) {
  EXPECT_ANY_THROW(scheduler.submit(7, {{}, "/", 1}));
  EXPECT_ANY_THROW(scheduler.submit(7, {{"/bin/program"}, "/", 0}));
  EXPECT_ANY_THROW(scheduler.submit(7, {{"/bin/program"}, "/", 1, -2}));
  EXPECT_FALSE(scheduler.has_job(7));
  join(1);
  can_serve = false;
  EXPECT_EQ(end_of(submit(1)), 1);
}

TEST_F(SchedulerTest, LeaveEndsAllJobsAndTellsTheNodes) {
  const auto a = join(1), running = submit(1), waiting = submit(1);
  scheduler.leave("stopped");
  EXPECT_TRUE(told_to(a, "leave"));
  EXPECT_EQ(end_of(running), 1);
  EXPECT_EQ(end_of(waiting), 1);
  EXPECT_FALSE(scheduler.left()) << "the node has not";
  scheduler.lose(a, "it left", {});
  EXPECT_TRUE(scheduler.left());
  EXPECT_EQ(end_of(submit(1)), 1) << "too late";
  EXPECT_TRUE(told_to(join(1), "leave")) << "too late";
}

// After random events in random order no CPU is given twice or lost, and every job has ended once.
TEST_F(SchedulerTest, HoldsThroughRandomEvents) {
  std::mt19937 random(1);
  const auto pick = [&](int high) { return std::uniform_int_distribution(0, high - 1)(random); };
  struct Running {
    std::int64_t node;
    json start;
    std::size_t rank;
  };
  std::vector<Running> running;
  const auto collect = [&] {
    for (std::int64_t node = 0; node < next_node; ++node)
      for (const json& message : std::exchange(to_node[node], {}))
        if (message.contains("start"))
          for (std::size_t i = 0; i < message["start"]["count"]; ++i)
            running.push_back({node, message["start"], message["start"]["first_rank"].get<std::size_t>() + i});
  };
  const auto end_one = [&](int status) {
    if (running.empty()) return;
    const auto at = running.begin() + pick(static_cast<int>(running.size()));
    const Running one = *at;
    running.erase(at);
    ended(one.node, one.start, one.rank, status);
  };
  for (int event = 0; event < 3'000; ++event) {
    now += 100ms;
    switch (pick(8)) {
      case 0:
        join(1 + pick(4));
        break;
      case 1:
        scheduler.lose(next_node - 1 - pick(6), "test", 2s);
        break;
      case 2:
        submit(1 + pick(6), pick(3));
        break;
      case 3:
        scheduler.stop(next_job - 1 - pick(6));
        break;
      case 4:
        scheduler.tick();
        break;
      default:
        end_one(pick(4) == 0 ? 1 : 0);
    }
    collect();
    const json status = scheduler.status();
    for (const json& node : status["nodes"]) {
      const std::string text = node[3];
      const int now_used = std::stoi(text), all = std::stoi(text.substr(text.find('/') + 1));
      ASSERT_TRUE(0 <= now_used && now_used <= all) << text;
    }
  }
  for (std::int64_t job = 1; job < next_job; ++job) scheduler.stop(job);
  while (!running.empty()) end_one(143);
  EXPECT_EQ(used(), 0);
  EXPECT_GT(next_job, 300);
  for (std::int64_t job = 1; job < next_job; ++job) EXPECT_TRUE(ends.contains(job)) << job;
}

}  // namespace scheduler_test
