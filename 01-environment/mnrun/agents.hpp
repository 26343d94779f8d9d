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

// Keys: mnrun/ID/N/nodes      the number of nodes, and the agent that came first, which writes it
//       mnrun/ID/N/agent/R    node R's agent, in attempt N
//       mnrun/ID/N/attempt/R  what node R must know about the others: node 0 writes it when all agents are there
//       mnrun/ID/N/missing    until then: the agents that node 0 waits for
//       mnrun/ID/N/done       the number of nodes whose processes have all ended
//       mnrun/ID/N/verdict    how attempt N ended
//       mnrun/ID/end          why the run ends, whatever its attempt: an agent was lost, or received a signal
class Agents {
 public:
  using Print = std::function<void(const std::string&)>;

  // `print` prints which node this one waits for. `this_agent` is this node's agent; Agents fills in its rank and what
  // node 0 decides.
  Agents(const Options& options, Agent this_agent, Print print);
  ~Agents();
  Agents(const Agents&) = delete;

  // Returns when all agents are ready for attempt `number`. Throws StoreTimeout, which names the missing nodes,
  // UsageError if two agents contradict each other, and Ended if the run ended meanwhile.
  Attempt meet(int number);
  const Agent& this_agent() const { return this_agent_; }

  // None of these waits for another node. After meet().
  int verdict_fd() const { return wake_.get(); }  // readable when there is a verdict
  std::optional<Verdict> verdict() const;
  void propose(const Verdict& verdict);  // counts unless another node was first
  void report_done();                    // all processes of this node have ended
  void end_run(const Verdict& verdict);  // as propose(), and no attempt follows, whatever the verdict of this one

  // Closes the connections. If this agent hosts the store, waits until the others have closed theirs.
  void leave();

 private:
  std::string key(const std::string& name) const;  // of this attempt
  std::string end_key() const;
  void join_threads();
  std::unique_ptr<multinode::TcpStoreServer> serve();
  multinode::Endpoint store_endpoint() const { return server_ ? server_->endpoint() : endpoint_; }  // from this host
  void connect();
  void claim_node();
  std::vector<Agent> collect();
  std::string wait_for(const std::string& key, const std::function<std::string()>& missing);
  void set_verdict(const Verdict& verdict);
  void receive_verdict();
  Verdict store_lost(const std::string& why) const;
  void send(std::function<void()> message, const Verdict& if_that_fails);

  const Options& options_;
  Agent this_agent_;
  std::optional<multinode::FreePort> program_port_;  // this_agent_.master_port, unless the user chose it
  Print print_;
  multinode::Endpoint endpoint_;
  std::string token_;  // of the store
  std::unique_ptr<multinode::TcpStoreServer> server_;
  int attempt_ = 0;
  std::optional<multinode::Deadline> meeting_;
  std::chrono::steady_clock::time_point meeting_since_;
  bool meeting_reported_ = false;

  // With several nodes: one connection to send messages and one to receive the verdict, each with its thread.
  std::unique_ptr<multinode::TcpStore> sender_, receiver_;
  std::thread sending_, receiving_;
  std::atomic<bool> ending_ = false;

  Descriptor wake_;
  mutable std::mutex mutex_;  // of the following two
  std::string store_host_;
  std::optional<Verdict> verdict_;
};

}  // namespace mnrun
