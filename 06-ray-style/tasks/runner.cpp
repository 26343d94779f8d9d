#include "runner.hpp"

#include "cluster/listener.hpp"
#include "cluster/token.hpp"
#include "limits.hpp"
#include "tasks/tasks.grpc.pb.h"

#include <grpcpp/resource_quota.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_posix.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <stdexcept>
#include <thread>

namespace tasks {

namespace {

using Clock = std::chrono::steady_clock;

// Outcomes on their way to the client: written by who runs the tasks when it has no more of them, which saves a change
// of threads; and by another thread while a long task runs.
class Answers {
 public:
  explicit Answers(std::function<bool(const Outcomes&)> write)
      : write_(std::move(write)), thread_([this] { write_late(); }) {}
  ~Answers() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    filled_.notify_one();
    thread_.join();
  }
  Answers(const Answers&) = delete;
  Answers& operator=(const Answers&) = delete;

  // `last`: no other follows soon.
  void put(Outcome outcome, double seconds, bool last) {
    const std::size_t bytes = outcome.ByteSizeLong();
    std::unique_lock lock(mutex_);
    if (bytes_ + bytes > batch_bytes) write(lock);
    if (outcomes_.outcomes().empty() && !last) filled_.notify_one();
    *outcomes_.add_outcomes() = std::move(outcome);
    outcomes_.set_seconds(outcomes_.seconds() + seconds);
    bytes_ += bytes;
    if (last) write(lock);
  }

 private:
  static constexpr std::chrono::milliseconds late{1};

  void write(std::unique_lock<std::mutex>& lock) {
    if (outcomes_.outcomes().empty()) return;
    Outcomes outcomes;
    outcomes.Swap(&outcomes_);
    bytes_ = 0;
    lock.unlock();
    {
      const std::lock_guard alone(writing_);
      write_(outcomes);  // false: the client is gone, and Read says so too
    }
    lock.lock();
  }

  void write_late() {
    std::unique_lock lock(mutex_);
    while (!ended_) {
      filled_.wait(lock, [this] { return ended_ || !outcomes_.outcomes().empty(); });
      filled_.wait_for(lock, late, [this] { return ended_; });
      write(lock);
    }
  }

  std::function<bool(const Outcomes&)> write_;
  std::mutex writing_;
  std::mutex mutex_;  // of all below
  std::condition_variable filled_;
  Outcomes outcomes_;
  std::size_t bytes_ = 0;
  bool ended_ = false;
  std::thread thread_;
};

Outcome run(const Functions& functions, const Task& task) {
  Outcome outcome;
  outcome.set_id(task.id());
  std::string error;
  try {
    const auto value = functions.call(task.function(), nlohmann::json::from_cbor(task.arguments()));
    nlohmann::json::to_cbor(value, *outcome.mutable_value());
    if (outcome.value().size() <= most_bytes) return outcome;
    error =
        "the result has " + std::to_string(outcome.value().size()) + " bytes, more than " + std::to_string(most_bytes);
  } catch (const std::exception& e) {
    error = e.what();
  } catch (...) {
    error = "it threw what is no std::exception";
  }
  // A protobuf string is UTF-8, and what was thrown need not be.
  error.resize(std::min(error.size(), most_error));
  const auto text = nlohmann::json(error).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  outcome.set_error(nlohmann::json::parse(text).get<std::string>());
  return outcome;
}

}  // namespace

class Runner::Implementation final : private tasks::RunnerService::Service {
 public:
  Implementation(const Functions& functions, const std::string& host, std::string secret,
                 std::function<void(const std::string&)> log)
      : functions_(functions), secret_(std::move(secret)), log_(std::move(log)), listener_(host, 0) {
    grpc::ServerBuilder builder;
    builder.RegisterService(this);
    builder.SetMaxReceiveMessageSize(message_bytes);
    builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 1);
    builder.SetResourceQuota(grpc::ResourceQuota().SetMaxThreads(most_threads));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 5000);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 500);
    server_ = builder.BuildAndStart();
    if (!server_) throw std::runtime_error("gRPC's server does not start");
    listener_.start([this](int fd) { grpc::AddInsecureChannelFromFd(server_.get(), fd); },
                    [this](const std::string& peer, const std::string& why) { refuse(peer, why); });
  }
  ~Implementation() override {
    listener_.stop();
    server_->Shutdown(std::chrono::system_clock::now());
  }

  std::uint16_t port() const { return listener_.port(); }
  bool wait() { return ended_.get_future().get(); }

 private:
  static constexpr int most_threads = 16;  // of calls: one lasts, the others are refused

  grpc::Status Run(grpc::ServerContext* call, grpc::ServerReaderWriter<Outcomes, Tasks>* stream) override {
    if (!cluster::has_token(*call, secret_)) {
      refuse(listener_.peer(call->peer()), "a call without the job's secret");
      return {grpc::StatusCode::UNAUTHENTICATED, "no or wrong secret"};
    }
    if (taken_.exchange(true)) {
      refuse(listener_.peer(call->peer()), "this runner has a client");
      return {grpc::StatusCode::ALREADY_EXISTS, "this runner has a client"};
    }
    Tasks message;
    {
      Answers answers([&](const Outcomes& outcomes) { return stream->Write(outcomes); });
      while (!message.end() && stream->Read(&message))
        for (int i = 0; i < message.tasks_size(); ++i) {
          const auto start = Clock::now();
          Outcome outcome = run(functions_, message.tasks(i));
          const std::chrono::duration<double> seconds = Clock::now() - start;
          answers.put(std::move(outcome), seconds.count(), i + 1 == message.tasks_size());
        }
    }
    ended_.set_value(message.end());
    return grpc::Status::OK;
  }

  void refuse(const std::string& peer, const std::string& why) {
    if (!refused_.exchange(true))
      log_("task_runner: refused " + peer + ": " + why + "; there will be no line about others");
  }

  const Functions& functions_;
  std::string secret_;
  std::function<void(const std::string&)> log_;
  std::atomic<bool> taken_{false}, refused_{false};
  std::promise<bool> ended_;
  cluster::Listener listener_;
  std::unique_ptr<grpc::Server> server_;  // has its connections from listener_
};

Runner::Runner(const Functions& functions, const std::string& host, std::string secret,
               std::function<void(const std::string&)> log)
    : implementation_(std::make_unique<Implementation>(functions, host, std::move(secret), std::move(log))) {}
Runner::~Runner() = default;
std::uint16_t Runner::port() const { return implementation_->port(); }
bool Runner::wait() { return implementation_->wait(); }

}  // namespace tasks
