// scheduler.hpp: the nodes and the jobs of a cluster: what runs where, and what follows when a process or a node dies.
// It knows nothing of connections, and a test can replace its clock.
#pragma once

#include "control-plane/cluster.pb.h"
#include "placement.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace cluster {

// The processes of a job start together, on slots that are all free. When one fails, all are stopped and started again.
// Jobs start in the order in which they came; only one that is larger than the whole cluster lets others pass. For one
// thread at a time. None of the functions that it is given may block or call it.
class Scheduler {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr std::size_t most_nodes = 1000, most_jobs = 2000, most_argument_bytes = 64 << 10;
  static constexpr int most_workers = 10'000, most_cpus = 1 << 16, most_gpus = 1 << 10;  // the last two: per node
  static constexpr std::chrono::seconds between_attempts{1};  // from start to start, at least
  static constexpr std::chrono::seconds to_stop{10};          // after which a node that still runs processes is dropped

  struct Store {
    std::uint16_t port = 0;
    std::string token;
    std::shared_ptr<void> server;  // serves as long as it lives
  };
  struct Surroundings {
    std::function<Store()> make_store;  // for an attempt; may throw
    std::function<void(const std::string&)> log;
    std::function<void(std::int64_t job, const std::string& lines)> write;  // to the job's record
    std::function<void(std::int64_t job, int status)> ended;                // after its last line
    std::function<Clock::time_point()> now = [] { return Clock::now(); };
  };
  struct NodeLink {
    std::function<void(ToNode)> send;
    std::function<void()> drop;  // ends the connection: lose() follows
  };

  explicit Scheduler(Surroundings surroundings, std::int64_t first_job = 1)
      : surroundings_(std::move(surroundings)), next_job_(first_job) {}

  // Returns the node's number. Throws std::runtime_error if it cannot be taken.
  std::int64_t join(const Hello& hello, NodeLink link);
  // Ignores messages about processes that do not run on this node, and about earlier attempts.
  void hear(std::int64_t node, const FromNode& message);
  // The node is gone; `why` ends the sentence "node 1 (host, pid 17) is gone: ". Its processes may still run for
  // `lease`: no job that had some there starts again before.
  void lose(std::int64_t node, const std::string& why, std::chrono::milliseconds lease = {});

  // Returns the job's number. Throws UsageError for a wrong job and std::runtime_error if there are too many.
  std::int64_t submit(const Job& job);
  void stop(std::int64_t job);  // nothing if it has ended

  void tick();  // several times a second: what is due
  // Ends all jobs and tells the nodes. Afterwards no node and no job is accepted.
  void leave(const std::string& reason);
  Status status() const;
  std::size_t nodes() const { return nodes_.size(); }

 private:
  struct Node {
    Hello hello;
    NodeLink link;
    Slots all, free;
    std::vector<bool> gpus_used;
  };
  using Nodes = std::map<std::int64_t, Node>;
  struct Member {
    std::int64_t node = 0;
    std::string host;
    std::int64_t pid = 0;  // 0: not started yet
    std::vector<int> gpus;
    bool ended = false;
  };
  enum class State { waiting, running, stopping };
  struct Gang {
    Job job;
    State state = State::waiting;
    int attempt = 0, failures = 0;
    std::vector<Member> members;  // of this attempt, by rank
    int started = 0, left = 0;    // members: with a pid; not ended
    Store store;
    Clock::time_point earliest{}, stop_by{};
    std::int64_t refused_at = -1;  // the state of membership_ in which it was larger than the cluster
    std::string waiting;           // why, as its record says
    struct Outcome {
      int status;
      std::string what;
    };
    std::optional<Outcome> outcome{};  // if no other attempt follows the one that is stopping
  };
  using Gangs = std::map<std::int64_t, Gang>;

  void schedule();
  void start(std::int64_t job, Gang& gang, const std::vector<int>& counts);
  void show(std::int64_t job, const Gang& gang);
  void end(Gang& gang, Member& member);
  void fail(std::int64_t job, Gang& gang, int status, const std::string& what, bool again = true);
  void stop(std::int64_t job, Gang& gang);
  void after_last_exit(Gangs::iterator gang);
  void finish(Gangs::iterator gang);
  void wait(std::int64_t job, Gang& gang, const std::string& why);
  void say(std::int64_t job, const std::string& what);
  std::vector<Slots> slots(Slots Node::*which) const;
  static std::set<std::int64_t> nodes_of(const Gang& gang);
  static std::string name(const Hello& hello);  // "host, pid 17"
  static std::string name(const Gang& gang, int rank);

  Surroundings surroundings_;
  Nodes nodes_;
  Gangs gangs_;
  std::set<std::int64_t> waiting_;  // jobs
  std::int64_t next_node_ = 0, next_job_;
  std::int64_t membership_ = 0;  // counts the changes of nodes_
  std::string left_;             // why, if the cluster has ended
};

// Throws UsageError, one line, for a job that no head would take.
void check_job(const Job& job);

}  // namespace cluster
