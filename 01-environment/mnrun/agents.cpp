#include <mnrun/agents.hpp>

#include <multinode/base/check.hpp>
#include <multinode/base/signals.hpp>
#include <multinode/base/text.hpp>
#include <multinode/net/address.hpp>
#include <multinode/store/secret.hpp>

#include <fmt/core.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <system_error>

namespace mnrun {

using multinode::StoreTimeout;
using multinode::UsageError;
using std::chrono::milliseconds;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

constexpr milliseconds tell_timeout = 5s;

std::string random_id() { return multinode::random_token().substr(0, 16); }

// The address from which this node connects to `to`. The others can reach this node at it.
std::string address_for_others(const multinode::Endpoint& to) {
  const std::string address = multinode::address_towards(to);
  return address.empty() ? to.host : address;
}

}  // namespace

Agents::Agents(const Options& options, Agent this_agent, Say say)
    : options_(options),
      this_agent_(std::move(this_agent)),
      say_(std::move(say)),
      wake_(multinode::check_errno(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")) {
  this_agent_.node = options.node_rank.value_or(0);
  this_agent_.run_id = options.run_id;
  this_agent_.max_restarts = options.max_restarts;
  if (options.nodes > 1) {
    // The agents know only the user's secret and the command line. Their ranks' generation has a random id too.
    const auto secret = multinode::read_secret(options.secret);
    const std::string run = options.run_id.empty() ? "user " + std::to_string(geteuid()) : "run " + options.run_id;
    token_ = multinode::token_for(secret, "agents of " + run);
    connect();
    if (this_agent_.hosts_store && secret.bytes.empty()) say_(multinode::warning_without_secret(secret));
  } else {
    token_ = multinode::random_token();
    if (this_agent_.run_id.empty()) this_agent_.run_id = random_id();
    endpoint_ = options.endpoint.value_or(multinode::Endpoint{"127.0.0.1", 0});
    server_ = serve();
    endpoint_.port = server_->port();
    this_agent_.hosts_store = true;
  }
}

Agents::~Agents() {
  ending_ = true;
  join_threads();
}

void Agents::join_threads() {
  if (telling_.joinable()) telling_.join();
  if (listening_.joinable()) listening_.join();
}

std::unique_ptr<multinode::TcpStoreServer> Agents::serve() {
  if (options_.nodes > 1 && options_.host_is_node_0) return multinode::serve_at({endpoint_, token_}, false);
  const auto& host = options_.nodes > 1 ? multinode::listening_address(endpoint_.host) : endpoint_.host;
  return std::make_unique<multinode::TcpStoreServer>(host, endpoint_.port, multinode::TcpStoreServer::Entry{token_});
}

void Agents::connect() {
  endpoint_ = *options_.endpoint;
  if (options_.host_is_node_0) {
    if (this_agent_.node == 0) server_ = serve();
  } else {
    try {
      server_ = serve();
    } catch (const std::system_error& e) {
      // Another agent of this machine listens there, or the address belongs to another machine.
      if (e.code().value() != EADDRINUSE && e.code().value() != EADDRNOTAVAIL) throw;
    }
  }
  this_agent_.hosts_store = server_ != nullptr;
  const auto timeout = options_.join_timeout;
  const std::string who = options_.host_is_node_0 ? "node 0, which hosts the store" : "the node that hosts the store";
  try {
    const auto notice = std::min<milliseconds>(timeout, 10s);
    const auto knock = [&](milliseconds limit) { multinode::TcpStore(endpoint_, limit, {.token = token_}).goodbye(); };
    try {
      knock(notice);
    } catch (const StoreTimeout&) {
      if (notice == timeout) throw;
      say_("waiting for " + who + " at " + to_string(endpoint_));
      knock(timeout - notice);
    }
  } catch (const StoreTimeout& e) {
    throw StoreTimeout(who + ", did not come: " + e.what());
  } catch (const multinode::StoreRefused&) {
    throw UsageError("the agents at " + to_string(endpoint_) +
                     (options_.run_id.empty() ? " are another user's, have another secret, or have an --rdzv-id"
                                              : " do not run --rdzv-id '" + options_.run_id +
                                                    "' as this one does, or have another secret") +
                     ": give all nodes of a run the same --rdzv-id and the same secret (MULTINODE_SECRET, or a "
                     "--secret-file that all nodes see), and each run its own port");
  }
  const multinode::protocol::Hello hello{.token = token_};
  teller_ = std::make_unique<multinode::TcpStore>(endpoint_, tell_timeout, hello);
  listener_ = std::make_unique<multinode::TcpStore>(endpoint_, tell_timeout, hello);
}

std::string Agents::key(const std::string& name) const {
  return "mnrun/" + options_.run_id + "/" + std::to_string(restart_) + "/" + name;
}

std::string Agents::end_key() const { return "mnrun/" + options_.run_id + "/end"; }

// Numbers nodes by arrival. The host of the store is node 0, so that MASTER_ADDR is the host that the user named.
void Agents::claim_node() {
  std::vector<int> candidates;
  if (options_.node_rank || restart_ > 0) {
    candidates = {this_agent_.node};
  } else {
    for (int i = 0; i < options_.nodes; ++i) candidates.push_back(i);
    if (!server_) std::rotate(candidates.begin(), candidates.begin() + 1, candidates.end());
  }
  std::string other;
  for (const int candidate : candidates) {
    this_agent_.node = candidate;
    if (candidate == 0) {
      if (this_agent_.run_id.empty()) this_agent_.run_id = random_id();
      this_agent_.master_address = server_ ? endpoint_.host : address_for_others(endpoint_);
      this_agent_.master_port = program_port_.emplace().number();
    }
    const std::string text = text_of(this_agent_);
    other = teller_->compare_set(key("agent/" + std::to_string(candidate)), "", text);
    if (other == text) return;
  }
  if (candidates.size() > 1)
    throw UsageError("--nnodes " + std::to_string(options_.nodes) + ": this many nodes have joined already");
  const Agent taken = parse_agent(other, this_agent_.node);
  throw UsageError(fmt::format("node rank {} is taken by host {}, pid {}; each node needs its own --node-rank",
                               this_agent_.node, taken.host, taken.pid));
}

// The value of `key`. While there is none, reports once which agents have not come; throws at the deadline.
std::string Agents::await(const std::string& key, const std::function<std::string()>& missing) {
  for (;;) {
    try {
      return teller_->get(key, std::min<milliseconds>(options_.join_timeout, 500ms));
    } catch (const StoreTimeout&) {
    }
    if (const auto early = verdict()) throw Ended{*early};
    const std::string who = missing();
    if (who.empty()) continue;
    if (meeting_->passed()) {
      const auto seconds = std::chrono::duration<double>(options_.join_timeout).count();
      throw StoreTimeout(
          fmt::format("{} did not come to {} within {:g} s (--timeout)", who, to_string(endpoint_), seconds));
    }
    if (Clock::now() - meeting_since_ > 10s && !std::exchange(meeting_reported_, true))
      say_("waiting for " + who + " at " + to_string(endpoint_));
  }
}

// For node 0.
std::vector<Agent> Agents::collect() {
  const auto agent_key = [this](std::size_t node) { return key("agent/" + std::to_string(node)); };
  std::vector<Agent> agents(static_cast<std::size_t>(options_.nodes));
  std::vector<bool> came(agents.size());
  std::string published;
  const auto missing = [&] {
    std::vector<std::size_t> nodes;
    for (std::size_t i = 0; i < agents.size(); ++i) {
      if (!came[i]) try {
          agents[i] = parse_agent(teller_->get(agent_key(i), 0ms), static_cast<int>(i));
          came[i] = true;
        } catch (const StoreTimeout&) {
          nodes.push_back(i);
        }
    }
    if (nodes.empty()) return std::string();
    std::string who = (nodes.size() > 1 ? "node ranks " : "node rank ") + multinode::join(nodes) + " of " +
                      std::to_string(options_.nodes);
    if (who != published) teller_->set(key("missing"), who);
    return published = std::move(who);
  };
  for (std::size_t i = 0; i < agents.size(); ++i)
    if (!came[i]) agents[i] = parse_agent(await(agent_key(i), missing), static_cast<int>(i));
  return agents;
}

Round Agents::meet(int restart) try {
  join_threads();  // of the start before: they use restart_
  restart_ = restart;
  verdict_.reset();
  first_.reset();
  std::uint64_t woken = 0;
  while (read(wake_.get(), &woken, sizeof woken) > 0) continue;  // by the verdict of the start before
  meeting_.emplace(options_.join_timeout);
  meeting_since_ = Clock::now();
  meeting_reported_ = false;
  Round round;
  if (options_.nodes == 1) {
    this_agent_.master_address = options_.master_address;
    this_agent_.master_port = options_.master_port ? options_.master_port : program_port_.emplace().number();
    round = rounds({&this_agent_, 1})[0];
  } else {
    claim_node();
    if (restart == 0) {
      const Verdict gone{1, "the mnrun of " + this_agent_.name() + " is gone: lost the connection to it"};
      listener_->set_on_disconnect(end_key(), text_of(gone));
    }
    listening_ = multinode::quiet_thread([this] { listen(); });
    if (this_agent_.node == 0) {
      int node = 0;
      for (const Round& round : rounds(collect())) teller_->set(key("round/" + std::to_string(node++)), text_of(round));
    }
    const std::string text = await(key("round/" + std::to_string(this_agent_.node)), [this] {
      const std::string who = multinode::one_line(teller_->compare_set(key("missing"), "", ""));
      return who.empty() ? "node rank 0 of " + std::to_string(options_.nodes) : who;
    });
    round = parse_round(text, this_agent_, options_.nodes);
  }
  round.restart = restart;
  round.store = multinode::with_token({endpoint_, token_});
  const std::lock_guard lock(mutex_);
  store_host_ = round.store_host;
  return round;
} catch (const multinode::StoreLost& e) {
  throw Ended{store_lost(e.what())};
}

std::optional<Verdict> Agents::verdict() const {
  const std::lock_guard lock(mutex_);
  return verdict_;
}

void Agents::deliver(const Verdict& verdict) {
  const std::lock_guard lock(mutex_);
  if (verdict_) return;
  verdict_ = verdict;
  const std::uint64_t one = 1;
  if (write(wake_.get(), &one, sizeof one) < 0) return;  // the counter is full, so it is readable already
}

void Agents::listen() {
  try {
    while (!ending_) {
      try {
        // The end of the run is this start's verdict too, unless another came first: then it is that of the next.
        const std::string end = listener_->compare_set(end_key(), "", "");
        if (!end.empty()) listener_->compare_set(key("verdict"), "", end);
        return deliver(parse_verdict(listener_->get(key("verdict"), 500ms)));
      } catch (const StoreTimeout&) {
      }
    }
  } catch (const BadMessage& e) {
    deliver({1, e.what()});
  } catch (const std::exception& e) {
    deliver(store_lost(e.what()));
  }
}

Verdict Agents::store_lost(const std::string& why) const {
  const std::lock_guard lock(mutex_);
  return {1, store_host_.empty()
                 ? "the store of the agents is gone: " + why
                 : "the mnrun of " + store_host_ + " is gone: lost the connection to it and to the store"};
}

// In a separate thread, because the connection may hang for tell_timeout.
void Agents::tell(std::function<void()> message, const Verdict& if_that_fails) {
  if (telling_.joinable()) telling_.join();
  telling_ = multinode::quiet_thread([this, message = std::move(message), if_that_fails] {
    try {
      message();
    } catch (const std::exception&) {  // listen() has a better message, but perhaps later
      deliver(if_that_fails);
    }
  });
}

void Agents::propose(const Verdict& verdict) {
  if (!teller_) return deliver(verdict);
  tell([this, verdict] { teller_->compare_set(key("verdict"), "", text_of(verdict)); }, verdict);
}

void Agents::end(const Verdict& verdict) {
  if (!teller_) return deliver(verdict);
  tell(
      [this, verdict] {
        for (const std::string& where : {end_key(), key("verdict")}) teller_->compare_set(where, "", text_of(verdict));
      },
      verdict);
}

void Agents::note_first(const Verdict& failure) {
  if (!first_) first_ = failure;
  if (teller_) tell([this, failure] { teller_->compare_set(key("first"), "", text_of(failure)); }, failure);
}

void Agents::done() {
  if (!teller_) return deliver(first_.value_or(Verdict{}));
  tell(
      [this] {
        if (teller_->add(key("done"), 1) < options_.nodes) return;
        const std::string result = teller_->compare_set(key("first"), "", text_of(Verdict{}));
        teller_->compare_set(key("verdict"), "", result);
      },
      {1, "the agents' store at " + to_string(endpoint_) + " is gone: lost the connection to it"});
}

void Agents::leave() {
  ending_ = true;
  join_threads();
  try {
    if (listener_) listener_->goodbye();
    if (teller_) teller_->goodbye();
  } catch (const std::exception&) {
    // the connection is closed already
  }
  // The other nodes must still read the verdict.
  if (server_ && options_.nodes > 1) server_->wait_for_disconnects(tell_timeout);
}

}  // namespace mnrun
