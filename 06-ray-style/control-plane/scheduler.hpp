// scheduler.hpp: the nodes and the jobs of a cluster: what runs where, and what follows when a process or a node dies.
// It knows nothing of connections and has no clock, so that a test can play any order of events.
#pragma once

#include <nlohmann/json.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace cluster {

struct Job {
  std::vector<std::string> command;
  nlohmann::json environment;  // of its processes: the working folder, and the store in which they meet
  int workers = 1;
  int max_failures = 0;  // maximum number of restarts; -1: unlimited
};

// The processes of a job start together, on places that are all free. When one fails, all are stopped and started again
// as the next attempt.
class Scheduler {
 public:
  using Clock = std::chrono::steady_clock;
  using json = nlohmann::json;

  static constexpr std::chrono::seconds patience{60};  // how long a job waits for free CPUs

  struct Surroundings {
    std::function<void(std::int64_t node, const json& message)> to_node;
    std::function<void(std::int64_t job, const json& message)> to_client;
    std::function<void(const std::string&)> log;
    std::function<Clock::time_point()> now = [] { return Clock::now(); };
  };
  explicit Scheduler(Surroundings surroundings) : surroundings_(std::move(surroundings)) {}

  // A node's first message is its host, pid and cpus. on_process_end() ignores messages about earlier attempts.
  void join(std::int64_t node, const json& hello);
  void on_process_end(std::int64_t node, const json& message);
  // The node is gone. Its processes may still run for `lease`: no job that had some there starts again before.
  void lose(std::int64_t node, const std::string& why, std::chrono::milliseconds lease);

  void submit(std::int64_t job, const Job& what);
  void stop(std::int64_t job);            // nothing if it has ended
  void tick() { schedule(); }             // several times a second: what is due
  void leave(const std::string& reason);  // ends all jobs, and tells the nodes to end
  bool has_job(std::int64_t job) const { return gangs_.contains(job); }
  bool left() const { return !left_.empty() && nodes_.empty(); }
  std::size_t node_count() const { return nodes_.size(); }
  std::string status() const;  // tables of the nodes and the jobs

 private:
  struct Node {
    std::string host;
    std::int64_t pid = 0;
    int cpus = 0, free = 0;
  };
  struct Rank {
    std::int64_t node = 0;
    std::string host;
    bool ended = false;
  };
  struct Gang {
    Job job;
    Clock::time_point earliest, give_up;
    std::vector<Rank> ranks{};  // of this attempt; empty: the job waits for free places
    int attempt = 0, failures = 0;
    bool stopping = false, said_waiting = false;
    std::optional<std::pair<int, std::string>> outcome{};  // status and reason, if no other attempt follows
  };

  void schedule();  // after each event
  bool advance(std::int64_t job, Gang& gang);
  void start(std::int64_t job, Gang& gang, const std::vector<int>& counts);
  void fail(std::int64_t job, Gang& gang, int status, const std::string& what);
  void stop(std::int64_t job, Gang& gang);
  void say(std::int64_t job, const std::string& what);

  Surroundings surroundings_;
  std::map<std::int64_t, Node> nodes_;
  std::map<std::int64_t, Gang> gangs_;
  std::string left_;  // why, if the cluster ends
};

}  // namespace cluster
