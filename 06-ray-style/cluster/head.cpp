#include "cluster/head.hpp"

#include "cluster/cluster.grpc.pb.h"
#include "cluster/listener.hpp"
#include "cluster/outbox.hpp"
#include "cluster/scheduler.hpp"
#include "cluster/silence.hpp"
#include "cluster/token.hpp"

#include <multinode/check.hpp>
#include <multinode/tcp_store.hpp>

#include <grpcpp/resource_quota.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_posix.h>

#include <sys/resource.h>

#include <future>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

namespace cluster {

namespace {

using namespace std::chrono_literals;

constexpr int most_message_bytes = 4 << 20;
constexpr std::size_t most_buffer_bytes = 256 << 20;  // of all connections together
constexpr auto idle = 5s;                             // after which a connection without a call is closed
constexpr auto farewell = 2s;

// Logs the first refusal of an address, and in the end how many there were.
class Refusals {
 public:
  explicit Refusals(std::function<void(const std::string&)> log) : log_(std::move(log)) {}
  ~Refusals() {
    for (const auto& [peer, count] : counts_)
      if (count > 1) log_("refused " + peer + " " + std::to_string(count) + " times");
  }
  Refusals(const Refusals&) = delete;
  Refusals& operator=(const Refusals&) = delete;

  void add(const std::string& peer, const std::string& why) {
    const std::lock_guard lock(mutex_);
    const bool full = counts_.size() >= most_addresses;
    auto& count = counts_[full && !counts_.contains(peer) ? "other addresses" : peer];
    if (++count == 1) log_("refused " + peer + ": " + why + (full ? " (from now on not logged)" : ""));
  }

 private:
  static constexpr std::size_t most_addresses = 1000;
  std::function<void(const std::string&)> log_;
  std::mutex mutex_;
  std::map<std::string, std::uint64_t> counts_;
};

void raise_limit_of_files() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

}  // namespace

class Head::Implementation : public Cluster::Service {
 public:
  explicit Implementation(HeadOptions options)
      : options_(std::move(options)),
        refusals_(options_.log),
        scheduler_({[this] { return make_store(); }, options_.log}),
        listener_(options_.host, options_.port) {
    raise_limit_of_files();
    grpc::ServerBuilder builder;
    builder.RegisterService(this);
    builder.SetMaxReceiveMessageSize(most_message_bytes);
    builder.SetResourceQuota(grpc::ResourceQuota().Resize(most_buffer_bytes));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, static_cast<int>(idle / 1ms));
    server_ = builder.BuildAndStart();
    if (!server_) throw std::runtime_error("gRPC's server does not start");
    listener_.start([this](int fd) { grpc::AddInsecureChannelFromFd(server_.get(), fd); },
                    [this](const std::string& peer, const std::string& why) { refusals_.add(peer, why); });
    clock_ = std::jthread([this](const std::stop_token& stop) {
      for (; !stop.stop_requested(); std::this_thread::sleep_for(50ms)) {
        const std::lock_guard lock(mutex_);
        scheduler_.tick();
      }
    });
  }

  ~Implementation() override {
    leave("the head ends");
    listener_.stop();
    server_->Shutdown(std::chrono::system_clock::now() + farewell);
  }
  Implementation(const Implementation&) = delete;
  Implementation& operator=(const Implementation&) = delete;

  std::uint16_t port() const { return listener_.port(); }

  void leave(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    scheduler_.leave(reason);
  }

  grpc::Status Join(grpc::ServerContext* call, grpc::ServerReaderWriter<ToNode, FromNode>* stream) override {
    if (!admitted(*call)) return refused_;
    std::atomic<bool> silent = false;
    Silence silence([&] {
      silent = true;
      call->TryCancel();
    });
    FromNode message;
    if (!stream->Read(&message) || !message.has_hello()) return refuse(*call, "a node that said no hello");
    Outbox<ToNode> outbox([stream](const ToNode& to_node) { return stream->Write(to_node); });
    std::int64_t node = 0;
    try {
      const std::lock_guard lock(mutex_);
      node = scheduler_.join(message.hello(), {[&outbox](ToNode to_node) { outbox.put(std::move(to_node)); },
                                               [call] { call->TryCancel(); }});
    } catch (const std::runtime_error& e) {
      return refuse(*call, e.what());
    }
    while (stream->Read(&message)) {
      silence.heard();
      const std::lock_guard lock(mutex_);
      scheduler_.hear(node, message);
    }
    const std::lock_guard lock(mutex_);
    scheduler_.lose(node, silent                ? "no word from it for 3 s"
                          : call->IsCancelled() ? "its connection is closed"
                                                : "it left");
    return grpc::Status::OK;
  }

  grpc::Status Submit(grpc::ServerContext* call, grpc::ServerReaderWriter<ToClient, FromClient>* stream) override {
    if (!admitted(*call)) return refused_;
    Silence silence([call] { call->TryCancel(); });
    FromClient message;
    if (!stream->Read(&message) || !message.has_job())
      return refuse(*call, "a client that sent no job, or more than " + std::to_string(most_message_bytes) + " bytes");
    std::promise<void> ended;
    Outbox<ToClient> outbox([stream](const ToClient& to_client) { return stream->Write(to_client); });
    std::int64_t job = 0;
    try {
      const std::lock_guard lock(mutex_);
      job = scheduler_.submit(message.job(),
                              {[&outbox](ToClient to_client) { outbox.put(std::move(to_client)); },
                               [&outbox](ToClient to_client) { return outbox.put_output(std::move(to_client)); },
                               [&ended] { ended.set_value(); }});
    } catch (const multinode::UsageError& e) {
      return {grpc::StatusCode::INVALID_ARGUMENT, e.what()};
    } catch (const std::runtime_error& e) {
      return {grpc::StatusCode::RESOURCE_EXHAUSTED, e.what()};
    }
    while (stream->Read(&message)) {
      silence.heard();
      if (message.cancel()) cancel(job);
    }
    cancel(job);
    ended.get_future().wait();  // to_stop at most
    return grpc::Status::OK;
  }

  grpc::Status GetStatus(grpc::ServerContext* call, grpc::ServerReaderWriter<Status, StatusRequest>* stream) override {
    if (!admitted(*call)) return refused_;
    Silence silence([call] { call->TryCancel(); });
    StatusRequest request;
    if (!stream->Read(&request)) return refuse(*call, "a client that sent no request");
    Status status;
    {
      const std::lock_guard lock(mutex_);
      status = scheduler_.status();
    }
    stream->Write(status);
    return grpc::Status::OK;
  }

 private:
  bool admitted(const grpc::ServerContext& call) {
    if (has_token(call, options_.token)) return true;
    refusals_.add(listener_.peer(call.peer()), "a call without the token");
    return false;
  }

  grpc::Status refuse(const grpc::ServerContext& call, const std::string& why) {
    refusals_.add(listener_.peer(call.peer()), why);
    return {grpc::StatusCode::FAILED_PRECONDITION, why};
  }

  void cancel(std::int64_t job) {
    const std::lock_guard lock(mutex_);
    scheduler_.cancel(job);
  }

  Scheduler::Store make_store() const {
    auto server = std::make_shared<multinode::TcpStoreServer>(options_.host);
    const std::uint16_t port = server->port();
    return {port, std::move(server)};
  }

  const HeadOptions options_;
  const grpc::Status refused_{grpc::StatusCode::UNAUTHENTICATED, "the cluster's token is missing, or another one"};
  Refusals refusals_;
  std::mutex mutex_;  // of scheduler_
  Scheduler scheduler_;
  Listener listener_;
  std::unique_ptr<grpc::Server> server_;  // has its connections from listener_
  std::jthread clock_;
};

Head::Head(HeadOptions options) : implementation_(std::make_unique<Implementation>(std::move(options))) {}
Head::~Head() = default;
std::uint16_t Head::port() const { return implementation_->port(); }
void Head::leave(const std::string& reason) { implementation_->leave(reason); }

}  // namespace cluster
