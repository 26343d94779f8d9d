#include "node.hpp"

#include "child.hpp"
#include "lease.hpp"
#include "outbox.hpp"
#include "tls.hpp"

#include "control-plane/cluster.grpc.pb.h"

#include <multinode/base/check.hpp>
#include <multinode/base/descriptor.hpp>
#include <multinode/launch.hpp>
#include <multinode/net/address.hpp>
#include <multinode/net/socket.hpp>

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

namespace cluster {

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kill_delay = 500ms;        // from SIGTERM to SIGKILL
constexpr std::size_t most_waiting = 64;  // messages, with up to 64 KiB of output each

std::string to_text(const Which& which) {
  return fmt::format("job {}, attempt {}, rank {}", which.job(), which.attempt(), which.rank());
}

// The environment of the process `local` of those that `start` names: this one's, less what would make the program
// believe another launcher.
std::vector<std::string> environment_of(const Start& start, int local, const std::string& head) {
  multinode::Environment variables = multinode::without_process_variables(multinode::current_environment());
  std::vector<std::string> own_gpus;  // CUDA's names of this node's GPUs, where it was given some of the host's
  std::istringstream names(variables["CUDA_VISIBLE_DEVICES"]);
  for (std::string name; std::getline(names, name, ',');) own_gpus.push_back(name);
  variables.emplace("OMP_NUM_THREADS", "1");  // unless set: a process is given one CPU
  const std::pair<const char*, std::int64_t> numbers[] = {
      {"RANK", start.first_rank() + local},       {"LOCAL_RANK", local},
      {"WORLD_SIZE", start.world_size()},         {"LOCAL_WORLD_SIZE", start.count()},
      {"GROUP_RANK", start.node_rank()},          {"GROUP_WORLD_SIZE", start.node_count()},
      {"CLUSTER_RESTART_COUNT", start.attempt()}, {"CLUSTER_JOB_ID", start.job()},
  };
  for (const auto& [name, value] : numbers) variables[name] = std::to_string(value);
  variables["CLUSTER_STORE"] =
      multinode::with_token({{head, static_cast<std::uint16_t>(start.store_port())}, start.store_token()});
  const int gpus = start.gpus_size() / start.count();
  std::string& devices = variables["CUDA_VISIBLE_DEVICES"];
  devices.clear();  // empty: none, although the node may have some
  for (int i = 0; i < gpus; ++i) {
    const auto gpu = static_cast<std::size_t>(start.gpus(local * gpus + i));
    devices += (i ? "," : "") + (gpu < own_gpus.size() ? own_gpus[gpu] : std::to_string(gpu));
  }

  std::vector<std::string> result;
  for (const auto& [name, value] : variables) result.push_back(name + "=" + value);
  return result;
}

class Node {
 public:
  Node(const NodeOptions& options, const multinode::Signals& signals)
      : options_(options),
        signals_(signals),
        name_("the head at " + to_string(options.head)),
        wake_(multinode::check_errno(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")),
        channel_(make_channel(options.head, options.key)),
        stub_(Cluster::NewStub(channel_)) {
    const auto deadline = Clock::now() + options.timeout;
    while (!channel_->WaitForConnected(std::chrono::system_clock::now() + 100ms)) {
      if (signals.next()) throw std::runtime_error("stopped");
      if (Clock::now() >= deadline) throw no_answer();
    }
    asked_ = Clock::now();
    stream_ = stub_->Join(&call_);
    leased_until_ = deadline;  // for the welcome
    outbox_.emplace(
        [this](const FromNode& message) { return stream_->Write(message); },
        [] {
          FromNode message;
          message.mutable_beat()->set_sent(std::chrono::nanoseconds(Clock::now().time_since_epoch()).count());
          return message;
        });
    FromNode message;
    Hello& hello = *message.mutable_hello();
    hello.set_version("3");
    hello.set_host(multinode::host_name());
    hello.set_pid(getpid());
    hello.set_cpus(options.cpus);
    hello.set_gpus(options.gpus);
    outbox_->put(std::move(message));
    reader_ = std::jthread([this] { read_all(); });
  }
  ~Node() {
    if (gone_) return;
    outbox_.reset();  // all messages are written, or the call is over
    stream_->WritesDone();
    for (const auto end = Clock::now() + 1s; !over_ && Clock::now() < end;) std::this_thread::sleep_for(1ms);
    call_.TryCancel();
  }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  std::string run() {
    for (;; wait()) {
      hear();
      if (gone_)
        kill_all();
      else if (!reason_.empty())
        for (Member& member : members_) stop(member);
      look_after_members();
      if (reason_.empty() || !members_.empty()) continue;
      if (gone_) throw std::runtime_error(reason_);
      return reason_;
    }
  }

 private:
  // A process of a job.
  struct Member {
    Which which;
    std::unique_ptr<Child> process;
    bool stopped = false;
    std::optional<Clock::time_point> kill_at;
  };

  std::runtime_error no_answer() const {
    return std::runtime_error(name_ + " did not answer within " + multinode::to_text(options_.timeout) +
                              ", or has another key; 'cluster start --head' starts one");
  }

  // The reader's thread. It renews the lease, whatever the node is doing.
  void read_all() {
    for (ToNode message; stream_->Read(&message); wake()) {
      if (message.has_welcome()) leased_until_ = asked_ + lease;
      if (message.has_beat())
        leased_until_ = Clock::time_point(std::chrono::nanoseconds(message.beat().sent())) + lease;
      const std::lock_guard lock(mutex_);
      inbox_.push_back(std::move(message));
    }
    over_ = true;
    wake();
  }
  void wake() const { eventfd_write(wake_.get(), 1); }

  // Takes what the head and the signals want.
  void hear() {
    eventfd_t count = 0;
    eventfd_read(wake_.get(), &count);
    while (const auto signal = signals_.next()) {
      const std::string name = strsignal(static_cast<int>(signal->ssi_signo));
      if (options_.on_signal) options_.on_signal(name);
      leave("stopped (" + name + ")");
    }
    if (gone_) return;
    const bool over = over_;  // before the inbox is taken
    std::deque<ToNode> inbox;
    {
      const std::lock_guard lock(mutex_);
      inbox.swap(inbox_);
    }
    for (const ToNode& message : inbox) {
      if (message.has_welcome()) {
        joined_ = true;
        options_.log(fmt::format("joined {} as node {}: {} CPUs, {} GPUs; jobs are in {}", name_,
                                 message.welcome().node(), options_.cpus, options_.gpus, options_.jobs.string()));
      }
      if (message.has_beat()) renew_leases();
      if (message.has_start() && reason_.empty()) start(message.start());
      if (message.has_stop())
        for (Member& member : members_)
          if (member.which.job() == message.stop().job() && member.which.attempt() == message.stop().attempt())
            stop(member);
      if (message.has_leave()) leave(message.leave().reason());
    }
    const bool expired = Clock::now() >= leased_until_.load();
    if (!over && !expired) return;
    gone_ = true;
    if (!over) call_.TryCancel();
    reader_.join();
    outbox_.reset();
    const grpc::Status status = stream_->Finish();
    if (!joined_ && status.error_code() == grpc::StatusCode::FAILED_PRECONDITION)
      throw multinode::UsageError(name_ + " refuses this node: " + status.error_message());
    if (!joined_ && expired) throw no_answer();
    leave(name_ +
          " is gone: " + (over ? status.error_message() : "no beat has come back for " + multinode::to_text(lease)));
  }

  void renew_leases() {
    for (const Member& member : members_) member.process->allow_until(leased_until_);
  }

  void leave(const std::string& reason) {
    if (!reason_.empty()) return;
    reason_ = reason;
    if (!members_.empty()) options_.log(fmt::format("stops {} processes: {}", members_.size(), reason));
  }

  void start(const Start& start) {
    options_.log(fmt::format("job {}, attempt {}: starts {}, ranks {} to {} of {}", start.job(), start.attempt(),
                             start.program(), start.first_rank(), start.first_rank() + start.count() - 1,
                             start.world_size()));
    for (int local = 0; local < start.count(); ++local) {
      Member member;
      member.which.set_job(start.job());
      member.which.set_attempt(start.attempt());
      member.which.set_rank(start.first_rank() + local);
      FromNode message;
      try {
        std::vector<std::string> command = {job_program(options_.jobs, start.program())};
        command.insert(command.end(), start.arguments().begin(), start.arguments().end());
        member.process = std::make_unique<Child>(command, environment_of(start, local, options_.head.host),
                                                 options_.keeper, leased_until_);
        *message.mutable_started()->mutable_which() = member.which;
        message.mutable_started()->set_pid(member.process->pid());
        members_.push_back(std::move(member));
      } catch (const StartError& e) {
        options_.log(to_text(member.which) + ": " + e.what());
        message = ended(member.which, e.status);
        message.mutable_ended()->set_error(e.what());
      }
      send(std::move(message));
      renew_leases();  // to start many processes can take longer than a lease
    }
  }

  static FromNode ended(const Which& which, int status) {
    FromNode message;
    *message.mutable_ended()->mutable_which() = which;
    message.mutable_ended()->set_status(status);
    return message;
  }

  static void stop(Member& member) {
    if (std::exchange(member.stopped, true)) return;
    member.process->terminate();
    member.kill_at = Clock::now() + kill_delay;
  }
  // At once: the head may have started their successors.
  void kill_all() {
    for (Member& member : members_) {
      member.stopped = true;
      member.process->kill();
    }
  }

  void send(FromNode message) {
    if (outbox_) outbox_->put(std::move(message));
  }
  // The head does not keep up: the processes' output stays in their pipes.
  bool full() const { return outbox_ && outbox_->waiting() >= most_waiting; }

  void look_after_members() {
    std::erase_if(members_, [this](Member& member) {
      Child& process = *member.process;
      const std::optional<int> status = process.status();
      if (!status && member.kill_at && Clock::now() >= *member.kill_at) {
        process.kill();
        member.kill_at.reset();
      }
      if (full()) return false;
      if (process.output() >= 0) {
        FromNode message;
        *message.mutable_output()->mutable_which() = member.which;
        message.mutable_output()->set_text(process.read());
        if (!message.output().text().empty()) send(std::move(message));
      }
      if (!status || process.output() >= 0) return false;
      if (*status != 0 && !member.stopped)
        options_.log(fmt::format("{}: ended with status {}", to_text(member.which), *status));
      send(ended(member.which, *status));
      return true;
    });
  }

  void wait() {
    std::vector<pollfd> entries = {{wake_.get(), POLLIN, 0}, {signals_.descriptor(), POLLIN, 0}};
    Clock::time_point until = gone_ ? Clock::time_point::max() : leased_until_.load();
    const bool full = this->full();
    if (full) until = Clock::now() + 5ms;
    for (const Member& member : members_) {
      if (member.kill_at) until = std::min(until, *member.kill_at);
      if (member.process->status()) {
        if (!full) return;  // to read what it left
        continue;
      }
      entries.push_back({member.process->end(), POLLIN, 0});
      if (!full && member.process->output() >= 0) entries.push_back({member.process->output(), POLLIN, 0});
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    poll(entries.data(), entries.size(),
         until == Clock::time_point::max() ? -1 : static_cast<int>(std::max(left, 0ms).count()));
  }

  const NodeOptions& options_;
  const multinode::Signals& signals_;
  const std::string name_;  // of the head
  const multinode::Descriptor wake_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<Cluster::Stub> stub_;
  grpc::ClientContext call_;
  std::unique_ptr<grpc::ClientReaderWriter<FromNode, ToNode>> stream_;
  std::optional<Outbox<FromNode>> outbox_;
  Clock::time_point asked_;  // to join
  std::atomic<Clock::time_point> leased_until_;
  std::vector<Member> members_;  // until Ended is sent
  std::string reason_;           // why the node leaves
  bool joined_ = false;
  bool gone_ = false;               // the head
  std::atomic<bool> over_ = false;  // the call
  std::mutex mutex_;                // of inbox_
  std::deque<ToNode> inbox_;
  std::jthread reader_;
};

}  // namespace

std::string run_node(const NodeOptions& options, const multinode::Signals& signals) {
  return Node(options, signals).run();
}

}  // namespace cluster
