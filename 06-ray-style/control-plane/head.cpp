#include "channel.hpp"
#include "engine.hpp"
#include "lease.hpp"
#include "scheduler.hpp"

#include <multinode/net/address.hpp>

#include <atomic>
#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>

namespace cluster {

using namespace std::chrono_literals;
using json = nlohmann::json;

// One thread per node and per job reads what that one sends; what they decide together is in the Scheduler.
class Head::Implementation {
 public:
  Implementation(const std::string& host, int port, Log log)
      : server_(std::in_place, host, static_cast<std::uint16_t>(port), multinode::TcpStoreServer::Entry{token_}),
        place_{{host, server_->port()}, token_},
        scheduler_({.make_store = [this] { return make_store(); },
                    .to_node = [this](auto node, const json& message) { send(name("node", node), message); },
                    .to_client = [this](auto job, const json& message) { send(name("job", job), message); },
                    .log = std::move(log)}),
        store_(connect()) {
    change([](Scheduler&) {});
    threads_.emplace_back([this] { accept("node", 0); });
    threads_.emplace_back([this] { accept("job", 1); });
    threads_.emplace_back([this] { tick(); });
  }
  ~Implementation() {
    ending_ = true;
    server_.reset();  // all that wait for the store see its end
  }
  const multinode::StorePlace& place() const { return place_; }
  void leave(const std::string& reason) {
    change([&](Scheduler& scheduler) { scheduler.leave(reason); });
  }
  void wait_until_left() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, Scheduler::to_stop, [this] { return scheduler_.left(); });
  }

 private:
  multinode::TcpStore connect() const { return {place_, 10s, {.token = token_}}; }
  static std::string name(const std::string& kind, std::int64_t number) { return kind + "/" + std::to_string(number); }

  // Changes the scheduler's state, and publishes it as the store's key "status".
  template <class Change>
  void change(const Change& change) {
    const std::lock_guard lock(mutex_);
    change(scheduler_);
    if (std::string status = scheduler_.status().dump(); status != published_)
      store_.set("status", published_ = std::move(status));
    changed_.notify_all();
  }
  void send(const std::string& name, const json& message) {
    senders_.try_emplace(name, store_, name + "/to").first->second.send(message.dump());
  }
  Scheduler::Store make_store() const {
    const std::string token = multinode::random_token();
    auto server = std::make_shared<multinode::TcpStoreServer>(
        place_.host, std::uint16_t{0}, multinode::TcpStoreServer::Entry{.token = token, .ranks_only = true});
    return {server->port(), token, server};
  }

  // The body of a thread. It runs until the head ends: then the store is lost.
  template <class Body>
  void guard(const Body& body) {
    try {
      body();
    } catch (const std::exception& e) {
      if (!ending_) leave(std::string("the head failed: ") + e.what());
    }
  }

  void tick() {
    guard([&] {
      for (multinode::TcpStore store = connect(); !ending_;) {
        try {
          leave(store.get("stop", 100ms));
        } catch (const multinode::StoreTimeout&) {
          change([](Scheduler& scheduler) { scheduler.tick(); });
        }
      }
    });
  }

  void accept(const std::string& kind, std::int64_t next) {
    struct Served {
      std::atomic<bool> over = false;
      std::jthread thread;
    };
    guard([&] {
      multinode::TcpStore store = connect();
      for (std::list<Served> all; !ending_; all.remove_if([](const Served& one) { return one.over.load(); })) {
        store.set(kind + "/next", std::to_string(next));
        try {
          store.get(name(kind, next), 1s);
        } catch (const multinode::StoreTimeout&) {
          continue;
        }
        Served& one = all.emplace_back();
        one.thread = std::jthread([&, number = next++] {
          guard([&] { serve(kind, number); });
          one.over = true;
        });
      }
    });
  }

  void serve(const std::string& kind, std::int64_t number) {
    multinode::TcpStore store = connect();
    const std::string name = Implementation::name(kind, number);
    Receiver in(store, name + "/from");
    if (const auto hello = in.receive(silence); hello && hello != gone) {
      if (kind == "node")
        serve_node(number, *hello, in);
      else
        serve_job(number, *hello, in, store);
    }
    drain(store, name + "/to");
    const std::lock_guard lock(mutex_);
    senders_.erase(name);
  }

  void serve_node(std::int64_t node, const std::string& hello, Receiver& in) {
    std::string why = "no word from it for " + multinode::to_text(silence);
    std::chrono::milliseconds may_run{0};
    try {
      change([&](Scheduler& scheduler) { scheduler.join(node, json::parse(hello)); });
      for (bool known = true; known;) {
        const auto text = in.receive(silence);
        if (!text) break;
        if (text == gone) {  // a broken link closes a connection, too, and leaves the processes running
          why = "its connection closed", may_run = lease;
          break;
        }
        const json message = json::parse(*text);
        if (message.contains("leave")) {
          why = message["leave"];
          break;
        }
        change([&](Scheduler& scheduler) {
          scheduler.hear(node, message);
          known = scheduler.has_node(node);
        });
      }
    } catch (const json::exception& e) {
      why = std::string("it sent a message of another form: ") + e.what(), may_run = lease;
    }
    change([&](Scheduler& scheduler) { scheduler.lose(node, why, may_run); });
  }

  void serve_job(std::int64_t number, const std::string& hello, Receiver& in, multinode::TcpStore& store) {
    try {
      const json text = json::parse(hello);
      const Job job{text.at("command"),      text.at("folder"),     text.at("workers"),
                    text.at("max_failures"), text.at("timeout_ms"), text.at("spread")};
      change([&](Scheduler& scheduler) { scheduler.submit(number, job); });
    } catch (const std::exception& e) {
      change([&](Scheduler&) {
        send(name("job", number), {{"end", 2}, {"say", std::string("cluster: the head refuses the job: ") + e.what()}});
      });
    }
    for (std::optional<std::string> text; text != gone; text = in.receive(1s))
      if (text == "stop") change([&](Scheduler& scheduler) { scheduler.stop(number); });
    change([&](Scheduler& scheduler) { scheduler.stop(number); });  // its client is gone
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ending_ || !scheduler_.has_job(number); });
    lock.unlock();
    const auto nodes = multinode::parse_decimal<int>(store.get("node/next", 1s)).value_or(0);
    for (int node = 0; node < nodes; ++node) drain(store, name(name("job", number), node));
  }

  const std::string token_ = multinode::random_token();
  std::optional<multinode::TcpStoreServer> server_;
  const multinode::StorePlace place_;
  std::mutex mutex_;  // of the following
  std::condition_variable changed_;
  Scheduler scheduler_;
  multinode::TcpStore store_;
  std::map<std::string, Sender> senders_;
  std::string published_;
  std::atomic<bool> ending_ = false;
  std::vector<std::jthread> threads_;
};

Head::Head(const std::string& host, int port, Log log)
    : implementation_(std::make_unique<Implementation>(host, port, std::move(log))) {}
Head::~Head() = default;
const multinode::StorePlace& Head::place() const { return implementation_->place(); }
void Head::leave(const std::string& reason) {
  implementation_->leave(reason);
  implementation_->wait_until_left();
}

}  // namespace cluster
