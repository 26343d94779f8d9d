#include "node.hpp"

#include "lease.hpp"
#include "outbox.hpp"
#include "process.hpp"
#include "security.hpp"

#include "control-plane/cluster.grpc.pb.h"

#include <multinode/address.hpp>
#include <multinode/check.hpp>
#include <multinode/descriptor.hpp>
#include <multinode/launch.hpp>
#include <multinode/socket.hpp>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
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

constexpr char protocol_version[] = "2";
constexpr auto patience = 500ms;  // from SIGTERM to SIGKILL

std::int64_t nanoseconds(Clock::time_point time) { return std::chrono::nanoseconds(time.time_since_epoch()).count(); }

// The call to the head, and the thread that reads from it.
class Call {
 public:
  // `wake` is called from that thread when there is something to take, and at the end.
  Call(Cluster::Stub& stub, std::function<void()> wake)
      : wake_(std::move(wake)), stream_(stub.Join(&context_)), lease_(lease, [this] {
          expired_ = true;
          context_.TryCancel();
        }) {
    outbox_.emplace([this](const FromNode& message) { return stream_->Write(message); },
                    [] {
                      FromNode message;
                      message.mutable_beat()->set_sent(nanoseconds(Clock::now()));
                      return message;
                    });
    reader_ = std::thread([this] { read_all(); });
  }
  ~Call() {
    if (!reader_.joinable()) return;
    outbox_.reset();  // all messages are written, or the head is dead
    stream_->WritesDone();
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, 1s, [this] { return over_; });
    }
    context_.TryCancel();
    reader_.join();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  Outbox<FromNode>& outbox() { return *outbox_; }

  std::deque<ToNode> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(inbox_, {});
  }
  // False at the deadline: the head has neither sent anything nor ended the call.
  bool wait_until(Clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, deadline, [this] { return over_ || !inbox_.empty(); });
  }
  bool over() {
    const std::lock_guard lock(mutex_);
    return over_;
  }
  Clock::time_point leased_until() const { return leased_until_; }

  // How the call ended.
  grpc::Status finish() {
    reader_.join();
    outbox_.reset();
    grpc::Status status = stream_->Finish();
    if (expired_)
      status = {grpc::StatusCode::UNAVAILABLE, "no beat has come back for " + multinode::detail::to_text(lease)};
    return status;
  }

 private:
  void read_all() {
    for (ToNode message; stream_->Read(&message);) {
      if (message.has_beat()) {
        const Clock::time_point sent{std::chrono::nanoseconds(message.beat().sent())};
        lease_.renew(sent);
        leased_until_ = sent + lease;
      }
      const std::lock_guard lock(mutex_);
      inbox_.push_back(std::move(message));
      changed_.notify_one();
      wake_();
    }
    const std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_one();
    wake_();
  }

  std::function<void()> wake_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<FromNode, ToNode>> stream_;
  std::optional<Outbox<FromNode>> outbox_;
  std::atomic<bool> expired_ = false;
  std::atomic<Clock::time_point> leased_until_{Clock::now() + lease};
  Timeout lease_;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<ToNode> inbox_;
  bool over_ = false;
  std::thread reader_;
};

std::string to_text(const Which& which) {
  return "job " + std::to_string(which.job()) + ", attempt " + std::to_string(which.attempt()) + ", rank " +
         std::to_string(which.rank());
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

// The environment of the process `local` of those that `start` names: this one's, less what would make the program
// believe another launcher.
std::vector<std::string> environment_of(const Start& start, int local, const std::string& head) {
  multinode::Environment variables = multinode::current_environment();
  std::vector<std::string> own_gpus;  // CUDA's names of this node's GPUs, where it was given some of the host's
  if (const auto found = variables.find("CUDA_VISIBLE_DEVICES"); found != variables.end())
    own_gpus = split(found->second, ',');
  for (const std::string_view name : multinode::process_variables())
    std::erase_if(variables, [&](const auto& variable) {
      return name.ends_with('*') ? variable.first.starts_with(name.substr(0, name.size() - 1)) : variable.first == name;
    });
  variables.emplace("OMP_NUM_THREADS", "1");  // unless set: a process is given one CPU
  const std::pair<const char*, int> numbers[] = {
      {"RANK", start.first_rank() + local},       {"LOCAL_RANK", local},
      {"WORLD_SIZE", start.world_size()},         {"LOCAL_WORLD_SIZE", start.count()},
      {"GROUP_RANK", start.node_rank()},          {"GROUP_WORLD_SIZE", start.node_count()},
      {"CLUSTER_RESTART_COUNT", start.attempt()},
  };
  for (const auto& [name, value] : numbers) variables[name] = std::to_string(value);
  variables["CLUSTER_JOB_ID"] = std::to_string(start.job());
  variables["CLUSTER_STORE"] =
      multinode::with_token({{head, static_cast<std::uint16_t>(start.store_port())}, start.store_token()});
  const int gpus = start.count() > 0 ? start.gpus_size() / start.count() : 0;
  std::string devices;
  for (int i = 0; i < gpus; ++i) {
    const auto gpu = static_cast<std::size_t>(start.gpus(local * gpus + i));
    devices += (i ? "," : "") + (gpu < own_gpus.size() ? own_gpus[gpu] : std::to_string(gpu));
  }
  variables["CUDA_VISIBLE_DEVICES"] = devices;  // empty: none, although the node may have some

  std::vector<std::string> result;
  for (const auto& [name, value] : variables) result.push_back(name + "=" + value);
  return result;
}

}  // namespace

class Node::Implementation {
 public:
  explicit Implementation(NodeOptions options)
      : options_(std::move(options)),
        name_("the head at " + to_string(options_.head)),
        wake_(multinode::check_errno(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")),
        channel_(make_channel(options_.head, options_.key)),
        stub_(Cluster::NewStub(channel_)) {
    join(Clock::now() + options_.timeout);
  }

  std::string run() {
    for (;;) {
      hear();
      if (gone_) kill_all();
      if (!reason_.empty()) stop_all();
      look_after_members();
      if (!reason_.empty() && members_.empty() && unsent_.empty()) {
        if (gone_) throw std::runtime_error(reason_);
        return reason_;
      }
      wait();
    }
  }

  void stop() {
    stopped_ = true;
    wake();
  }

 private:
  // A process of a job.
  struct Member {
    Which which;
    std::unique_ptr<Child> process;
    bool stopped = false;
    std::optional<Clock::time_point> kill_at;
  };

  void wake() {
    const std::uint64_t one = 1;
    (void)!write(wake_.get(), &one, sizeof one);  // full: it is readable already
  }

  void join(Clock::time_point deadline) {
    const auto missing = [&](const std::string& why) {
      return std::runtime_error(name_ + " did not answer within " + multinode::detail::to_text(options_.timeout) + why +
                                "; 'cluster start --head' starts one");
    };
    std::string why;
    for (;;) {
      if (!channel_->WaitForConnected(std::chrono::system_clock::now() + (deadline - Clock::now()))) throw missing(why);
      call_.emplace(*stub_, [this] { wake(); });
      FromNode message;
      Hello& hello = *message.mutable_hello();
      hello.set_version(protocol_version);
      hello.set_host(multinode::host_name());
      hello.set_pid(getpid());
      hello.set_cpus(options_.cpus);
      hello.set_gpus(options_.gpus);
      call_->outbox().put(std::move(message));
      if (!call_->wait_until(deadline)) throw missing(why);
      inbox_ = call_->take();
      if (!inbox_.empty()) break;
      const grpc::Status status = call_->finish();
      if (status.error_code() != grpc::StatusCode::UNAVAILABLE)
        throw multinode::UsageError(name_ + " refuses this node: " + status.error_message());
      why = " (" + status.error_message() + ")";
      std::this_thread::sleep_for(100ms);  // it is ending, or just starting
    }
    const ToNode first = std::move(inbox_.front());
    inbox_.pop_front();
    if (first.has_leave()) throw multinode::UsageError(name_ + " sends this node away: " + first.leave().reason());
    if (!first.has_welcome()) throw std::runtime_error(name_ + " speaks another protocol");
    log("joined " + name_ + " as node " + std::to_string(first.welcome().node()) + ": " +
        std::to_string(options_.cpus) + " CPUs, " + std::to_string(options_.gpus) + " GPUs; jobs are in " +
        options_.jobs.string());
  }

  void log(const std::string& line) const {
    if (options_.log) options_.log(line);
  }

  // Takes what the head and stop() want.
  void hear() {
    std::uint64_t count = 0;
    (void)!read(wake_.get(), &count, sizeof count);
    if (stopped_) leave("stopped");
    if (gone_) return;
    const bool over = call_->over();
    for (ToNode& message : call_->take()) inbox_.push_back(std::move(message));
    for (; !inbox_.empty(); inbox_.pop_front()) {
      const ToNode& message = inbox_.front();
      if (message.has_beat()) renew_leases();
      if (message.has_start() && reason_.empty()) start(message.start());
      if (message.has_stop())
        for (Member& member : members_)
          if (member.which.job() == message.stop().job() && member.which.attempt() == message.stop().attempt())
            stop(member);
      if (message.has_leave()) leave(message.leave().reason());
    }
    if (!over) return;
    gone_ = true;
    unsent_.clear();
    const grpc::Status status = call_->finish();
    leave(name_ + " is gone" + (status.error_message().empty() ? "" : ": " + status.error_message()));
  }

  void renew_leases() {
    for (const Member& member : members_) member.process->allow_until(call_->leased_until());
  }

  void leave(const std::string& reason) {
    if (!reason_.empty()) return;
    reason_ = reason;
    if (!members_.empty()) log("stops " + std::to_string(members_.size()) + " processes: " + reason);
  }

  void start(const Start& start) {
    log("job " + std::to_string(start.job()) + ", attempt " + std::to_string(start.attempt()) + ": starts " +
        start.program() + ", ranks " + std::to_string(start.first_rank()) + " to " +
        std::to_string(start.first_rank() + start.count() - 1) + " of " + std::to_string(start.world_size()));
    for (int local = 0; local < start.count(); ++local) {
      Member member;
      member.which.set_job(start.job());
      member.which.set_attempt(start.attempt());
      member.which.set_rank(start.first_rank() + local);
      FromNode message;
      try {
        const Command command{find_program(options_.jobs, start.program()),
                              {start.arguments().begin(), start.arguments().end()},
                              environment_of(start, local, options_.head.host)};
        member.process = std::make_unique<Child>(command, options_.keeper, call_->leased_until());
        Started& started = *message.mutable_started();
        *started.mutable_which() = member.which;
        started.set_pid(member.process->pid());
        members_.push_back(std::move(member));
      } catch (const StartError& e) {
        log(to_text(member.which) + ": " + e.what());
        Ended& ended = *message.mutable_ended();
        *ended.mutable_which() = member.which;
        ended.set_status(e.status);
        ended.set_error(e.what());
      }
      send(std::move(message));
      renew_leases();  // to start many processes can take longer than a lease
    }
  }

  static void stop(Member& member) {
    if (std::exchange(member.stopped, true)) return;
    member.process->terminate();
    member.kill_at = Clock::now() + patience;
  }
  void stop_all() {
    for (Member& member : members_) stop(member);
  }
  // At once: the head may have started their successors.
  void kill_all() {
    for (Member& member : members_) {
      member.stopped = true;
      member.process->kill();
    }
  }

  // In order; where the head does not keep up, the rest waits here, and the processes' pipes are not read.
  void send(FromNode message) {
    if (gone_) return;
    if (unsent_.empty() && call_->outbox().put_output(message)) return;
    unsent_.push_back(std::move(message));
  }

  void look_after_members() {
    while (!unsent_.empty() && call_->outbox().put_output(unsent_.front())) unsent_.pop_front();
    std::erase_if(members_, [this](Member& member) {
      Child& process = *member.process;
      const bool running = !process.status();
      if (running && member.kill_at && Clock::now() >= *member.kill_at) {
        process.kill();
        member.kill_at.reset();
      }
      for (const Child::Stream stream : {Child::out, Child::err})
        if (process.descriptor(stream) >= 0 && unsent_.empty()) forward(member, stream);
      if (!process.drained() || !unsent_.empty()) return false;
      const int status = *process.status();
      if (status != 0 && !member.stopped) log(to_text(member.which) + ": ended with status " + std::to_string(status));
      FromNode message;
      *message.mutable_ended()->mutable_which() = member.which;
      message.mutable_ended()->set_status(status);
      member.process.reset();
      send(std::move(message));
      return true;
    });
  }

  void forward(const Member& member, Child::Stream stream) {
    std::string lines = member.process->read(stream);
    if (lines.empty()) return;
    FromNode message;
    *message.mutable_output()->mutable_which() = member.which;
    message.mutable_output()->set_text(std::move(lines));
    send(std::move(message));
  }

  void wait() {
    std::vector<pollfd> entries = {{wake_.get(), POLLIN, 0}};
    Clock::time_point until = Clock::time_point::max();
    if (!unsent_.empty()) until = Clock::now() + 5ms;
    for (Member& member : members_) {
      Child& process = *member.process;
      if (member.kill_at) until = std::min(until, *member.kill_at);
      if (process.status()) {
        if (unsent_.empty()) return;  // to read what it left
        continue;
      }
      entries.push_back({process.descriptor(), POLLIN, 0});
      if (!unsent_.empty()) continue;
      for (const Child::Stream stream : {Child::out, Child::err})
        if (process.descriptor(stream) >= 0) entries.push_back({process.descriptor(stream), POLLIN, 0});
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    poll(entries.data(), entries.size(),
         until == Clock::time_point::max() ? -1 : static_cast<int>(std::max(left, 0ms).count()));
  }

  const NodeOptions options_;
  const std::string name_;  // of the head
  const multinode::Descriptor wake_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<Cluster::Stub> stub_;
  std::optional<Call> call_;
  std::deque<ToNode> inbox_;     // taken from the call
  std::deque<FromNode> unsent_;  // waits for room in the outbox
  std::vector<Member> members_;  // until Ended is sent
  std::string reason_;           // why the node leaves
  bool gone_ = false;            // the head
  std::atomic<bool> stopped_ = false;
};

Node::Node(NodeOptions options) : implementation_(std::make_unique<Implementation>(std::move(options))) {}
Node::~Node() = default;
std::string Node::run() { return implementation_->run(); }
void Node::stop() { implementation_->stop(); }

}  // namespace cluster
