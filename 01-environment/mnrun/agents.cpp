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

constexpr milliseconds send_timeout = 5s;

std::string random_id() { return multinode::random_token().substr(0, 16); }

// The address from which this node connects to `to`. The others can reach this node at it.
std::string address_for_others(const multinode::Endpoint& to) {
  const std::string address = multinode::address_towards(to);
  return address.empty() ? to.host : address;
}

}  // namespace

Agents::Agents(const Options& options, Agent this_agent, Print print)
    : options_(options),
      this_agent_(std::move(this_agent)),
      print_(std::move(print)),
      wake_(multinode::check_errno(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")) {
  this_agent_.node = options.node_rank.value_or(0);
  this_agent_.run_id = options.run_id;
  this_agent_.max_restarts = options.max_restarts;
  if (options.nodes > 1) {
    // The agents know only the user's secret and the command line.
    const auto secret = multinode::read_secret(options.secret);
    const std::string run = options.run_id.empty() ? "user " + std::to_string(geteuid()) : "run " + options.run_id;
    token_ = multinode::token_for(secret, "agents of " + run);
    connect();
    if (this_agent_.hosts_store && secret.bytes.empty()) print_(multinode::warning_without_secret(secret));
  } else {
    token_ = multinode::random_token();
    if (this_agent_.run_id.empty()) this_agent_.run_id = random_id();
    endpoint_ = options.endpoint.value_or(multinode::Endpoint{multinode::loopback_address(), 0});
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
  if (sending_.joinable()) sending_.join();
  if (receiving_.joinable()) receiving_.join();
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
  const std::string who = options_.host_is_node_0 ? "node 0, which hosts the store," : "the node that hosts the store";
  try {
    const auto notice = std::min<milliseconds>(timeout, 10s);
    const auto check_store = [&](milliseconds limit) {
      multinode::TcpStore(store_endpoint(), limit, {.token = token_}).goodbye();
    };
    try {
      check_store(notice);
    } catch (const StoreTimeout&) {
      if (notice == timeout) throw;
      print_("waiting for " + who + " at " + to_string(endpoint_));
      check_store(timeout - notice);
    }
  } catch (const StoreTimeout& e) {
    throw StoreTimeout(who + " did not come: " + e.what());
  } catch (const multinode::StoreRefused&) {
    throw UsageError("the agents at " + to_string(endpoint_) +
                     (options_.run_id.empty() ? " are another user's, have another secret, or have an --rdzv-id"
                                              : " do not run --rdzv-id '" + options_.run_id +
                                                    "' as this one does, or have another secret") +
                     ": give all nodes of a run the same --rdzv-id and the same secret (MULTINODE_SECRET, or a "
                     "--secret-file that all nodes see), and each run its own port");
  }
  const multinode::protocol::Hello hello{.token = token_};
  sender_ = std::make_unique<multinode::TcpStore>(store_endpoint(), send_timeout, hello);
  receiver_ = std::make_unique<multinode::TcpStore>(store_endpoint(), send_timeout, hello);
}

std::string Agents::key(const std::string& name) const {
  return "mnrun/" + options_.run_id + "/" + std::to_string(attempt_) + "/" + name;
}

std::string Agents::end_key() const { return "mnrun/" + options_.run_id + "/end"; }

// Numbers nodes by arrival. The host of the store is node 0, so that MASTER_ADDR is the host that the user named.
void Agents::claim_node() {
  std::vector<int> candidates;
  if (options_.node_rank || attempt_ > 0) {
    candidates = {this_agent_.node};
  } else {
    for (int i = 0; i < options_.nodes; ++i) candidates.push_back(i);
    if (!server_) std::rotate(candidates.begin(), candidates.begin() + 1, candidates.end());
  }
  const std::string me =
      options_.node_rank ? this_agent_.name() : fmt::format("host {} (pid {})", this_agent_.host, this_agent_.pid);
  const std::string nodes = std::to_string(options_.nodes);
  std::string other = sender_->compare_set(key("nodes"), "", nodes + " on " + me);
  if (other.substr(0, other.find(' ')) != nodes)
    throw UsageError("--nnodes is " + nodes + " here and " + multinode::one_line(other) +
                     ": give all nodes the same number");
  for (const int candidate : candidates) {
    this_agent_.node = candidate;
    if (candidate == 0) {
      if (this_agent_.run_id.empty()) this_agent_.run_id = random_id();
      this_agent_.master_address = server_ ? endpoint_.host : address_for_others(endpoint_);
      this_agent_.master_port = program_port_.emplace().number();
    }
    const std::string text = text_of(this_agent_);
    other = sender_->compare_set(key("agent/" + std::to_string(candidate)), "", text);
    if (other == text) return;
  }
  if (candidates.size() > 1)
    throw UsageError("--nnodes " + std::to_string(options_.nodes) + ": this many nodes have joined already");
  const Agent taken = parse_agent(other, this_agent_.node);
  throw UsageError(fmt::format("node rank {} is taken by host {}, pid {}; each node needs its own --node-rank",
                               this_agent_.node, taken.host, taken.pid));
}

// The value of `key`. While there is none, reports once which agents have not come; throws at the deadline.
std::string Agents::wait_for(const std::string& key, const std::function<std::string()>& missing) {
  for (;;) {
    try {
      return sender_->get(key, std::min<milliseconds>(options_.join_timeout, 500ms));
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
      print_("waiting for " + who + " at " + to_string(endpoint_));
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
          agents[i] = parse_agent(sender_->get(agent_key(i), 0ms), static_cast<int>(i));
          came[i] = true;
        } catch (const StoreTimeout&) {
          nodes.push_back(i);
        }
    }
    if (nodes.empty()) return std::string();
    std::string who = (nodes.size() > 1 ? "node ranks " : "node rank ") + multinode::join(nodes) + " of " +
                      std::to_string(options_.nodes);
    if (who != published) sender_->set(key("missing"), who);
    return published = std::move(who);
  };
  for (std::size_t i = 0; i < agents.size(); ++i)
    if (!came[i]) agents[i] = parse_agent(wait_for(agent_key(i), missing), static_cast<int>(i));
  return agents;
}

Attempt Agents::meet(int number) try {
  join_threads();  // of the attempt before: they use attempt_
  attempt_ = number;
  verdict_.reset();
  std::uint64_t woken = 0;
  while (read(wake_.get(), &woken, sizeof woken) > 0) continue;  // by the verdict of the attempt before
  meeting_.emplace(options_.join_timeout);
  meeting_since_ = Clock::now();
  meeting_reported_ = false;
  Attempt attempt;
  if (options_.nodes == 1) {
    this_agent_.master_address =
        options_.master_address.empty() ? multinode::loopback_address() : options_.master_address;
    this_agent_.master_port = options_.master_port ? options_.master_port : program_port_.emplace().number();
    attempt = attempt_of_each_node({&this_agent_, 1})[0];
  } else {
    claim_node();
    if (number == 0) {
      const Verdict gone{1, "the mnrun of " + this_agent_.name() + " is gone: lost the connection to it"};
      receiver_->set_on_disconnect(end_key(), text_of(gone));
    }
    receiving_ = multinode::quiet_thread([this] { receive_verdict(); });
    if (this_agent_.node == 0) {
      int node = 0;
      for (const Attempt& one : attempt_of_each_node(collect()))
        sender_->set(key("attempt/" + std::to_string(node++)), text_of(one));
    }
    const std::string text = wait_for(key("attempt/" + std::to_string(this_agent_.node)), [this] {
      const std::string who = multinode::one_line(sender_->compare_set(key("missing"), "", ""));
      return who.empty() ? "node rank 0 of " + std::to_string(options_.nodes) : who;
    });
    attempt = parse_attempt(text, this_agent_, options_.nodes);
  }
  attempt.number = number;
  attempt.store = multinode::with_token({store_endpoint(), token_});
  const std::lock_guard lock(mutex_);
  store_host_ = attempt.store_host;
  return attempt;
} catch (const multinode::StoreLost& e) {
  throw Ended{store_lost(e.what())};
}

std::optional<Verdict> Agents::verdict() const {
  const std::lock_guard lock(mutex_);
  return verdict_;
}

void Agents::set_verdict(const Verdict& verdict) {
  const std::lock_guard lock(mutex_);
  if (verdict_) return;
  verdict_ = verdict;
  const std::uint64_t one = 1;
  if (write(wake_.get(), &one, sizeof one) < 0) return;  // the counter is full, so it is readable already
}

void Agents::receive_verdict() {
  try {
    while (!ending_) {
      try {
        // The end of the run is this attempt's verdict too, unless another came first: then it is that of the next.
        const std::string end = receiver_->compare_set(end_key(), "", "");
        if (!end.empty()) receiver_->compare_set(key("verdict"), "", end);
        return set_verdict(parse_verdict(receiver_->get(key("verdict"), 500ms)));
      } catch (const StoreTimeout&) {
      }
    }
  } catch (const BadMessage& e) {
    set_verdict({1, e.what()});
  } catch (const std::exception& e) {
    set_verdict(store_lost(e.what()));
  }
}

Verdict Agents::store_lost(const std::string& why) const {
  const std::lock_guard lock(mutex_);
  return {1, store_host_.empty()
                 ? "the store of the agents is gone: " + why
                 : "the mnrun of " + store_host_ + " is gone: lost the connection to it and to the store"};
}

// In a separate thread, because the connection may hang for send_timeout.
void Agents::send(std::function<void()> message, const Verdict& if_that_fails) {
  if (sending_.joinable()) sending_.join();
  sending_ = multinode::quiet_thread([this, message = std::move(message), if_that_fails] {
    try {
      message();
    } catch (const std::exception&) {  // receive_verdict() has a better message, but perhaps later
      set_verdict(if_that_fails);
    }
  });
}

void Agents::propose(const Verdict& verdict) {
  if (!sender_) return set_verdict(verdict);
  send([this, verdict] { sender_->compare_set(key("verdict"), "", text_of(verdict)); }, verdict);
}

void Agents::end_run(const Verdict& verdict) {
  if (!sender_) return set_verdict(verdict);
  send(
      [this, verdict] {
        for (const std::string& where : {end_key(), key("verdict")}) sender_->compare_set(where, "", text_of(verdict));
      },
      verdict);
}

void Agents::report_done() {
  if (!sender_) return set_verdict({});
  send(
      [this] {
        if (sender_->add(key("done"), 1) == options_.nodes)
          sender_->compare_set(key("verdict"), "", text_of(Verdict{}));
      },
      {1, "the agents' store at " + to_string(endpoint_) + " is gone: lost the connection to it"});
}

void Agents::leave() {
  ending_ = true;
  join_threads();
  try {
    if (receiver_) receiver_->goodbye();
    if (sender_) sender_->goodbye();
  } catch (const std::exception&) {
    // the connection is closed already
  }
  // The other nodes must still read the verdict.
  if (server_ && options_.nodes > 1) server_->wait_for_disconnects(send_timeout);
}

}  // namespace mnrun
