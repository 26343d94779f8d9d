#include "head.hpp"

#include "lease.hpp"
#include "outbox.hpp"
#include "tls.hpp"

#include <multinode/base/check.hpp>
#include <multinode/net/address.hpp>
#include <multinode/net/socket.hpp>
#include <multinode/store/tcp_store.hpp>

#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>

#include <netdb.h>
#include <sys/resource.h>

#include <stdexcept>
#include <utility>

namespace cluster {

namespace {

using namespace std::chrono_literals;

constexpr std::size_t most_buffer_bytes = 256 << 20;  // of all connections together
constexpr auto farewell = 2s;

// Names are looked up once, here: later a name server that stalls would block the scheduler.
std::string address_of(const std::string& host) {
  std::string error;
  const auto found = multinode::resolve({multinode::listening_address(host), 0}, AI_PASSIVE, error);
  if (!found) throw multinode::UsageError("--host: " + error);
  return multinode::number_text(found->ai_addr, found->ai_addrlen);
}

}  // namespace

Head::Head(HeadOptions options)
    : options_(std::move(options)),
      address_(address_of(options_.host)),
      records_(options_.records, options_.log),
      scheduler_({[this] { return make_store(); }, options_.log,
                  [this](std::int64_t job, const std::string& lines) { records_.write(job, lines); },
                  [this](std::int64_t job, int status) { records_.end(job, status); }},
                 records_.newest() + 1) {
  rlimit limit{};  // of open files: each node is one
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  grpc::ServerBuilder builder;
  builder.RegisterService(this);
  builder.SetMaxReceiveMessageSize(most_message_bytes);
  builder.SetResourceQuota(grpc::ResourceQuota().Resize(most_buffer_bytes));
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);  // see make_channel()
  builder.AddListeningPort(to_string(multinode::Endpoint{address_, options_.port}), server_credentials(options_.key),
                           &port_);
  server_ = builder.BuildAndStart();
  if (!server_ || port_ == 0)
    throw std::runtime_error("cannot listen on " + to_string(multinode::Endpoint{options_.host, options_.port}) +
                             ": the port is in use, or not allowed; --port 0 takes a free one");
  watch_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
}

Head::~Head() {
  leave("the head ends");
  server_->Shutdown(std::chrono::system_clock::now() + farewell);
}

void Head::leave(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  scheduler_.leave(reason);
}

// The head's clock.
void Head::watch(const std::stop_token& stop) {
  for (; !stop.stop_requested(); std::this_thread::sleep_for(50ms)) {
    {
      const std::lock_guard lock(heard_mutex_);
      for (const auto& [call, heard] : heard_)
        if (Clock::now() - heard >= silence) call->TryCancel();
    }
    const std::lock_guard lock(mutex_);
    scheduler_.tick();
  }
}

grpc::Status Head::Join(grpc::ServerContext* call, grpc::ServerReaderWriter<ToNode, FromNode>* stream) {
  const auto hear = [&] {
    const std::lock_guard lock(heard_mutex_);
    heard_[call] = Clock::now();
  };
  const std::shared_ptr<void> forget(nullptr, [&](void*) {
    const std::lock_guard lock(heard_mutex_);
    heard_.erase(call);
  });
  hear();
  FromNode message;
  if (!stream->Read(&message) || !message.has_hello()) return refuse(*call, "it said no hello");
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
    if (message.has_beat()) {  // without the scheduler's mutex: its lease does not wait for others
      hear();
      ToNode answer;
      *answer.mutable_beat() = message.beat();
      outbox.put(std::move(answer));
      continue;
    }
    const std::lock_guard lock(mutex_);
    scheduler_.hear(node, message);
  }
  const auto silent = [&] {
    const std::lock_guard lock(heard_mutex_);
    return Clock::now() - heard_[call] >= silence;
  }();
  const std::lock_guard lock(mutex_);
  if (silent)  // longer than its lease
    scheduler_.lose(node, "no word from it for 3 s");
  else if (call->IsCancelled())
    scheduler_.lose(node, "its connection is closed", lease);
  else
    scheduler_.lose(node, "it left");
  return grpc::Status::OK;
}

grpc::Status Head::Submit(grpc::ServerContext*, const Job* job, JobNumber* number) {
  try {
    const std::lock_guard lock(mutex_);
    number->set_job(scheduler_.submit(*job));
  } catch (const multinode::UsageError& e) {
    return {grpc::StatusCode::INVALID_ARGUMENT, e.what()};
  } catch (const std::runtime_error& e) {
    return {grpc::StatusCode::RESOURCE_EXHAUSTED, e.what()};
  }
  return grpc::Status::OK;
}

grpc::Status Head::Follow(grpc::ServerContext* call, const JobNumber* number, grpc::ServerWriter<Record>* stream) {
  for (std::size_t from = 0; !call->IsCancelled();) {
    const auto part = records_.read(number->job(), from, heartbeat);
    if (!part) return {grpc::StatusCode::NOT_FOUND, "there is no job " + std::to_string(number->job())};
    from += part->text.size();
    Record record;
    record.set_text(part->text);
    record.set_ended(part->status.has_value());
    record.set_status(part->status.value_or(0));
    if ((!part->text.empty() || part->status) && !stream->Write(record)) break;
    if (part->status) break;
  }
  return grpc::Status::OK;
}

grpc::Status Head::StopJob(grpc::ServerContext*, const JobNumber* number, Nothing*) {
  if (!records_.read(number->job(), 0, 0ms))
    return {grpc::StatusCode::NOT_FOUND, "there is no job " + std::to_string(number->job())};
  const std::lock_guard lock(mutex_);
  scheduler_.stop(number->job());
  return grpc::Status::OK;
}

grpc::Status Head::StopCluster(grpc::ServerContext*, const Nothing*, Nothing*) {
  leave("'cluster stop' was called");
  for (const auto end = Scheduler::Clock::now() + Scheduler::to_stop; Scheduler::Clock::now() < end;
       std::this_thread::sleep_for(10ms)) {
    const std::lock_guard lock(mutex_);
    if (scheduler_.nodes() == 0) break;
  }
  return grpc::Status::OK;
}

grpc::Status Head::GetStatus(grpc::ServerContext*, const Nothing*, Status* status) {
  const std::lock_guard lock(mutex_);
  *status = scheduler_.status();
  return grpc::Status::OK;
}

grpc::Status Head::refuse(const grpc::ServerContext& call, const std::string& why) {
  options_.log("refused a node at " + call.peer() + ": " + why);
  return {grpc::StatusCode::FAILED_PRECONDITION, why};
}

Scheduler::Store Head::make_store() const {
  const std::string token = multinode::random_token();
  auto server = std::make_shared<multinode::TcpStoreServer>(address_, 0, multinode::TcpStoreServer::Entry{token});
  const std::uint16_t port = server->port();
  return {port, token, std::move(server)};
}

}  // namespace cluster
