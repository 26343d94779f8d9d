// agents.hpp: the mnruns of all nodes: they meet, and agree on how the run ended.
#pragma once

#include <mnrun/process_group.hpp>

#include <multinode/tcp_store.hpp>

#include <atomic>
#include <functional>
#include <mutex>

namespace mnrun {

// How a start of the run ended, the same on all nodes: whoever writes it into the store first is believed.
struct Verdict {
  int status = 0;
  std::string text;                      // "" if all is right
  bool again = false;                    // worth another start
  std::chrono::milliseconds grace{500};  // from SIGTERM to SIGKILL
};
void to_json(nlohmann::json& json, const Verdict& verdict);
void from_json(const nlohmann::json& json, Verdict& verdict);

// Keys: mnrun/run_id          of the run whose agents meet at this store
//       mnrun/ID/N/agent/R    node R's agent, in start N
//       mnrun/ID/N/first      the first failure, with --async
//       mnrun/ID/N/done       the number of nodes whose processes have all ended
//       mnrun/ID/N/verdict    how start N ended
class Agents {
 public:
  using Say = std::function<void(const std::string&)>;

  // `say` is told who is waited for. `own` is this node's agent; its rank and what node 0 decides are filled in here.
  Agents(const Options& options, Agent own, Say say);
  ~Agents();
  Agents(const Agents&) = delete;

  // Returns when all agents are ready for start number `restart`; throws StoreTimeout naming the nodes that are
  // missing, UsageError where two agents contradict each other.
  Round meet(int restart);
  int node() const { return own_.node; }
  const Agent& own() const { return own_; }

  // None of these waits for another node. After meet().
  int verdict_fd() const { return wake_.get(); }  // readable when there is a verdict
  std::optional<Verdict> verdict() const;
  void propose(const Verdict& verdict);     // the verdict, unless there is one already
  void note_first(const Verdict& failure);  // what the verdict is to be when all have ended
  void done();                              // all processes of this node have ended

  // Says goodbye, and waits for the others' if they need this agent's store.
  void leave();

 private:
  std::string key(const std::string& name) const;
  std::unique_ptr<multinode::TcpStoreServer> serve();
  void connect();
  void claim_node();
  void wait_for_all();
  void deliver(const Verdict& verdict);
  void listen();
  Verdict store_lost(const std::string& why) const;
  void tell(std::function<void()> message, const Verdict& if_that_fails);

  const Options& options_;
  Agent own_;
  Say say_;
  multinode::Endpoint endpoint_;
  std::unique_ptr<multinode::TcpStoreServer> server_;
  int restart_ = 0;

  // Where there are several nodes: a connection to tell, one to hear the verdict, each with its thread.
  std::unique_ptr<multinode::TcpStore> teller_, listener_;
  std::thread telling_, listening_;
  std::atomic<bool> ending_ = false;

  Descriptor wake_;
  mutable std::mutex mutex_;  // of the following
  std::vector<Agent> agents_;
  std::optional<Verdict> verdict_;
  std::optional<Verdict> first_;  // of the event loop's thread alone
};

}  // namespace mnrun
