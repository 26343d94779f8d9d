// agents.hpp: the mnruns of all nodes meet, and agree on how the run ended.
#pragma once

#include <mnrun/messages.hpp>

#include <multinode/net/address.hpp>
#include <multinode/store/tcp_store.hpp>

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>

namespace mnrun {

// The run has ended while this agent waited for the others.
struct Ended {
  Verdict verdict;
};

// Keys: mnrun/ID/N/agent/R    node R's agent, in start N
//       mnrun/ID/N/round/R    what node R must know about the others: node 0 writes it when all agents are there
//       mnrun/ID/N/missing    until then: the agents that node 0 waits for
//       mnrun/ID/N/first      the first failure, with --async
//       mnrun/ID/N/done       the number of nodes whose processes have all ended
//       mnrun/ID/N/verdict    how start N ended
//       mnrun/ID/end          why the run ends, whatever its start: an agent was lost, or received a signal
class Agents {
 public:
  using Say = std::function<void(const std::string&)>;

  // `say` prints which node this one waits for. `this_agent` is this node's agent; Agents fills in its rank and what
  // node 0 decides.
  Agents(const Options& options, Agent this_agent, Say say);
  ~Agents();
  Agents(const Agents&) = delete;

  // Returns when all agents are ready for start number `restart`. Throws StoreTimeout, which names the missing nodes,
  // UsageError if two agents contradict each other, and Ended if the run ended meanwhile.
  Round meet(int restart);
  const Agent& this_agent() const { return this_agent_; }

  // None of these waits for another node. After meet().
  int verdict_fd() const { return wake_.get(); }  // readable when there is a verdict
  std::optional<Verdict> verdict() const;
  void propose(const Verdict& verdict);     // counts unless another node was first
  void note_first(const Verdict& failure);  // the verdict when all processes have ended
  void done();                              // all processes of this node have ended
  void end(const Verdict& verdict);         // as propose(), and no start follows, whatever the verdict of this one

  // Closes the connections. If this agent hosts the store, waits until the others have closed theirs.
  void leave();

 private:
  std::string key(const std::string& name) const;  // of this start
  std::string end_key() const;
  void join_threads();
  std::unique_ptr<multinode::TcpStoreServer> serve();
  void connect();
  void claim_node();
  std::vector<Agent> collect();
  std::string await(const std::string& key, const std::function<std::string()>& missing);
  void deliver(const Verdict& verdict);
  void listen();
  Verdict store_lost(const std::string& why) const;
  void tell(std::function<void()> message, const Verdict& if_that_fails);

  const Options& options_;
  Agent this_agent_;
  std::optional<multinode::FreePort> program_port_;  // this_agent_.master_port, unless the user chose it
  Say say_;
  multinode::Endpoint endpoint_;
  std::string token_;  // of the store
  std::unique_ptr<multinode::TcpStoreServer> server_;
  int restart_ = 0;
  std::optional<multinode::Deadline> meeting_;
  std::chrono::steady_clock::time_point meeting_since_;
  bool meeting_reported_ = false;

  // With several nodes: one connection to send messages and one to receive the verdict, each with its thread.
  std::unique_ptr<multinode::TcpStore> teller_, listener_;
  std::thread telling_, listening_;
  std::atomic<bool> ending_ = false;

  Descriptor wake_;
  mutable std::mutex mutex_;  // of the following two
  std::string store_host_;
  std::optional<Verdict> verdict_;
  std::optional<Verdict> first_;  // used by the event loop's thread only
};

}  // namespace mnrun
