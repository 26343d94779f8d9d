#include "member.hpp"

#include "device.hpp"
#include "identity.hpp"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

namespace emulated_gpu {

namespace {

// EMULATED_GPU_FAULT=stuck:60 or error:60, for tests of programs: after that many operations of this process none
// completes any more, or the communicator fails.
bool fault(const char* kind, int operation) {
  const char* setting = std::getenv("EMULATED_GPU_FAULT");
  const std::size_t length = std::strlen(kind);
  return setting && std::strncmp(setting, kind, length) == 0 && setting[length] == ':' &&
         operation > std::atoi(setting + length + 1);
}

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

// Of a welcome, with an address for each rank, or of a failure.
constexpr std::size_t most_text_bytes = std::size_t{4} << 20;

constexpr const char* in_vain =
    "rank {} has waited in vain, because the process that created the unique id is gone (NCCL does not notice that on "
    "one "
    "machine),";

// What threads of this process wait for.
struct Waits {
  using Clock = std::chrono::steady_clock;
  std::mutex mutex;
  std::map<const void*, std::pair<Clock::time_point, std::string>> all;
  std::set<const void*> said;
  bool running = false;

  static Waits& get() {
    static Waits& waits = *new Waits;  // threads may still use it when the process ends
    return waits;
  }
  void watch() {
    for (;;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      const std::lock_guard lock(mutex);
      for (const auto& [wait, since] : all)
        if (Clock::now() - since.first > deadline() && said.insert(wait).second)
          say(since.second + " for " + std::to_string(deadline().count()) + " s now");
    }
  }
};

}  // namespace

void begin_wait(const void* what, const std::string& text) {
  Waits& waits = Waits::get();
  const std::lock_guard lock(waits.mutex);
  waits.all[what] = {Waits::Clock::now(), text};
  waits.said.erase(what);
  if (!std::exchange(waits.running, true)) std::thread([&waits] { waits.watch(); }).detach();
}
void end_wait(const void* what) {
  Waits& waits = Waits::get();
  const std::lock_guard lock(waits.mutex);
  waits.all.erase(what);
}

Member::~Member() {
  end_wait(this);
  if (job_.joinable()) job_.detach();
}

void Member::join(const std::string& id, const std::string& session) {
  hub_ = id;
  session_ = session;
  const std::string address = id.substr(std::strlen(id_mark) + 1, id.rfind(' ') - std::strlen(id_mark) - 1);
  auto fd = connect_to(address);
  if (!fd)
    throw NcclError{ncclRemoteError,
                    fmt::format("{}: rank {} cannot reach {}, the process that created the unique id: {}", call_, rank_,
                                address, std::strerror(errno))};
  const auto connection = std::make_shared<Connection>(std::move(fd));
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) throw NcclError{ncclInternalError, call_ + ": aborted"};
    connection_ = connection;
  }
  const nlohmann::json hello = {{"id", id},
                                {"session", session},
                                {"call", call_},
                                {"rank", rank_},
                                {"size", size_},
                                {"who", fmt::format("host {}, pid {}", host_name(), getpid())},
                                {"process", process_token()},
                                {"machine", machine_},
                                {"device", physical_device(device_)}};
  connection->send(Kind::hello, hello.dump());
  Frame frame;
  std::string text;
  if (!connection->receive(frame) || frame.payload > most_text_bytes || !connection->receive(text, frame.payload))
    throw NcclError{ncclRemoteError, call_ + ": the process that created the unique id is gone"};
  if (frame.kind != Kind::welcome) throw NcclError{static_cast<ncclResult_t>(frame.code), text};
  hub_machine_ = text;
  const std::lock_guard lock(mutex_);
  if (stopped_) throw NcclError{ncclInternalError, call_ + ": aborted"};
  ready_ = reading_ = true;
  reader_ = std::thread([this] { read(); });
}

// Reads the hub's messages until the connection ends. stop() joins this thread.
void Member::read() {
  Frame frame;
  NcclError gone{
      hub_machine_ == machine_ ? ncclSuccess : ncclRemoteError,  // NCCL does not notice it on its own machine
      "the process that created the unique id of this communicator is gone"};
  while (connection_->receive(frame)) {
    if (frame.kind == Kind::failed) {
      std::string text;
      if (frame.payload > most_text_bytes || !connection_->receive(text, frame.payload)) break;
      gone = {static_cast<ncclResult_t>(frame.code), text};
      fail(gone);
      continue;
    }
    std::vector<std::byte> data;
    if (frame.payload > device_memory || !connection_->receive(data, frame.payload)) break;
    const std::lock_guard lock(mutex_);
    const auto found = pending_.find(frame.id);
    if (found == pending_.end()) continue;  // its call has failed
    if (found->second.bytes != data.size()) break;
    found->second.data = std::move(data);
    found->second.done = true;
    changed_.notify_all();
  }
  fail(gone);
  const std::lock_guard lock(mutex_);
  if (!stopped_ && inside_ > 0) begin_wait(this, fmt::format(in_vain, rank_));
  reading_ = false;
  changed_.notify_all();
}

void Member::fail(const NcclError& failure) {
  const std::lock_guard lock(mutex_);
  if (failure_.code == ncclSuccess && !stopped_) failure_ = failure;
  changed_.notify_all();
}

ncclResult_t Member::run(std::function<void()> function) {
  if (blocking_) {
    function();
    return ncclSuccess;
  }
  std::thread before;
  {
    const std::lock_guard lock(mutex_);
    in_progress_ = true;
    before = std::move(job_);
  }
  if (before.joinable()) before.join();
  std::thread job([self = shared_from_this(), function = std::move(function)] {
    NcclError failure;
    try {
      function();
    } catch (const NcclError& thrown) {
      failure = thrown;
    }
    const std::lock_guard lock(self->mutex_);
    if (self->failure_.code == ncclSuccess && !self->ended_) self->failure_ = failure;
    self->in_progress_ = false;
    self->changed_.notify_all();
  });
  const std::lock_guard lock(mutex_);
  job_ = std::move(job);
  return ncclInProgress;
}

NcclError Member::state() const {
  const std::lock_guard lock(mutex_);
  if (failure_.code != ncclSuccess) return failure_;
  return {in_progress_ ? ncclInProgress : ncclSuccess, ""};
}

void Member::require_ready(const std::string& call) const {
  const std::lock_guard lock(mutex_);
  if (failure_.code != ncclSuccess)
    throw NcclError{failure_.code, call + ": the communicator has failed: " + failure_.text};
  if (in_progress_)
    throw NcclError{
        ncclInvalidArgument,
        call + ": the call before it is still in progress: wait until ncclCommGetAsyncError says ncclSuccess"};
  if (stopped_ || !ready_) throw NcclError{ncclInvalidUsage, call + ": the communicator is not ready"};
}

void Member::require_usable(const std::string& call) const {
  require_ready(call);
  const std::lock_guard lock(mutex_);
  if (finalized_) throw NcclError{ncclInvalidUsage, call + " after ncclCommFinalize"};
}

// With mutex_ held: sets the number of the call among those of its kind.
void Member::number(Call& call) {
  if (call.post.op == Op::send)
    call.post.number = ++sends_[call.post.peer];
  else if (call.post.op == Op::recv)
    call.post.number = ++recvs_[call.post.peer];
  else
    call.post.number = ++collectives_;
}

void Member::issue(std::vector<Call> calls, const std::vector<cudaStream_t>& streams) {
  // On the first stream, which waits for the others before, and they for it afterwards.
  std::vector<cudaEvent_t> events;
  const auto hold_back = [&](cudaStream_t later, cudaStream_t earlier) {
    cudaEvent_t event{};
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    cudaEventRecord(event, earlier);
    cudaStreamWaitEvent(later, event, 0);
    cudaEventDestroy(event);
  };
  int before = 0;
  cudaGetDevice(&before);
  cudaSetDevice(device_);
  for (std::size_t i = 1; i < streams.size(); ++i) hold_back(streams[0], streams[i]);
  enqueue(streams[0], [use = std::make_shared<Use>(shared_from_this()), calls = std::move(calls)] {
    const std::shared_ptr<Member>& self = use->member;
    std::vector<Call> numbered = calls;
    {
      const std::lock_guard lock(self->mutex_);
      for (Call& call : numbered) self->number(call);
      ++self->issued_;
    }
    return [self, numbered] { self->perform(numbered); };
  });
  for (std::size_t i = 1; i < streams.size(); ++i) hold_back(streams[i], streams[0]);
  cudaSetDevice(before);
}

// Runs on a stream's thread. After a failure it returns only when the communicator is aborted, as in NCCL.
void Member::perform(std::vector<Call> calls) {
  static std::atomic<int> operations{0};
  const int operation = ++operations;
  if (fault("error", operation)) fail({ncclRemoteError, "an error as EMULATED_GPU_FAULT asks for"});
  if (fault("stuck", operation) || fault("error", operation)) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_; });
  }
  for (Call& call : calls)
    if (call.factor_at) std::memcpy(&call.post.factor, view(call.factor_at), size_of(call.post.type));
  transact(calls, true);
  const std::lock_guard lock(mutex_);
  ++performed_;
  changed_.notify_all();
}

// Sends the calls to the hub and waits for the answers. Returns false if the communicator ended first; calls that are
// not of a stream also end when it fails.
bool Member::transact(const std::vector<Call>& calls, bool of_stream) {
  std::vector<std::uint64_t> ids;
  std::shared_ptr<Connection> connection;
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return false;
    ++inside_;
    if (!reading_) begin_wait(this, fmt::format(in_vain, rank_));
    connection = connection_;
    for (const Call& call : calls) pending_[ids.emplace_back(++next_id_)] = {bytes_out(call.post, rank_, size_)};
  }
  for (std::size_t i = 0; i < calls.size(); ++i)
    connection->send({.kind = Kind::post, .id = ids[i], .post = calls[i].post}, view(calls[i].in),
                     bytes_in(calls[i].post, rank_, size_));
  const auto all_done = [&] { return std::ranges::all_of(ids, [&](std::uint64_t id) { return pending_[id].done; }); };
  std::vector<std::vector<std::byte>> data;
  bool done = false;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_ || all_done() || (!of_stream && failure_.code != ncclSuccess); });
    done = all_done();
    for (const std::uint64_t id : ids) data.push_back(std::move(pending_.extract(id).mapped().data));
  }
  for (std::size_t i = 0; done && i < calls.size(); ++i)
    if (!data[i].empty()) std::memcpy(view(calls[i].out), data[i].data(), data[i].size());
  const std::lock_guard lock(mutex_);
  --inside_;
  changed_.notify_all();
  return done;
}

void Member::transact_or_throw(const std::vector<Call>& calls) {
  if (transact(calls, false)) return;
  const NcclError why = state();
  throw NcclError{why.code == ncclSuccess || why.code == ncclInProgress ? ncclInternalError : why.code,
                  fmt::format("{}: the communicator {}", name_of(calls[0].post.op),
                              why.text.empty() ? "was aborted" : "has failed: " + why.text)};
}

void Member::connect(const std::vector<Call>& calls) {
  std::vector<Call> first;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [post, in, out, factor_at] : calls) {
      const bool collective = is_collective(post.op);
      if (collective ? size_ == 1 || NCCL_VERSION_CODE < NCCL_VERSION(2, 22, 0) : post.peer == rank_) continue;
      const Op kind = collective && !is_of_messages(post.op) ? Op::all_reduce : post.op;
      if (!connected_.emplace(kind, collective ? -1 : post.peer).second) continue;
      first.emplace_back(Call{.post = post});
      first.back().post.connects = true;
      first.back().post.number = 1;
    }
  }
  if (!first.empty()) transact_or_throw(first);
}

std::vector<std::byte> Member::exchange(Op op, std::span<const std::byte> part) {
  std::vector<std::byte> all(part.size() * static_cast<std::size_t>(size_));
  Call call{.post = {.op = op, .type = ncclUint8, .count = part.size()}, .in = part.data(), .out = all.data()};
  {
    const std::lock_guard lock(mutex_);
    call.post.number = ++exchanges_;
  }
  transact_or_throw({call});
  return all;
}

void Member::set_child(std::shared_ptr<Member> child) {
  const std::lock_guard lock(mutex_);
  if (child && ended_) throw NcclError{ncclInternalError, call_ + ": aborted"};
  child_ = std::move(child);
}

void Member::count_use(int change) {
  const std::lock_guard lock(mutex_);
  uses_ += change;
  changed_.notify_all();
}

void Member::wait_for_graphs(std::unique_lock<std::mutex>& lock, const char* call) {
  if (uses_ == 0) return;
  begin_wait(&uses_, fmt::format("{} on rank {} has waited for a graph that holds a captured call of this communicator "
                                 "(destroy the graph and its executable before),",
                                 call, rank_));
  changed_.wait(lock, [&] { return uses_ == 0; });
  end_wait(&uses_);
}

// Waits for all issued calls. If one does not complete, the hub reports who is late.
void Member::finalize(const char* call) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopped_ || performed_ == issued_; });
  if (stopped_) throw NcclError{ncclInternalError, std::string(call) + ": aborted"};
  wait_for_graphs(lock, call);
  finalized_ = true;
}

void Member::stop(Kind how) {
  std::shared_ptr<Connection> connection;
  std::shared_ptr<Member> child;
  std::thread reader;
  end_wait(this);
  {
    std::unique_lock lock(mutex_);
    if (!std::exchange(stopped_, true)) {
      connection = connection_;
      reader = std::move(reader_);
    }
    ended_ = true;
    child = child_;
    changed_.notify_all();
  }
  if (child) child->abort();
  if (connection) {
    const bool said = reader.joinable() && connection->send(how, "");
    if (!said || how != Kind::goodbye) connection->shut_down();  // the hub answers a goodbye by closing
  }
  if (reader.joinable()) reader.join();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !in_progress_ && !reading_ && inside_ == 0; });
  wait_for_graphs(lock, "ncclCommAbort");
}

}  // namespace emulated_gpu
