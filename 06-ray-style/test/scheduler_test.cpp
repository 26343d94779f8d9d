// The scheduler with nodes that only collect their messages, and a clock that the test moves.
#include "control-plane/scheduler.hpp"

#include <test/support/json_lines.hpp>
#include <test/support/says.hpp>

#include <gtest/gtest.h>

#include <random>

namespace scheduler_test {

using namespace std::chrono_literals;
using namespace cluster;
using json = nlohmann::json;

class SchedulerTest : public ::testing::Test {
 protected:
  std::int64_t join(int cpus) {
    scheduler.join(next_node, {{"host", "host" + std::to_string(next_node)}, {"pid", 17}, {"cpus", cpus}});
    return next_node++;
  }
  std::int64_t submit(int workers, int max_failures = 0) {
    scheduler.submit(next_job, {{"/bin/program"}, {{"PWD", "/"}}, workers, max_failures});
    return next_job++;
  }
  // The node's newest start; null if it got none since the last call.
  json start(std::int64_t node) {
    json found;
    for (const json& message : std::exchange(to_node[node], {}))
      if (message.contains("start")) found = message;
    return found;
  }
  void ended(std::int64_t node, const json& start, std::size_t rank, int status) {
    scheduler.on_process_end(
        node, {{"job", start["job"]}, {"attempt", start["attempt"]}, {"rank", rank}, {"status", status}});
  }
  bool told_to(std::int64_t node, const char* what) {
    return std::ranges::any_of(to_node[node], [&](auto& message) { return message.contains(what); });
  }
  // The status of an ended job.
  int end_of(std::int64_t job) {
    EXPECT_FALSE(scheduler.has_job(job));
    return ends.contains(job) ? ends[job] : -1;
  }
  // Over all nodes. Checks that no node has more than its CPUs.
  int used() const {
    int sum = 0;
    const std::string text = scheduler.status();
    for (const auto& cpus : multinode::testing::matches_in(text, "([-0-9]+)/([0-9]+) *\n")) {
      const int here = std::stoi(cpus[1]);
      EXPECT_TRUE(0 <= here && here <= std::stoi(cpus[2])) << text;
      sum += here;
    }
    return sum;
  }

  std::map<std::int64_t, std::vector<json>> to_node;
  std::map<std::int64_t, std::vector<std::string>> said;
  std::map<std::int64_t, int> ends;
  std::int64_t next_node = 0, next_job = 1;
  Scheduler::Clock::time_point now{1h};
  Scheduler scheduler{{.to_node = [this](auto node, const json& message) { to_node[node].push_back(message); },
                       .to_client =
                           [this](auto job, const json& message) {
                             EXPECT_FALSE(ends.contains(job)) << "after its end: " << multinode::json_text(message);
                             if (message.contains("say")) said[job].push_back(message["say"]);
                             if (message.contains("end")) ends[job] = message["end"];
                           },
                       .log = [](const std::string&) {},
                       .now = [this] { return now; }}};
};

TEST_F(SchedulerTest, AGangRunsOnAllItsNodesAndEnds) {
  const auto a = join(2), b = join(2), job = submit(3);
  EXPECT_EQ(used(), 3);
  EXPECT_EQ(said[job].at(0), "cluster: job 1: 3 workers on 2 nodes");
  const json on_a = start(a), on_b = start(b);
  const auto environment = [](int here, int node) -> json {
    return {{"WORLD_SIZE", 3},    {"LOCAL_WORLD_SIZE", here},   {"GROUP_WORLD_SIZE", 2}, {"PWD", "/"},
            {"GROUP_RANK", node}, {"CLUSTER_RESTART_COUNT", 0}, {"CLUSTER_JOB_ID", 1}};
  };
  EXPECT_EQ(on_a["environment"], environment(2, 0));
  EXPECT_EQ(on_b["environment"], environment(1, 1));
  EXPECT_EQ(on_a["first_rank"], 0);
  EXPECT_EQ(on_b["first_rank"], 2);
  ended(a, on_a, 0, 0);
  ended(a, on_a, 1, 0);
  EXPECT_FALSE(ends.contains(job));
  ended(b, on_b, 2, 0);
  EXPECT_EQ(end_of(job), 0);
  EXPECT_EQ(used(), 0);
}

TEST_F(SchedulerTest, AGangWaitsForAllItsPlacesAndThenGivesUp) {
  const auto a = join(2), first = submit(1), second = submit(2), third = submit(1);
  EXPECT_EQ(used(), 2) << "the third fits beside the first";
  EXPECT_EQ(said[second].at(0), "cluster: job 2 waits: 2 workers want as many CPUs, 1 of 2 free");
  now += 60s;
  scheduler.tick();
  EXPECT_EQ(end_of(second), 1);
  EXPECT_EQ(said[second].back(),
            "cluster: job 2 failed with status 1: 2 workers want as many CPUs, 0 of 2 free, for 60 s");
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
  EXPECT_EQ(said[job].back(),
            "cluster: job 1 failed and will start again: rank 0 (host0) was killed by signal 9 (SIGKILL)");
  EXPECT_TRUE(start(a).is_null()) << "rank 1 still runs";
  ended(b, first, 1, 143);
  EXPECT_TRUE(start(a).is_null()) << "at most one start a second";
  now += 1s;
  scheduler.tick();
  const json second = start(a);
  EXPECT_EQ(second["attempt"], 1);
  ended(a, first, 0, 1);   // of the first attempt
  ended(b, second, 0, 1);  // of a rank that runs on another node
  ended(a, second, 7, 1);  // of no rank
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
}

TEST_F(SchedulerTest, LeaveEndsAllJobs) {
  const auto a = join(1), running = submit(1), waiting = submit(1);
  scheduler.leave("stopped");
  EXPECT_TRUE(told_to(a, "leave"));
  for (const auto job : {running, waiting, submit(1)}) EXPECT_EQ(end_of(job), 1);
  EXPECT_TRUE(told_to(join(1), "leave")) << "too late";
}

// After random events in random order no CPU is given twice or lost, and every job has ended once.
TEST_F(SchedulerTest, HoldsThroughRandomEvents) {
  std::mt19937 random(1);
  const auto pick = [&](std::int64_t high) { return std::uniform_int_distribution<std::int64_t>(0, high - 1)(random); };
  std::vector<std::tuple<std::int64_t, json, std::size_t>> running;  // node, start, rank
  const auto end_one = [&](int status) {
    if (running.empty()) return;
    const auto at = running.begin() + pick(std::ssize(running));
    const auto [node, start, rank] = *at;
    running.erase(at);
    ended(node, start, rank, status);
  };
  const std::function<void()> events[] = {
      [&] { join(1 + static_cast<int>(pick(4))); },
      [&] { scheduler.lose(next_node - 1 - pick(6), "test", 2s); },
      [&] { submit(1 + static_cast<int>(pick(6)), static_cast<int>(pick(3))); },
      [&] { scheduler.stop(next_job - 1 - pick(6)); },
      [&] { scheduler.tick(); },
      [&] { end_one(0); },
      [&] { end_one(0); },
      [&] { end_one(pick(2) == 0); },
  };
  for (int event = 0; event < 3'000; ++event) {
    now += 100ms;
    events[pick(std::ssize(events))]();
    for (std::int64_t node = 0; node < next_node; ++node)
      if (const json message = start(node); !message.is_null())
        for (std::size_t i = 0; i < message["count"]; ++i)
          running.emplace_back(node, message, message["first_rank"].get<std::size_t>() + i);
    if (event % 20 == 0) used();
  }
  for (std::int64_t job = 1; job < next_job; ++job) scheduler.stop(job);
  while (!running.empty()) end_one(143);
  EXPECT_EQ(used(), 0);
  EXPECT_GT(next_job, 300);
  for (std::int64_t job = 1; job < next_job; ++job) EXPECT_TRUE(ends.contains(job)) << job;
}

}  // namespace scheduler_test
