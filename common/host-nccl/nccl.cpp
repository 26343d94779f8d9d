// A stand-in for NCCL on the stand-in for CUDA: its calls are tasks of streams, executed by a hub (hub.hpp).
// See README.md.
#include "device.hpp"
#include "hub.hpp"
#include "wire.hpp"

#include <fmt/format.h>
#include <nccl.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>
#include <vector>

namespace host_nccl {
class Member;
}

// NCCL's name for the type behind a communicator's handle. Handles are never deleted, so that later use is detected.
struct ncclComm {
  std::shared_ptr<host_nccl::Member> member;  // null: it has ended
  std::string ended_by;
};

namespace host_nccl {
namespace {

using Clock = std::chrono::steady_clock;
using multinode::DataType;
using nlohmann::json;

// The last error of a call, for ncclGetLastError.
thread_local std::string last_error;

// Thrown by a call that fails.
struct Failure {
  ncclResult_t code = ncclSuccess;
  std::string text;
};

// HOST_NCCL_FAULT=stuck:60 or error:60, for tests of programs: after that many operations of this process none
// completes any more, or the communicator fails.
bool fault(const char* kind, int operation) {
  const char* setting = std::getenv("HOST_NCCL_FAULT");
  const std::size_t length = std::strlen(kind);
  return setting && std::strncmp(setting, kind, length) == 0 && setting[length] == ':' &&
         operation > std::atoi(setting + length + 1);
}

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace

// One call of a rank: its buffers, and the message to the hub.
struct Call {
  Post post;
  const void* in = nullptr;
  void* out = nullptr;
};

// One rank of a communicator.
class Member : public std::enable_shared_from_this<Member> {
 public:
  Member(std::string call, int rank, int size, int device, bool blocking)
      : call_(std::move(call)), rank_(rank), size_(size), device_(device), blocking_(blocking) {}
  ~Member() {
    if (spare_) spare_->close();
    if (job_.joinable()) job_.detach();
  }

  int rank() const { return rank_; }
  int size() const { return size_; }
  int device() const { return device_; }
  bool blocking() const { return blocking_; }
  const std::string& clique() const { return clique_; }

  // Connects to the hub of `id` and waits for the other ranks.
  void join(const std::string& id, const std::string& session);

  // Runs function() on this thread. A non-blocking communicator runs it on another one and returns ncclInProgress.
  ncclResult_t run(std::function<void()> function);

  // The state for ncclCommGetAsyncError.
  Failure state() const;
  // Throws unless `call` may be made now.
  void require_usable(const std::string& call) const;

  // Enqueues the calls as one task.
  void issue(std::vector<Call> calls, const std::vector<cudaStream_t>& streams);

  std::string spare_id_of(int rank) const { return table_[static_cast<std::size_t>(rank)]["spare"]; }
  std::string next_shrink() { return "shrink " + std::to_string(++shrinks_); }

  void finalize(const char* call);
  void end_operations() { stop(Kind::aborted, false); }  // the communicator cannot be used any more
  void destroy() { stop(Kind::goodbye, true); }
  void abort() { stop(Kind::aborted, true); }

  // Reductions and buffers of this communicator; guarded by operators_mutex.
  struct Operator {
    DataType type;
    double factor;
  };
  std::mutex operators_mutex;
  std::map<int, Operator> operators;
  int next_operator = ncclNumOps;
  std::set<void*> registered;

 private:
  struct Pending {
    void* out;
    std::size_t bytes;
    bool done = false;
  };

  void number(Call& call);
  void perform(std::vector<Call> calls);
  void read();
  void fail(const Failure& failure);
  void stop(Kind how, bool for_good);

  const std::string call_;
  const int rank_, size_;
  const int device_;
  const bool blocking_;
  std::string clique_;
  json table_;
  std::shared_ptr<Hub> spare_ = nullptr;
  std::atomic<int> shrinks_{0};
  std::thread reader_, job_;

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::shared_ptr<Connection> connection_;
  Failure failure_;
  bool ready_ = false, in_progress_ = false, finalized_ = false, stopped_ = false, reading_ = false;
  std::map<std::uint64_t, Pending> pending_;
  std::uint64_t next_id_ = 0, collectives_ = 0;
  std::map<int, std::uint64_t> sends_, recvs_;
  std::uint64_t issued_ = 0, performed_ = 0, inside_ = 0;
};

namespace {

// Reports open groups of this process.
struct Process {
  std::mutex mutex;
  std::map<const void*, std::pair<Clock::time_point, std::string>> waits;
  std::set<const void*> said;
  std::set<ncclComm_t> handles;
  bool running = false;
  std::atomic<int> operations{0};

  static Process& get() {
    static Process& process = *new Process;  // threads may still use it when the process ends
    return process;
  }
  // Reports `text` once if end() does not follow before the deadline.
  void begin(const void* what, const std::string& text) {
    const std::lock_guard lock(mutex);
    waits[what] = {Clock::now(), text};
    said.erase(what);
    if (std::exchange(running, true)) return;
    std::thread([this] {
      for (;;) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        const std::lock_guard again(mutex);
        for (const auto& [wait, since] : waits)
          if (Clock::now() - since.first > deadline() && said.insert(wait).second)
            say(since.second + " for " + std::to_string(deadline().count()) + " s now");
      }
    }).detach();
  }
  void end(const void* what) {
    const std::lock_guard lock(mutex);
    waits.erase(what);
  }
};

}  // namespace

void Member::join(const std::string& id, const std::string& session) {
  clique_ = id + session;
  std::string error;
  spare_ = Hub::make(error);
  if (!spare_) throw Failure{ncclSystemError, error};
  const std::string address = id.substr(std::strlen(id_mark) + 1, id.rfind(' ') - std::strlen(id_mark) - 1);
  auto fd = connect_to(address);
  if (!fd)
    throw Failure{ncclRemoteError,
                  fmt::format("{}: rank {} cannot reach {}, the process that created the unique id: {}", call_, rank_,
                              address, std::strerror(errno))};
  const auto connection = std::make_shared<Connection>(std::move(fd));
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) throw Failure{ncclInternalError, call_ + ": aborted"};
    connection_ = connection;
  }
  const char* host_id = std::getenv("NCCL_HOSTID");
  const int physical = physical_device(device_);
  const std::string host = host_name();
  const json hello = {{"id", id},
                      {"session", session},
                      {"call", call_},
                      {"rank", rank_},
                      {"size", size_},
                      {"who", fmt::format("host {}, pid {}", host, getpid())},
                      {"process", process_token()},
                      {"device", physical},
                      {"gpu", fmt::format("{} {}", host_id ? std::string("id ") + host_id : host, physical)},
                      {"spare", spare_->id()}};
  connection->send(Kind::hello, hello.dump());
  Frame frame;
  std::string text;
  if (!connection->receive(frame) || !connection->receive(text, frame.payload))
    throw Failure{ncclRemoteError, call_ + ": the process that created the unique id is gone"};
  if (frame.kind != Kind::welcome) throw Failure{static_cast<ncclResult_t>(frame.code), text};
  table_ = json::parse(text);
  const std::lock_guard lock(mutex_);
  if (stopped_) throw Failure{ncclInternalError, call_ + ": aborted"};
  ready_ = reading_ = true;
  reader_ = std::thread([this] { read(); });
}

// Reads the hub's messages until the connection ends. stop() joins this thread.
void Member::read() {
  Frame frame;
  Failure gone{ncclRemoteError, "the process that created the unique id of this communicator is gone"};
  while (connection_->receive(frame)) {
    std::string text;
    if (frame.kind == Kind::failed) {
      if (!connection_->receive(text, frame.payload)) break;
      gone = {static_cast<ncclResult_t>(frame.code), text};
      fail(gone);
      continue;
    }
    Pending pending{};
    {
      const std::lock_guard lock(mutex_);
      const auto found = pending_.find(frame.id);
      if (found == pending_.end() || found->second.bytes != frame.payload) break;
      pending = found->second;
    }
    if (!connection_->receive(pending.out, frame.payload)) break;
    const std::lock_guard lock(mutex_);
    pending_[frame.id].done = true;
    changed_.notify_all();
  }
  fail(gone);
  const std::lock_guard lock(mutex_);
  reading_ = false;
  changed_.notify_all();
}

void Member::fail(const Failure& failure) {
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
    try {
      function();
    } catch (const Failure& failure) {
      self->fail(failure);
    }
    const std::lock_guard lock(self->mutex_);
    self->in_progress_ = false;
    self->changed_.notify_all();
  });
  const std::lock_guard lock(mutex_);
  job_ = std::move(job);
  return ncclInProgress;
}

Failure Member::state() const {
  const std::lock_guard lock(mutex_);
  if (failure_.code != ncclSuccess) return failure_;
  return {in_progress_ ? ncclInProgress : ncclSuccess, ""};
}

void Member::require_usable(const std::string& call) const {
  const std::lock_guard lock(mutex_);
  if (failure_.code != ncclSuccess)
    throw Failure{failure_.code, call + ": the communicator has failed: " + failure_.text};
  if (in_progress_)
    throw Failure{
        ncclInvalidArgument,
        call + ": the call before it is still in progress: wait until ncclCommGetAsyncError says ncclSuccess"};
  if (finalized_) throw Failure{ncclInvalidUsage, call + " after ncclCommFinalize"};
  if (stopped_ || !ready_) throw Failure{ncclInvalidUsage, call + ": the communicator is not ready"};
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
  enqueue(streams[0], [self = shared_from_this(), calls = std::move(calls)] {
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
  const int operation = ++Process::get().operations;
  if (fault("error", operation)) fail({ncclRemoteError, "an error as HOST_NCCL_FAULT asks for"});
  std::vector<std::uint64_t> ids;
  std::shared_ptr<Connection> connection;
  {
    std::unique_lock lock(mutex_);
    if (fault("stuck", operation) || fault("error", operation)) changed_.wait(lock, [&] { return stopped_; });
    if (stopped_) {
      ++performed_;
      changed_.notify_all();
      return;
    }
    ++inside_;
    connection = connection_;
    for (const Call& call : calls) {
      ids.push_back(++next_id_);
      pending_[ids.back()] = {call.out, bytes_out(call.post, rank_, size_)};
    }
  }
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const Post& post = calls[i].post;
    connection->send({.kind = Kind::post, .id = ids[i], .post = post}, calls[i].in, bytes_in(post, rank_, size_));
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return (stopped_ && !reading_) || std::ranges::all_of(ids, [&](std::uint64_t id) { return pending_[id].done; });
  });
  for (const std::uint64_t id : ids) pending_.erase(id);
  ++performed_;
  --inside_;
  changed_.notify_all();
}

// Waits for all issued calls. If one does not complete, the hub reports who is late.
void Member::finalize(const char* call) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopped_ || performed_ == issued_; });
  if (stopped_) throw Failure{ncclInternalError, std::string(call) + ": aborted"};
  finalized_ = true;
}

void Member::stop(Kind how, bool for_good) {
  std::shared_ptr<Connection> connection;
  std::thread reader;
  {
    std::unique_lock lock(mutex_);
    if (!std::exchange(stopped_, true)) {
      connection = connection_;
      reader = std::move(reader_);
    }
    changed_.notify_all();
  }
  if (connection) {
    const bool said = reader.joinable() && connection->send(how, "");
    if (!said || how != Kind::goodbye) connection->shut_down();  // the hub answers a goodbye by closing
  }
  if (reader.joinable()) reader.join();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !in_progress_ && !reading_ && inside_ == 0; });
  if (for_good && spare_) spare_->close();
}

namespace {

std::shared_ptr<Member> member_of(ncclComm_t comm, const std::string& call) {
  if (!comm) throw Failure{ncclInvalidArgument, call + ": the communicator is null"};
  Process& process = Process::get();
  const std::lock_guard lock(process.mutex);
  if (!process.handles.count(comm)) throw Failure{ncclInvalidArgument, call + ": this is not a communicator"};
  if (!comm->member) throw Failure{ncclInvalidArgument, call + " after " + comm->ended_by};
  return comm->member;
}

ncclComm_t new_handle(std::shared_ptr<Member> member) {
  Process& process = Process::get();
  const std::lock_guard lock(process.mutex);
  const auto comm = new ncclComm{std::move(member), ""};
  process.handles.insert(comm);
  return comm;
}

// Takes the communicator out of its handle.
std::shared_ptr<Member> retire(ncclComm_t comm, const char* call) {
  const std::lock_guard lock(Process::get().mutex);
  comm->ended_by = call;
  return std::exchange(comm->member, nullptr);
}

struct Enqueued {
  std::shared_ptr<Member> member;
  Call call;
  cudaStream_t stream;
};
struct Start {
  std::shared_ptr<Member> member;
  std::function<void()> join;
  ncclComm_t* handle;
};

struct Group {
  int depth = 0;
  Failure failure;  // of the first call that failed
  std::vector<Enqueued> calls;
  std::vector<Start> starts;
  std::map<std::string, int> alone;  // per clique: the rank that this thread called for outside a group

  ~Group() {
    if (depth > 0 && !calls.empty())
      say(fmt::format(
          "a thread ended inside a group, without ncclGroupEnd: {} of its calls never made, the first is {}",
          calls.size(), text_of(calls[0].call.post)));
    Process::get().end(this);
  }
  void announce(const std::string& first) {
    if (depth > 1 && calls.size() + starts.size() == 1)  // depth 1 is the group of the call itself
      Process::get().begin(this, "a group has been open without ncclGroupEnd (its first call is " + first + ")");
  }
};
thread_local Group group;

ncclResult_t launch(const std::vector<Enqueued>& all) {
  std::vector<std::shared_ptr<Member>> members;
  for (const Enqueued& one : all)
    if (std::ranges::find(members, one.member) == members.end()) members.push_back(one.member);
  ncclResult_t worst = ncclSuccess;
  for (const auto& member : members) {
    std::vector<Call> calls;
    std::vector<cudaStream_t> streams;
    for (const Enqueued& one : all) {
      if (one.member != member) continue;
      calls.push_back(one.call);
      if (std::ranges::find(streams, one.stream) == streams.end()) streams.push_back(one.stream);
    }
    for (const auto& [from, to] : {std::pair(Op::send, Op::recv), std::pair(Op::recv, Op::send)}) {
      const auto to_itself = [&](Op op) {
        return std::ranges::count_if(calls,
                                     [&](const Call& c) { return c.post.op == op && c.post.peer == member->rank(); });
      };
      if (to_itself(from) > to_itself(to))
        throw Failure{ncclInvalidUsage, fmt::format("{} of rank {} with itself, without the {} in the same group",
                                                    name_of(from), member->rank(), name_of(to))};
    }
    const ncclResult_t code = member->run([member, calls, streams] { member->issue(calls, streams); });
    if (code != ncclSuccess) worst = code;
  }
  return worst;
}

// Throws the first failure.
ncclResult_t start(const std::vector<Start>& starts) {
  ncclResult_t worst = ncclSuccess;
  std::optional<Failure> first;
  std::vector<std::thread> threads;
  std::mutex mutex;
  for (const Start& one : starts) {
    const auto run = [&, one] {
      try {
        const ncclResult_t code = one.member->run(one.join);
        const std::lock_guard lock(mutex);
        if (code != ncclSuccess) worst = code;
      } catch (const Failure& failure) {
        const std::lock_guard lock(mutex);
        *one.handle = nullptr;
        if (!first) first = failure;
      }
    };
    if (starts.size() == 1 || !one.member->blocking())
      run();
    else
      threads.emplace_back(run);
  }
  for (std::thread& thread : threads) thread.join();
  if (first) throw *first;
  return worst;
}

ncclResult_t end_group() {
  Group& own = group;
  if (own.depth == 0) throw Failure{ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart"};
  if (--own.depth > 0) return ncclSuccess;
  Process::get().end(&own);
  const auto calls = std::exchange(own.calls, {});
  const auto starts = std::exchange(own.starts, {});
  if (const Failure in_group = std::exchange(own.failure, {}); in_group.code != ncclSuccess)
    throw Failure{in_group.code, "ncclGroupEnd: in this group: " + in_group.text};
  const ncclResult_t started = start(starts);
  return calls.empty() ? started : launch(calls);
}

// Runs the body of a function of NCCL's interface. An error also makes the open group fail.
template <class Function>
ncclResult_t guarded(Function&& function) try {
  if constexpr (std::is_void_v<decltype(function())>) {
    function();
    return ncclSuccess;
  } else {
    return function();
  }
} catch (const Failure& failure) {
  last_error = failure.text;
  if (group.depth > 0 && group.failure.code == ncclSuccess) group.failure = failure;
  return failure.code;
}

std::optional<DataType> type_of(ncclDataType_t type) {
  constexpr std::array in_our_order = {ncclFloat32, ncclFloat64, ncclFloat16, ncclBfloat16, ncclInt8,
                                       ncclUint8,   ncclInt32,   ncclUint32,  ncclInt64,    ncclUint64};
  const auto found = std::ranges::find(in_our_order, type);
  if (found == in_our_order.end()) return std::nullopt;
  return multinode::data_types[static_cast<std::size_t>(found - in_our_order.begin())];
}

double number_at(DataType type, const void* at) {
  return multinode::with_type(type, [&](auto value) {
    std::memcpy(&value, at, sizeof value);
    return static_cast<double>(value);
  });
}

ncclResult_t put(Op op, const void* in, void* out, std::size_t count, ncclDataType_t type, int redop, int peer,
                 ncclComm_t comm, cudaStream_t stream) {
  return guarded([&] {
    const std::string name = name_of(op);
    const auto owner = member_of(comm, name);
    Member& member = *owner;
    member.require_usable(name);
    const auto require = [&](bool right, ncclResult_t code, const std::string& why) {
      if (!right) throw Failure{code, fmt::format("{} on rank {}: {}", name, member.rank(), why)};
    };
    Call call{{.op = op, .count = count}, in, out};
    const std::optional<DataType> known = type_of(type);
    require(known.has_value(), ncclInvalidArgument,
            fmt::format("host-nccl does not support type {}", static_cast<int>(type)));
    call.post.type = *known;
    if (reduces(op)) {
      using enum multinode::Reduction;
      constexpr std::array built_in = {sum, product, max, min, average};
      if (redop >= 0 && redop < ncclNumOps) {
        call.post.reduction = built_in[static_cast<std::size_t>(redop)];
      } else {
        const std::lock_guard lock(member.operators_mutex);
        const auto found = member.operators.find(redop);
        require(found != member.operators.end(), ncclInvalidArgument,
                fmt::format("no reduction {} in this communicator", redop));
        const auto& [its_type, factor] = found->second;
        require(its_type == *known, ncclInvalidArgument,
                fmt::format("the reduction is of {}, the call of {}", multinode::name_of(its_type),
                            multinode::name_of(*known)));
        call.post.multiplied = true;
        call.post.factor = factor;
      }
    }
    if (has_root(op) || !is_collective(op)) {
      require(
          peer >= 0 && peer < member.size(), ncclInvalidArgument,
          fmt::format("{} {} of a communicator of {} ranks", is_collective(op) ? "root" : "peer", peer, member.size()));
      call.post.peer = peer;
    }
    const cudaStream_t found = find_stream(stream, member.device());
    require(found, ncclInvalidArgument, "the stream was destroyed or never created");
    require(device_of(found) == member.device(), ncclInvalidUsage,
            fmt::format("the stream is of device {}, the communicator's is {}", device_of(found), member.device()));
    const std::string in_refusal = refusal(in, bytes_in(call.post, member.rank(), member.size()), member.device());
    require(in_refusal.empty(), ncclInvalidArgument, "the send buffer: " + in_refusal);
    const std::string out_refusal = refusal(out, bytes_out(call.post, member.rank(), member.size()), member.device());
    require(out_refusal.empty(), ncclInvalidArgument, "the receive buffer: " + out_refusal);
    if (group.depth == 0) {
      const int other = group.alone.try_emplace(member.clique(), member.rank()).first->second;
      require(
          other == member.rank(), ncclInvalidUsage,
          fmt::format("this thread also calls for rank {}: such calls belong between ncclGroupStart and ncclGroupEnd",
                      other));
    }
    ncclGroupStart();
    group.calls.push_back({owner, call, found});
    group.announce(text_of(call.post));
    return end_group();
  });
}

// Whether the new communicator's calls block; `otherwise` if `config` does not say.
bool blocking_of(const std::string& call, const ncclConfig_t* config, bool otherwise) {
  if (!config) return otherwise;
  ncclConfig_t initial = NCCL_CONFIG_INITIALIZER;
  if (config->magic != initial.magic || config->size != initial.size)
    throw Failure{ncclInvalidArgument, call + ": the ncclConfig_t is not from NCCL_CONFIG_INITIALIZER"};
  if (config->blocking == NCCL_CONFIG_UNDEF_INT) return otherwise;
  if (config->blocking != 0 && config->blocking != 1)
    throw Failure{ncclInvalidArgument, call + ": blocking must be 0 or 1"};
  return config->blocking == 1;
}

// Sets *comm to a new communicator, which joins the hub of `id` when the group ends.
ncclResult_t begin(ncclComm_t* comm, const std::shared_ptr<Member>& member, const std::string& call,
                   const std::string& id, const std::string& session) {
  *comm = new_handle(member);
  ncclGroupStart();
  group.starts.push_back({member, [member, id, session] { member->join(id, session); }, comm});
  group.announce(call);
  return end_group();
}

ncclResult_t initialize(const std::string& call, ncclComm_t* comm, int size, const ncclUniqueId& id, int rank,
                        const ncclConfig_t* config) {
  if (!comm) throw Failure{ncclInvalidArgument, call + ": the output pointer is null"};
  *comm = nullptr;
  const bool blocking = blocking_of(call, config, true);
  if (size < 1 || rank < 0 || rank >= size)
    throw Failure{ncclInvalidArgument, fmt::format("{}: rank {} of {} ranks", call, rank, size)};
  const std::string text(id.internal, strnlen(id.internal, sizeof id.internal));
  if (!text.starts_with(std::string(id_mark) + " "))
    throw Failure{ncclInvalidArgument, call +
                                           ": the unique id is not from ncclGetUniqueId of host-nccl: all ranks must "
                                           "have the same id and use host-nccl"};
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess)
    throw Failure{ncclUnhandledCudaError, call + ": " + cudaGetErrorString(cudaErrorNoDevice)};
  return begin(comm, std::make_shared<Member>(call, rank, size, device, blocking), call, text, "init");
}

void register_buffer(const std::string& call, ncclComm_t comm, void* memory, std::size_t bytes, void** handle) {
  const auto member = member_of(comm, call);
  if (const std::string why = refusal(memory, bytes, member->device()); !why.empty())
    throw Failure{ncclInvalidArgument, call + ": " + why};
  const std::lock_guard lock(member->operators_mutex);
  *handle = memory;
  if (!member->registered.insert(memory).second)
    throw Failure{ncclInvalidUsage, call + ": this buffer is registered already"};
}
void deregister_buffer(const std::string& call, ncclComm_t comm, void* handle) {
  const auto member = member_of(comm, call);
  const std::lock_guard lock(member->operators_mutex);
  if (member->registered.erase(handle) == 0)
    throw Failure{ncclInvalidArgument, call + ": no such buffer is registered"};
}

// Reports registered buffers and reductions that the program leaked.
void say_left(const Member& member, const char* call) {
  const auto say_one = [&](std::size_t count, const char* what) {
    if (count)
      say(fmt::format("{} on rank {}: leaked {} {}{}", call, member.rank(), count, what, count > 1 ? "s" : ""));
  };
  say_one(member.registered.size(), "registered buffer");
  say_one(member.operators.size(), "reduction");
}

struct AtExit {
  ~AtExit() {
    std::size_t left = 0;
    {
      const std::lock_guard lock(Process::get().mutex);
      for (const ncclComm_t comm : Process::get().handles) left += comm->member ? 1 : 0;
    }
    if (left) say(fmt::format("leaked at exit: {} communicator{}", left, left > 1 ? "s" : ""));
    wait_for_guests();
  }
} at_exit;

}  // namespace
}  // namespace host_nccl

using namespace host_nccl;

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t code) {
  static constexpr const char* texts[] = {"no error",
                                          "unhandled cuda error",
                                          "unhandled system error",
                                          "internal error",
                                          "invalid argument",
                                          "invalid usage",
                                          "remote process exited or there was a network error",
                                          "NCCL operation in progress"};
  return static_cast<std::size_t>(code) < std::size(texts) ? texts[code] : "unknown result code";
}
const char* ncclGetLastError(ncclComm_t) { return last_error.c_str(); }

// Communicators

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return guarded([&] {
    std::string error, text = "host-nccl without devices";  // like NCCL, fails later, when the GPU is needed
    if (host_nccl_description()) {
      const auto hub = Hub::make(error);
      if (!hub) throw Failure{ncclInvalidUsage, "ncclGetUniqueId: " + error};
      text = hub->id();
    }
    *id = {};
    text.copy(id->internal, sizeof id->internal - 1);
  });
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  return guarded([&] { return initialize("ncclCommInitRankConfig", comm, size, id, rank, config); });
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  return guarded([&] { return initialize("ncclCommInitRank", comm, size, id, rank, nullptr); });
}
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
ncclResult_t ncclCommShrink(ncclComm_t comm, int* excluded, int count, ncclComm_t* made, ncclConfig_t* config,
                            int flags) {
  return guarded([&] {
    const std::string call = "ncclCommShrink";
    *made = nullptr;
    const auto parent = member_of(comm, call);
    if (flags & NCCL_SHRINK_ABORT)
      parent->end_operations();
    else
      parent->require_usable(call);
    const bool blocking = blocking_of(call, config, parent->blocking());
    std::vector<int> survivors;
    for (int rank = 0; rank < parent->size(); ++rank)
      if (std::find(excluded, excluded + count, rank) == excluded + count) survivors.push_back(rank);
    const auto own = std::ranges::find(survivors, parent->rank());
    if (count < 1 || survivors.size() + static_cast<std::size_t>(count) != static_cast<std::size_t>(parent->size()) ||
        own == survivors.end())
      throw Failure{ncclInvalidArgument,
                    fmt::format("{} on rank {}: excluded must list other ranks of the communicator, each once", call,
                                parent->rank())};
    const auto member = std::make_shared<Member>(call, static_cast<int>(own - survivors.begin()),
                                                 static_cast<int>(survivors.size()), parent->device(), blocking);
    return begin(made, member, call, parent->spare_id_of(survivors[0]), parent->next_shrink());
  });
}
#endif
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  return guarded([&] {
    const Failure state = member_of(comm, "ncclCommGetAsyncError")->state();
    *error = state.code;
    if (!state.text.empty()) last_error = state.text;
  });
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return guarded([&] {
    if (!comm) return ncclSuccess;
    const char* call = "ncclCommFinalize";
    const auto member = member_of(comm, call);
    member->require_usable(call);
    return member->run([member, call] { member->finalize(call); });
  });
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  return guarded([&] {
    if (!comm) return;
    const char* call = "ncclCommDestroy";
    const auto member = member_of(comm, call);
    try {
      member->finalize(call);
    } catch (const Failure&) {  // it was aborted
    }
    say_left(*member, call);
    retire(comm, call);
    member->destroy();
  });
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return guarded([&] {
    if (!comm) return;
    const auto member = member_of(comm, "ncclCommAbort");
    if (const char* debug = std::getenv("NCCL_DEBUG"); debug && std::string(debug) == "INFO")
      say(fmt::format("ncclCommAbort on rank {}", member->rank()));
    retire(comm, "ncclCommAbort");
    member->abort();
  });
}

// Buffers and reductions

ncclResult_t ncclMemAlloc(void** memory, std::size_t bytes) {
  return cudaMalloc(memory, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
ncclResult_t ncclMemFree(void* memory) {
  return cudaFree(memory) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* memory, std::size_t bytes, void** handle) {
  return guarded([&] { register_buffer("ncclCommRegister", comm, memory, bytes, handle); });
}
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  return guarded([&] { deregister_buffer("ncclCommDeregister", comm, handle); });
}
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* memory, std::size_t bytes, ncclWindow_t* window, int) {
  void** handle = reinterpret_cast<void**>(window);
  return guarded([&] { register_buffer("ncclCommWindowRegister", comm, memory, bytes, handle); });
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  return guarded([&] { deregister_buffer("ncclCommWindowDeregister", comm, window); });
}
#endif
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
  return guarded([&] {
    const auto member = member_of(comm, "ncclRedOpCreatePreMulSum");
    const std::optional<DataType> known = type_of(type);
    if (!known || residence != ncclScalarHostImmediate)
      throw Failure{ncclInvalidArgument,
                    "ncclRedOpCreatePreMulSum: host-nccl does not support this type or residence of the scalar"};
    const std::lock_guard lock(member->operators_mutex);
    *op = static_cast<ncclRedOp_t>(member->next_operator++);
    member->operators.emplace(*op, Member::Operator{*known, number_at(*known, scalar)});
  });
}
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  return guarded([&] {
    const auto member = member_of(comm, "ncclRedOpDestroy");
    const std::lock_guard lock(member->operators_mutex);
    if (member->operators.erase(op) == 0) throw Failure{ncclInvalidArgument, "ncclRedOpDestroy: no such reduction"};
  });
}

// Operations

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() { return guarded(end_group); }

ncclResult_t ncclAllReduce(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return put(Op::all_reduce, in, out, count, type, op, 0, comm, stream);
}
ncclResult_t ncclReduce(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return put(Op::reduce, in, out, count, type, op, root, comm, stream);
}
ncclResult_t ncclReduceScatter(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return put(Op::reduce_scatter, in, out, count, type, op, 0, comm, stream);
}
ncclResult_t ncclAllGather(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return put(Op::all_gather, in, out, count, type, 0, 0, comm, stream);
}
ncclResult_t ncclBroadcast(const void* in, void* out, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return put(Op::broadcast, in, out, count, type, 0, root, comm, stream);
}
ncclResult_t ncclSend(const void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return put(Op::send, data, nullptr, count, type, 0, peer, comm, stream);
}
ncclResult_t ncclRecv(void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return put(Op::recv, nullptr, data, count, type, 0, peer, comm, stream);
}
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 3)
ncclResult_t ncclAlltoAll(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream) {
  return put(Op::all_to_all, in, out, count, type, 0, 0, comm, stream);
}
ncclResult_t ncclGather(const void* in, void* out, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                        cudaStream_t stream) {
  return put(Op::gather, in, out, count, type, 0, root, comm, stream);
}
ncclResult_t ncclScatter(const void* in, void* out, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                         cudaStream_t stream) {
  return put(Op::scatter, in, out, count, type, 0, root, comm, stream);
}
#endif

}  // extern "C"
