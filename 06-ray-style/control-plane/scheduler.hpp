// scheduler.hpp: the nodes and the jobs of a cluster: what runs where, and what follows when a process or a node dies.
// It knows nothing of connections and has no clock, so that a test can play any order of events.
#pragma once

#include <nlohmann/json.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace cluster {

struct Job {
  std::vector<std::string> command;
  std::string folder;  // the working folder of its processes
  int workers = 1;
  int max_failures = 0;     // maximum number of restarts; -1: unlimited
  int timeout_ms = 60'000;  // to wait for free CPUs
  bool spread = false;
};

// The processes of a job start together, on places that are all free. When one fails, all are stopped and started again
// as the next attempt. For one thread at a time.
class Scheduler {
 public:
  using Clock = std::chrono::steady_clock;
  using json = nlohmann::json;

  static constexpr std::chrono::seconds between_attempts{1};  // from start to start, at least
  static constexpr std::chrono::seconds to_stop{10};          // after which a node that still runs processes is lost

  struct Store {
    int port = 0;
    std::string token;
    std::shared_ptr<void> server;  // serves as long as it lives
  };
  struct Surroundings {
    std::function<Store()> make_store;  // for the ranks of an attempt
    std::function<void(std::int64_t node, const json& message)> to_node;
    std::function<void(std::int64_t job, const json& message)> to_client;
    std::function<void(const std::string&)> log;
    std::function<Clock::time_point()> now = [] { return Clock::now(); };
  };
  explicit Scheduler(Surroundings surroundings) : surroundings_(std::move(surroundings)) {}

  // A node's first message is its host, pid and cpus. hear() ignores messages about earlier attempts.
  void join(std::int64_t node, const json& hello);
  void hear(std::int64_t node, const json& message);
  // The node is gone. Its processes may still run for `lease`: no job that had some there starts again before.
  void lose(std::int64_t node, const std::string& why, std::chrono::milliseconds lease);

  void submit(std::int64_t job, const Job& what);
  void stop(std::int64_t job);            // nothing if it has ended
  void tick();                            // several times a second: what is due
  void leave(const std::string& reason);  // ends all jobs, and tells the nodes to end
  bool has_job(std::int64_t job) const { return gangs_.contains(job); }
  bool has_node(std::int64_t node) const { return nodes_.contains(node); }
  bool left() const { return !left_.empty() && nodes_.empty(); }
  json status() const;

 private:
  struct Node {
    std::string host;
    std::int64_t pid = 0;
    int cpus = 0, free = 0;
  };
  struct Rank {
    std::int64_t node = 0, pid = 0;  // pid 0: not started yet
    std::string host;
    bool ended = false;
  };
  enum class State { waiting, running, stopping };
  struct Gang {
    Job job;
    State state = State::waiting;
    int attempt = 0, failures = 0, started = 0, left = 0;  // ranks of this attempt: with a pid; not ended
    std::vector<Rank> ranks;                               // of this attempt
    Store store;
    Clock::time_point earliest, give_up, stop_by;
    bool said_waiting = false;
    std::optional<std::pair<int, std::string>> outcome{};  // status and reason, if no other attempt follows
  };
  using Gangs = std::map<std::int64_t, Gang>;

  void schedule();
  void start(std::int64_t job, Gang& gang, const std::vector<int>& counts);
  void show(std::int64_t job, const Gang& gang);
  void fail(std::int64_t job, Gang& gang, int status, const std::string& what, bool again = true);
  void stop(std::int64_t job, Gang& gang);
  void after_last_exit(Gangs::iterator gang);
  void finish(Gangs::iterator gang);
  void say(std::int64_t job, const std::string& what);
  std::vector<int> free_cpus() const;
  std::string why_not(const Job& job) const;

  Surroundings surroundings_;
  std::map<std::int64_t, Node> nodes_;
  Gangs gangs_;
  std::string left_;  // why, if the cluster ends
};

}  // namespace cluster
