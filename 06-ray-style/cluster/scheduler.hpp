// scheduler.hpp: the nodes and the jobs of a cluster: what runs where, and what follows when a process or a node dies.
// It knows nothing of connections.
#pragma once

#include "cluster/cluster.pb.h"
#include "cluster/placement.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace cluster {

// The processes of a job are a gang: they start together, on slots that are all free, and when one of them fails all
// are stopped, and started again with the newest checkpoint. Jobs start in the order in which they came; only one that
// is larger than the whole cluster lets others pass. Not for several threads at once. None of the functions that it is
// given may block or call it.
class Scheduler {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr std::size_t most_nodes = 1000, most_jobs = 1000, most_argument_bytes = 64 << 10;
  static constexpr int most_workers = 10'000;
  static constexpr std::chrono::seconds between_attempts{1};  // from start to start, at least
  static constexpr std::chrono::seconds to_stop{10};          // after which a node that still runs processes is dropped

  struct Store {
    std::uint16_t port = 0;
    std::shared_ptr<void> server;  // serves as long as it lives
  };
  struct Surroundings {
    std::function<Store()> make_store;  // for an attempt; may throw
    std::function<void(const std::string&)> log;
    std::function<Clock::time_point()> now = [] { return Clock::now(); };
  };
  struct NodeLink {
    std::function<void(ToNode)> send;
    std::function<void()> drop;  // ends the connection: lose() follows
  };
  struct ClientLink {
    std::function<void(ToClient)> send;
    std::function<bool(ToClient)> send_output;  // false: dropped, the client is slow
    std::function<void()> ended;                // the last that is called; `send` got the Result just before
  };

  explicit Scheduler(Surroundings surroundings) : surroundings_(std::move(surroundings)) {}

  // Returns the node's number. Throws std::runtime_error where it cannot be taken.
  std::int64_t join(const Hello& hello, NodeLink link);
  // What is said of processes that do not run there, of older attempts say, counts for nothing.
  void hear(std::int64_t node, const FromNode& message);
  // The node is gone; `why` ends the sentence "node 1 (host, pid 17) is gone: ".
  void lose(std::int64_t node, const std::string& why);

  // Returns the job's number. Throws UsageError for a wrong job and std::runtime_error where there are too many.
  std::int64_t submit(const Job& job, ClientLink link);
  void cancel(std::int64_t job);  // nothing where it has ended

  void tick();  // several times a second: what is due by time
  // Nodes and clients are told. Afterwards nobody is taken any more.
  void leave(const std::string& reason);
  Status status() const;

 private:
  struct Node {
    Hello hello;
    NodeLink link;
    int cpus_used = 0;
    std::vector<bool> gpus_used;
  };
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
    ClientLink client;
    std::string secret;
    State state = State::waiting;
    int attempt = 0, failures = 0;
    std::vector<Member> members;  // of this attempt, by rank
    bool shown = false;           // the client knows the members
    Store store;
    Clock::time_point earliest{}, stop_by{};
    std::string waiting, checkpoint, last_report;
    std::int64_t lost = 0;            // lines that the client was too slow for
    std::optional<Result> outcome{};  // where no other attempt follows the one that is stopping
  };
  using Gangs = std::map<std::int64_t, Gang>;

  void schedule();
  void start(std::int64_t job, Gang& gang, const std::vector<int>& counts);
  void show(Gang& gang);
  void end(std::int64_t job, Member& member);
  void fail(std::int64_t job, int status, const std::string& what, bool again = true);
  void stop(std::int64_t job, Gang& gang);
  void settle(std::int64_t job);
  void finish(Gangs::iterator gang);
  void wait(Gang& gang, const std::string& why);
  std::string name(std::int64_t node) const;  // "host, pid 17"
  std::string name(const Gang& gang, int rank) const;

  Surroundings surroundings_;
  std::map<std::int64_t, Node> nodes_;
  Gangs gangs_;
  std::int64_t next_node_ = 0, next_job_ = 1;
  std::string left_;  // why, when the cluster has ended
};

// Throws UsageError, one line, for a job that no head would take.
void check_job(const Job& job);

}  // namespace cluster
