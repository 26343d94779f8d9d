#include "channel.hpp"
#include "head_node_keeper.hpp"
#include "lease.hpp"
#include "scheduler.hpp"

#include <multinode/base/json.hpp>
#include <multinode/net/socket.hpp>

namespace cluster {

using namespace std::chrono_literals;
using json = nlohmann::json;
using Clock = std::chrono::steady_clock;

namespace {

// Reads in turn what the nodes and the clients send. What follows from it is in the Scheduler.
class Head {
 public:
  explicit Head(const multinode::StorePlace& place)
      : store_(place, 10s, {.token = place.token}),
        scheduler_({.to_node = [this](auto node, const json& message) { send(nodes_, node, message); },
                    .to_client = [this](auto job, const json& message) { send(clients_, job, message); },
                    .log = log}) {}

  void serve(const multinode::Signals& signals) {
    std::optional<Clock::time_point> end;
    while (!end || (!scheduler_.left() && Clock::now() < *end)) {
      read(nodes_, [&](auto node, const std::string& text) { return on_node_message(node, text); });
      read(clients_, [&](auto job, const std::string& text) { return on_client_message(job, text); });
      scheduler_.tick();
      store_.set("status", multinode::to_msgpack({{"nodes", scheduler_.node_count()}, {"text", scheduler_.status()}}));
      std::string reason;
      if (signals.next()) reason = "a signal came";
      try {
        reason = store_.get("stop", turn);
      } catch (const multinode::StoreTimeout&) {
      }
      if (reason.empty() || end) continue;
      scheduler_.leave(reason);
      end = Clock::now() + 10s;
    }
  }

 private:
  struct Peer {
    std::string name;
    Receiver in;
    Sender out;
    Clock::time_point heard = Clock::now();
  };
  struct Peers {
    std::string kind;
    std::int64_t count = 0;
    std::map<std::int64_t, Peer> all{};
  };

  static void send(Peers& peers, std::int64_t number, const json& message) {
    if (const auto found = peers.all.find(number); found != peers.all.end())
      found->second.out.send(multinode::to_msgpack(message));
  }

  // `on_message` takes a message, or "" if there is none, and returns whether the sender stays.
  template <class OnMessage>
  void read(Peers& peers, const OnMessage& on_message) {
    for (const auto count = store_.add(peers.kind, 0); peers.count < count;) {
      const std::string name = peers.kind + "/" + std::to_string(++peers.count);
      peers.all.emplace(peers.count, Peer{name, {store_, name + "/from"}, {store_, name + "/to"}});
    }
    for (auto next = peers.all.begin(); next != peers.all.end();) {
      const auto at = next++;
      bool stays = true;
      while (const auto text = stays ? at->second.in.receive() : std::nullopt) {
        at->second.heard = Clock::now();
        try {
          stays = on_message(at->first, *text);
        } catch (const json::exception& e) {
          log(at->second.name + " sent a message of another form: " + e.what());
          stays = on_message(at->first, std::string(gone));
        }
      }
      if (!stays || !on_message(at->first, "")) peers.all.erase(at);
    }
  }

  bool on_node_message(std::int64_t node, const std::string& text) {
    if (text.empty() && Clock::now() - nodes_.all.at(node).heard > silence)
      return scheduler_.lose(node, "no word from it for " + multinode::to_text(silence), 0ms), false;
    if (text == gone)  // a broken link closes a connection, too, and leaves the processes running
      return scheduler_.lose(node, "its connection closed", lease), false;
    const json message = text.empty() ? json::object() : multinode::from_msgpack(text);
    if (message.contains("cpus")) scheduler_.join(node, message);
    if (message.contains("status")) scheduler_.on_process_end(node, message);
    return true;
  }

  bool on_client_message(std::int64_t job, const std::string& text) {
    if (text == gone) return scheduler_.stop(job), false;
    if (text.empty()) return scheduler_.has_job(job) || Clock::now() - clients_.all.at(job).heard < silence;
    const json message = multinode::from_msgpack(text);
    scheduler_.submit(
        job, {message.at("command"), message.at("environment"), message.at("workers"), message.at("max_failures")});
    return true;
  }

  multinode::TcpStore store_;
  Peers nodes_{"node"}, clients_{"job"};
  Scheduler scheduler_;
};

}  // namespace

void run_head(multinode::StorePlace place, const multinode::Signals& signals,
              const std::function<void(const multinode::StorePlace&)>& ready) {
  const auto server = multinode::serve_at(place, false);
  place.port = server->port();
  Head head({server->endpoint(), place.token});
  ready(place);
  head.serve(signals);
}

}  // namespace cluster
