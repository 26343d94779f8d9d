#include "pool.hpp"

#include "cluster/client.hpp"
#include "cluster/token.hpp"
#include "limits.hpp"
#include "tasks/tasks.grpc.pb.h"

#include <multinode/check.hpp>
#include <multinode/socket.hpp>

#include <grpcpp/create_channel.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>

namespace tasks {

namespace {

// Of a thread that waits until `missing` results more are there.
class Waiter {
 public:
  explicit Waiter(std::size_t missing) : missing_(missing) {}

  void one_more() {
    const std::lock_guard lock(mutex_);
    if (missing_ > 0 && --missing_ == 0) enough_.notify_one();  // locked: afterwards the waiter may be destroyed
  }
  void wait(std::chrono::steady_clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    enough_.wait_until(lock, deadline, [this] { return missing_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable enough_;
  std::size_t missing_;
};

}  // namespace

struct detail::Result {
 public:
  void end(std::string value, std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    value_ = std::move(value);
    error_ = std::move(error);
    ended_.store(true, std::memory_order_release);
    for (Waiter* waiter : waiters_) waiter->one_more();
  }
  bool ended() const { return ended_.load(std::memory_order_acquire); }

  // Of one that has ended.
  nlohmann::json value() const {
    if (error_) std::rethrow_exception(error_);
    return nlohmann::json::from_cbor(value_);
  }

  void add(Waiter& waiter) const {
    const std::lock_guard lock(mutex_);
    if (ended())
      waiter.one_more();
    else
      waiters_.push_back(&waiter);
  }
  void remove(const Waiter& waiter) const {
    const std::lock_guard lock(mutex_);
    waiters_.erase(std::remove(waiters_.begin(), waiters_.end(), &waiter), waiters_.end());
  }

 private:
  mutable std::mutex mutex_;
  mutable std::vector<Waiter*> waiters_;
  std::atomic<bool> ended_{false};  // then value and error do not change any more
  std::string value_;               // CBOR
  std::exception_ptr error_;
};

std::vector<bool> detail::wait(const std::vector<const Result*>& results, std::size_t how_many,
                               std::chrono::milliseconds timeout) {
  Waiter waiter(std::min(how_many, results.size()));
  for (const Result* result : results) result->add(waiter);
  waiter.wait(multinode::detail::deadline_in(timeout));
  std::vector<bool> ended;
  for (const Result* result : results) {
    result->remove(waiter);
    ended.push_back(result->ended());
  }
  return ended;
}

nlohmann::json detail::get(const Result& result) {
  if (!result.ended()) wait({&result}, 1, std::chrono::milliseconds::max());
  return result.value();
}

class Pool::Implementation {
 public:
  explicit Implementation(PoolOptions options);
  ~Implementation();
  Implementation(const Implementation&) = delete;
  Implementation& operator=(const Implementation&) = delete;

  void wait_for_runners();
  std::shared_ptr<detail::Result> submit(const std::string& function, const nlohmann::json& arguments);

 private:
  // A task that is not finished; kept whole, to be sent again if its runner dies.
  struct Pending {
    Task task;
    std::shared_ptr<detail::Result> result;
  };

  // The way to one runner. gRPC's stream, 20 to 40 us there and back where a bare socket takes 5, is no bottleneck: a
  // synchronous task takes 50 to 100, most of it changes of threads.
  struct Link {
    Link(int its_rank, std::string its_host) : rank(its_rank), host(std::move(its_host)) {}
    std::size_t window() const {
      return std::clamp(static_cast<std::size_t>(window_seconds / std::max(task_seconds, window_seconds / most_window)),
                        least_window, most_window);
    }

    const int rank;
    const std::string host;
    std::unique_ptr<tasks::RunnerService::Stub> stub;
    grpc::ClientContext call;
    std::unique_ptr<grpc::ClientReaderWriter<Tasks, Outcomes>> stream;

    std::condition_variable changed;  // of the following, which the pool's mutex guards
    std::map<std::int64_t, Pending> given;
    std::deque<std::int64_t> unsent;            // of the given
    double task_seconds = window_seconds / 16;  // what a task takes, a mean that forgets; a guess to start with
    bool closed = false;                        // gets no tasks any more
    bool writing = false;                       // a thread does, without the mutex
    std::thread writer, reader;
  };

  static constexpr std::chrono::seconds grace{5};  // between the end of a call and the word of the head about it

  void run_job();
  void hear(const cluster::ToClient& message);
  void open_link(int rank, const std::string& host, const std::string& address);
  void close_links();
  void write_to(Link& link);
  void read_from(Link& link);
  Link* dispatch(bool will_send = false);
  bool send(Link& link, std::unique_lock<std::mutex>& lock);
  void end(const std::string& reason, std::exception_ptr thrown = nullptr);

  const PoolOptions options_;
  cluster::Client client_;

  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  std::deque<Pending> queue_;
  std::vector<std::unique_ptr<Link>> links_;  // changed by the job's thread alone
  std::int64_t next_id_ = 0;
  bool ending_ = false;  // the destructor has begun
  bool job_over_ = false;
  std::string ended_;          // why; "" while the pool works
  std::exception_ptr thrown_;  // what submitting the job threw
  std::string waiting_;        // why there are no runners yet

  std::string secret_, error_;  // of the job's thread
  int attempt_ = 0;             // likewise
  std::thread job_;
};

Pool::Implementation::Implementation(PoolOptions options)
    : options_(std::move(options)),
      client_(options_.head, options_.token, options_.timeout),
      job_([this] { run_job(); }) {}

Pool::Implementation::~Implementation() {
  {
    std::unique_lock lock(mutex_);
    ending_ = true;
    bool idle = queue_.empty();
    for (const auto& link : links_) {
      idle = idle && link->given.empty();
      link->changed.notify_all();
    }
    if (!idle || !ended_.empty() || !changed_.wait_for(lock, grace, [this] { return job_over_; })) {
      lock.unlock();
      end("the pool was destroyed");
      client_.cancel();
    }
  }
  job_.join();
  end("the pool was destroyed");
}

void Pool::Implementation::run_job() {
  cluster::Job job;
  job.set_program("task_runner");
  job.add_arguments(options_.library);
  job.set_num_workers(options_.num_workers);
  job.set_cpus_per_worker(1);
  job.set_max_failures(options_.max_failures);
  std::string reason;
  std::exception_ptr thrown;
  try {
    const cluster::Result result = client_.submit(job, [&](const cluster::ToClient& message) { hear(message); });
    reason = "the tasks' job has ended" + (result.what().empty() ? "" : ": " + result.what());
    if (!error_.empty()) reason += ": " + error_;
  } catch (const std::exception& e) {
    reason = e.what();
    thrown = std::current_exception();
  }
  end(reason, thrown);
  close_links();
  const std::lock_guard lock(mutex_);
  job_over_ = true;
  changed_.notify_all();
}

void Pool::Implementation::hear(const cluster::ToClient& message) {
  switch (message.what_case()) {
    case cluster::ToClient::kAccepted:
      secret_ = message.accepted().secret();
      break;
    case cluster::ToClient::kWaiting: {
      options_.log("the tasks' job waits: " + message.waiting().reason());
      const std::lock_guard lock(mutex_);
      waiting_ = message.waiting().reason();
      break;
    }
    case cluster::ToClient::kReport: {
      if (message.report().which().attempt() != attempt_) break;
      const auto report = nlohmann::json::parse(message.report().json());
      if (report.contains("tasks")) open_link(message.report().which().rank(), report["host"], report["tasks"]);
      if (report.contains("error")) error_ = report["error"];
      break;
    }
    case cluster::ToClient::kFailure:
      options_.log("the runners are started again: " + message.failure().what());
      attempt_ = message.failure().attempt() + 1;
      close_links();
      break;
    case cluster::ToClient::kOutput: {
      std::istringstream text(message.output().text());
      for (std::string line; std::getline(text, line);)
        options_.log("(worker " + std::to_string(message.output().which().rank()) + ") " + line);
      break;
    }
    default:
      break;
  }
}

void Pool::Implementation::open_link(int rank, const std::string& host, const std::string& address) {
  auto link = std::make_unique<Link>(rank, host);
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(message_bytes);
  // A frozen runner, or one that is cut off, does not answer pings.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 1000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 3000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  const auto endpoint = multinode::parse_endpoint(address, "the address of a runner");
  link->stub = tasks::RunnerService::NewStub(
      grpc::CreateCustomChannel(multinode::to_string(endpoint), grpc::InsecureChannelCredentials(), arguments));
  cluster::add_token(link->call, secret_);
  link->stream = link->stub->Run(&link->call);
  Link& opened = *link;
  const std::lock_guard lock(mutex_);
  links_.push_back(std::move(link));
  opened.writer = std::thread([this, &opened] { write_to(opened); });
  opened.reader = std::thread([this, &opened] { read_from(opened); });
  dispatch();
  changed_.notify_all();
}

void Pool::Implementation::close_links() {
  std::unique_lock lock(mutex_);
  for (const auto& link : links_) {
    link->closed = true;
    link->changed.notify_all();
    link->call.TryCancel();
  }
  for (const auto& link : links_) link->changed.wait(lock, [&] { return !link->writing; });
  lock.unlock();
  for (const auto& link : links_) {
    link->writer.join();
    link->reader.join();
  }
  lock.lock();
  std::map<std::int64_t, Pending> unfinished;
  for (const auto& link : links_) unfinished.merge(link->given);
  for (auto last = unfinished.rbegin(); last != unfinished.rend(); ++last) queue_.push_front(std::move(last->second));
  links_.clear();
}

// With `will_send`, the caller sends the last task itself where its runner has no other, which saves a change of
// threads: then that runner's link is returned.
Pool::Implementation::Link* Pool::Implementation::dispatch(bool will_send) {
  while (!queue_.empty()) {
    Link* least = nullptr;
    for (const auto& link : links_)
      if (!link->closed && link->given.size() < link->window() && (!least || link->given.size() < least->given.size()))
        least = link.get();
    if (!least) break;
    const std::int64_t id = queue_.front().task.id();
    least->given.emplace(id, std::move(queue_.front()));
    queue_.pop_front();
    least->unsent.push_back(id);
    if (will_send && queue_.empty() && least->given.size() == 1 && !least->writing) return least;
    least->changed.notify_all();
  }
  return nullptr;
}

// Sends what waits, up to a limit. False: no more can be sent.
bool Pool::Implementation::send(Link& link, std::unique_lock<std::mutex>& lock) {
  Tasks message;
  for (std::size_t bytes = 0; !link.unsent.empty(); link.unsent.pop_front()) {
    const auto found = link.given.find(link.unsent.front());
    if (found == link.given.end()) continue;  // the pool is over
    const Task& task = found->second.task;
    bytes += task.ByteSizeLong();
    if (bytes > batch_bytes && message.tasks_size() > 0) break;
    *message.add_tasks() = task;
  }
  message.set_end(link.unsent.empty() && ending_);
  link.writing = true;
  lock.unlock();
  const bool sent = link.stream->Write(message);
  lock.lock();
  link.writing = false;
  if (!link.unsent.empty() || link.closed || ending_) link.changed.notify_all();
  return sent && !message.end();
}

void Pool::Implementation::write_to(Link& link) {
  std::unique_lock lock(mutex_);
  do {
    link.changed.wait(lock, [&] { return link.closed || (!link.writing && (ending_ || !link.unsent.empty())); });
  } while (!link.closed && send(link, lock));
}

void Pool::Implementation::read_from(Link& link) {
  Outcomes message;
  std::vector<Pending> answered;
  while (link.stream->Read(&message)) {
    answered.clear();
    {
      const std::lock_guard lock(mutex_);
      for (const Outcome& outcome : message.outcomes()) {
        auto node = link.given.extract(outcome.id());
        answered.push_back(node ? std::move(node.mapped()) : Pending());  // none where the pool is over
      }
      if (!message.outcomes().empty())
        link.task_seconds += (message.seconds() / message.outcomes_size() - link.task_seconds) / 4;
      dispatch();
    }
    for (int i = 0; i < message.outcomes_size(); ++i) {
      const Pending& pending = answered[static_cast<std::size_t>(i)];
      if (!pending.result) continue;
      Outcome& outcome = *message.mutable_outcomes(i);
      std::exception_ptr error;
      if (outcome.what_case() != Outcome::kValue)
        error = std::make_exception_ptr(TaskFailed(pending.task.function(), link.rank, link.host, outcome.error()));
      pending.result->end(std::move(*outcome.mutable_value()), error);
    }
  }
  // The head says what has become of the runner.
  const grpc::Status status = link.stream->Finish();
  std::unique_lock lock(mutex_);
  if (link.changed.wait_for(lock, grace, [&] { return link.closed || ending_; })) return;
  lock.unlock();
  end("the runner of rank " + std::to_string(link.rank) + " (host " + link.host +
      ") is silent: " + status.error_message());
  client_.cancel();
}

void Pool::Implementation::wait_for_runners() {
  const auto num_workers = static_cast<std::size_t>(options_.num_workers);
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, options_.timeout, [&] { return !ended_.empty() || links_.size() == num_workers; })) {
    const std::string reason = "only " + std::to_string(links_.size()) + " of " + std::to_string(num_workers) +
                               " runners have started within " + multinode::detail::to_text(options_.timeout) +
                               (waiting_.empty() ? "" : ": " + waiting_);
    lock.unlock();
    end(reason);
    lock.lock();
  }
  if (thrown_) std::rethrow_exception(thrown_);
  if (!ended_.empty()) throw PoolEnded(ended_);
}

std::shared_ptr<detail::Result> Pool::Implementation::submit(const std::string& function,
                                                             const nlohmann::json& arguments) {
  if (function.size() > most_name)
    throw std::invalid_argument("a function's name has at most " + std::to_string(most_name) + " characters");
  Pending pending;
  pending.result = std::make_shared<detail::Result>();
  pending.task.set_function(function);
  nlohmann::json::to_cbor(arguments, *pending.task.mutable_arguments());
  if (pending.task.arguments().size() > most_bytes)
    throw std::invalid_argument(function + ": the arguments have " + std::to_string(pending.task.arguments().size()) +
                                " bytes, more than " + std::to_string(most_bytes));
  const auto result = pending.result;
  std::unique_lock lock(mutex_);
  if (!ended_.empty()) throw PoolEnded(ended_);
  pending.task.set_id(next_id_++);
  queue_.push_back(std::move(pending));
  if (Link* link = dispatch(true)) send(*link, lock);
  return result;
}

// Only the first reason counts.
void Pool::Implementation::end(const std::string& reason, std::exception_ptr thrown) {
  std::vector<std::shared_ptr<detail::Result>> unfinished;
  {
    const std::lock_guard lock(mutex_);
    if (!ended_.empty()) return;
    ended_ = reason;
    thrown_ = std::move(thrown);
    for (const auto& pending : queue_) unfinished.push_back(pending.result);
    queue_.clear();
    for (const auto& link : links_) {
      for (const auto& [id, pending] : link->given) unfinished.push_back(pending.result);
      link->given.clear();
    }
    changed_.notify_all();
  }
  const auto error = std::make_exception_ptr(PoolEnded(reason));
  for (const auto& result : unfinished) result->end("", error);
}

Pool::Pool(PoolOptions options) : implementation_(std::make_unique<Implementation>(std::move(options))) {
  implementation_->wait_for_runners();
}

Pool::~Pool() = default;

std::shared_ptr<detail::Result> Pool::submit_json(const std::string& function, const nlohmann::json& arguments) {
  return implementation_->submit(function, arguments);
}

}  // namespace tasks
