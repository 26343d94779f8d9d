#include "cluster/client.hpp"

#include "cluster/channel.hpp"
#include "cluster/cluster.grpc.pb.h"
#include "cluster/outbox.hpp"
#include "cluster/scheduler.hpp"
#include "cluster/silence.hpp"
#include "cluster/token.hpp"

#include <multinode/check.hpp>

#include <mutex>
#include <optional>
#include <utility>

namespace cluster {

namespace {

using WallClock = std::chrono::system_clock;  // gRPC counts deadlines in it

}  // namespace

class Client::Implementation {
 public:
  Implementation(multinode::Endpoint head, std::string token, std::chrono::milliseconds timeout)
      : name_("the head at " + multinode::to_string(head)),
        token_(std::move(token)),
        timeout_(timeout),
        channel_(make_channel(head)),
        stub_(Cluster::NewStub(channel_)) {}

  Status status() {
    connect();
    grpc::ClientContext call;
    add_token(call, token_);
    call.set_deadline(WallClock::now() + timeout_);
    const auto stream = stub_->GetStatus(&call);
    Status status;
    stream->Write({});
    stream->WritesDone();
    const bool answered = stream->Read(&status);
    check(stream->Finish(), answered);
    return status;
  }

  Result submit(const Job& job, const std::function<void(const ToClient&)>& on_message) {
    check_job(job);
    connect();
    grpc::ClientContext call;
    add_token(call, token_);
    const auto stream = stub_->Submit(&call);
    FromClient first;
    *first.mutable_job() = job;
    stream->Write(first);
    Silence silence([&call] { call.TryCancel(); });
    std::optional<Result> result;
    std::exception_ptr thrown;
    {
      Outbox<FromClient> outbox([&](const FromClient& message) { return stream->Write(message); });
      set_outbox(&outbox);
      ToClient message;
      while (!result && !thrown && stream->Read(&message)) {
        silence.pause();
        try {
          on_message(message);
        } catch (...) {
          thrown = std::current_exception();
          call.TryCancel();
        }
        if (message.has_result()) result = message.result();
        silence.heard();
      }
      set_outbox(nullptr);
    }
    stream->WritesDone();
    for (ToClient message; stream->Read(&message);) {
    }
    const grpc::Status status = stream->Finish();
    if (thrown) std::rethrow_exception(thrown);
    if (!result) check(status, false);
    return *result;
  }

  void cancel() {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    send_cancel();
  }

 private:
  void connect() {
    for (const auto end = WallClock::now() + timeout_;;) {
      const auto state = channel_->GetState(true);
      if (state == GRPC_CHANNEL_READY) return;
      if (state == GRPC_CHANNEL_TRANSIENT_FAILURE || !channel_->WaitForStateChange(state, end))
        throw NoHead(name_ + " does not answer; is it 'cluster start --head' that runs there?");
    }
  }

  void check(const grpc::Status& status, bool answered) const {
    if (status.ok() && answered) return;
    switch (status.error_code()) {
      case grpc::StatusCode::UNAUTHENTICATED:
        throw multinode::UsageError(name_ + " refuses the token: it is not this cluster's");
      case grpc::StatusCode::INVALID_ARGUMENT:
        throw multinode::UsageError(status.error_message());
      case grpc::StatusCode::FAILED_PRECONDITION:
      case grpc::StatusCode::RESOURCE_EXHAUSTED:
        throw std::runtime_error(name_ + " refuses: " + status.error_message());
      case grpc::StatusCode::DEADLINE_EXCEEDED:
        throw NoHead(name_ + " does not answer in time");
      default:
        throw NoHead(name_ + " is gone");
    }
  }

  void set_outbox(Outbox<FromClient>* outbox) {
    const std::lock_guard lock(mutex_);
    outbox_ = outbox;
    if (cancelled_) send_cancel();
  }

  void send_cancel() {
    if (!outbox_) return;
    FromClient message;
    message.set_cancel(true);
    outbox_->put(message);
  }

  const std::string name_, token_;
  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<Cluster::Stub> stub_;
  std::mutex mutex_;  // of the two below
  bool cancelled_ = false;
  Outbox<FromClient>* outbox_ = nullptr;
};

Client::Client(multinode::Endpoint head, std::string token, std::chrono::milliseconds timeout)
    : implementation_(std::make_unique<Implementation>(std::move(head), std::move(token), timeout)) {}
Client::~Client() = default;
Status Client::status() { return implementation_->status(); }
Result Client::submit(const Job& job, const std::function<void(const ToClient&)>& on_message) {
  return implementation_->submit(job, on_message);
}
void Client::cancel() { implementation_->cancel(); }

}  // namespace cluster
