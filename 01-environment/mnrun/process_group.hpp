// process_group.hpp: the ranks of the processes, and the processes of this node.
#pragma once

#include <mnrun/guard.hpp>
#include <mnrun/options.hpp>
#include <mnrun/output_pump.hpp>

#include <multinode/process/child_process.hpp>

#include <filesystem>
#include <span>

namespace mnrun {

std::string signal_name(int signal);                   // "SIGKILL"
std::string text_of(const multinode::Ending& ending);  // "was killed by signal 9 (SIGKILL)", "ended with exit status 3"

// What an agent, the mnrun of a node, tells the other agents about itself.
struct Agent {
  int node = 0;
  std::string host;
  pid_t pid = 0;
  int processes = 1;
  std::string run_id;  // this and the next three: all nodes use those of node 0
  int max_restarts = 0;
  std::string master_address;
  std::uint16_t master_port = 0;
  bool hosts_store = false;
  int error_status = 0;  // not 0: this node cannot start the program, and `error` says why
  std::string error;

  std::string name() const;  // "node 1 (host b, pid 12)"
};

// The numbers of a process.
struct Place {
  int rank = 0, world_size = 1;
  int local_rank = 0, local_size = 1;
  int node = 0, node_count = 1;
};

// What a node knows about one attempt: a start of the processes of all nodes, the first one or one after a failure. Its
// size does not grow with the number of nodes.
struct Attempt {
  Agent master;            // node 0's agent
  Place first;             // of this node's first process
  std::string store_host;  // name() of the agent that hosts the store
  int error_status = 0;    // not 0: a node cannot start the program, and `error` says which and why
  std::string error;
  int number = 0;     // from 0, MNRUN_RESTART_COUNT; this and the next: not part of the JSON text
  std::string store;  // host:port/token of the agents' store
};

// `agents` are sorted by node; ranks are numbered node by node.
std::vector<Attempt> attempt_of_each_node(std::span<const Agent> agents);

// The numbers of the processes of the node whose first process has `first`.
std::vector<Place> places(const Place& first);

// The environment of a process: the agent's, without the variables of other launchers, which would mislead the program.
std::vector<std::string> environment_of(const Place& place, const Attempt& attempt, const Options& options,
                                        const multinode::Environment& inherited);

class ProcessGroup {
 public:
  // Does not start the processes yet. `common`: what is the same for all of them.
  ProcessGroup(const Options& options, const Attempt& attempt, multinode::ChildCommand common, const Guard& guard);
  ~ProcessGroup() { guard_.forget_all(); }
  ProcessGroup(const ProcessGroup&) = delete;

  void start(OutputPump& pump);  // throws StartError, std::system_error

  // The processes that have ended since the last call. Those killed by a signal come first, because a process that
  // exits with an error has often just noticed the death of another one.
  std::vector<std::size_t> reap();
  bool ended() const;
  bool interactive() const {
    return interactive_;
  }  // one process, on a terminal: it receives the terminal's signals itself
  void signal(int number) const;
  const Place& place(std::size_t i) const { return places_[i]; }
  const multinode::ChildProcess& child(std::size_t i) const { return children_[i]; }

 private:
  Descriptor open_log(const Place& place, const char* name) const;

  const Options& options_;
  const Attempt& attempt_;
  std::vector<Place> places_;
  const multinode::ChildCommand common_;
  const Guard& guard_;
  bool interactive_;
  std::vector<multinode::ChildProcess> children_;
};

}  // namespace mnrun
