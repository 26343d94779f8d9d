#include "member.hpp"

#include "device.hpp"
#include "hub.hpp"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace emulated_gpu {

namespace {

constexpr std::size_t most_bytes_of_piece = std::size_t{1} << 20;

// EMULATED_GPU_FAULT=stuck:60 or error:60, for tests of programs: after that many operations of this process none
// completes any more, or the communicator fails.
bool fault(const char* kind, int operation) {
  const char* setting = std::getenv("EMULATED_GPU_FAULT");
  const std::size_t length = std::strlen(kind);
  return setting && std::strncmp(setting, kind, length) == 0 && setting[length] == ':' &&
         operation > std::atoi(setting + length + 1);
}

bool has_more(const CallMessage& post) { return post.length > 0 && post.begin + post.length < post.count; }

}  // namespace

Member::Member(const std::string& call, const std::string& id, int rank, int size, int device,
               const std::string& machine)
    : rank_(rank), size_(size), device_(device) {
  const std::string address = id.substr(std::strlen(id_mark) + 1, id.rfind(' ') - std::strlen(id_mark) - 1);
  auto fd = connect_to(address);
  if (!fd)
    throw NcclError{ncclRemoteError,
                    fmt::format("{}: rank {} cannot reach {}, the process that created the unique id: {}", call, rank_,
                                address, std::strerror(errno))};
  connection_ = std::make_unique<Connection>(std::move(fd));
  const Hello hello{.id = id,
                    .call = call,
                    .who = fmt::format("host {}, pid {}", host_name(), getpid()),
                    .process = process_token(),
                    .machine = machine,
                    .rank = rank,
                    .size = size,
                    .device = physical_device(device)};
  connection_->send(Kind::hello, nlohmann::json(hello).dump());
  Frame frame;
  std::string text;
  if (!connection_->receive(frame) || !connection_->receive(text, frame.payload))
    throw NcclError{ncclRemoteError, call + ": the process that created the unique id is gone"};
  if (frame.kind != Kind::welcome) throw NcclError{static_cast<ncclResult_t>(frame.code), text};
  hub_is_here_ = text == machine;
  reader_ = std::thread([this] { read(); });
}

// Reads the hub's messages until the connection ends. stop() joins this thread.
void Member::read() {
  NcclError gone{hub_is_here_ ? ncclSuccess : ncclRemoteError,  // NCCL does not notice it on its own machine
                 "the process that created the unique id of this communicator is gone"};
  for (Frame frame; connection_->receive(frame);) {
    if (frame.kind == Kind::failed) {
      gone.code = static_cast<ncclResult_t>(frame.code);
      if (!connection_->receive(gone.text, frame.payload)) break;
      fail(gone);
      continue;
    }
    std::vector<std::byte> data(frame.payload);
    if (!connection_->receive(data.data(), data.size())) break;
    const std::lock_guard lock(mutex_);
    const auto found = pending_.find(frame.id);
    if (found == pending_.end()) continue;  // its call has failed
    found->second = std::move(data);
    changed_.notify_all();
  }
  fail(gone);
  const std::lock_guard lock(mutex_);
  reading_ = false;
  changed_.notify_all();
}

void Member::fail(const NcclError& failure) {
  const std::lock_guard lock(mutex_);
  if (failure_.code == ncclSuccess && !stopped_) failure_ = failure;
  changed_.notify_all();
}

NcclError Member::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Member::require_usable(const std::string& call) const {
  const std::lock_guard lock(mutex_);
  if (failure_.code != ncclSuccess)
    throw NcclError{failure_.code, call + ": the communicator has failed: " + failure_.text};
  if (finalized_) throw NcclError{ncclInvalidUsage, call + " after ncclCommFinalize"};
}

// With mutex_ held: sets the number of the call among those of its kind.
void Member::number(Call& call) {
  const int peer = call.post.peer;
  call.post.number = ++(call.post.op == Op::send   ? sends_[peer]
                        : call.post.op == Op::recv ? recvs_[peer]
                                                   : collectives_);
}

void Member::issue(std::vector<Call> calls, cudaStream_t stream) {
  count_use(1);
  // Lives as long as a call can be made: beyond the call only in a graph.
  const std::shared_ptr<Member> use(this, [self = shared_from_this()](Member*) { self->count_use(-1); });
  enqueue(stream, [use, calls = std::move(calls)] {
    const std::shared_ptr<Member> self = use->shared_from_this();
    std::vector<Call> numbered = calls;
    {
      const std::lock_guard lock(self->mutex_);
      for (Call& call : numbered) self->number(call);
      ++self->issued_;
    }
    return [self, numbered] { self->perform(numbered); };
  });
}

// Runs on a stream's thread. After a failure it returns only when the communicator is aborted, as in NCCL.
void Member::perform(const std::vector<Call>& calls) {
  static std::atomic<int> operations{0};
  const int operation = ++operations;
  if (fault("error", operation)) fail({ncclRemoteError, "an error as EMULATED_GPU_FAULT asks for"});
  if (fault("stuck", operation) || fault("error", operation)) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_; });
  }
  start_late_work();  // the peer may be another stream's call
  transact(calls, true);
  for (const auto& [post, in, out] : calls) {
    touch(view(in), blocks_in(post, rank_, size_) * post.bytes(post.count), Touch::read, name_of(post.op));
    touch(view(out), blocks_out(post, rank_, size_) * post.bytes(post.count), Touch::write, name_of(post.op));
  }
  const std::lock_guard lock(mutex_);
  ++performed_;
  changed_.notify_all();
}

// Sends the calls to the hub, each piece after the answer to the one before it. Returns false if the communicator ended
// first; calls that are not of a stream also end when it fails.
bool Member::transact(const std::vector<Call>& calls, bool of_stream) {
  std::unique_lock lock(mutex_);
  if (stopped_) return false;
  ++inside_;
  std::map<std::uint64_t, Call> open;  // by the id of the piece
  const auto send = [&](Call call, std::uint64_t begin) {
    CallMessage& post = call.post;
    post.begin = begin;
    post.length = post.connects ? 0 : std::min(post.count - begin, most_bytes_of_piece / post.bytes(1));
    const std::uint64_t id = ++next_id_;
    pending_[id];
    lock.unlock();
    const std::byte* const in = view(static_cast<const std::byte*>(call.in));
    const std::size_t bytes = post.bytes(post.length), all = bytes * blocks_in(post, rank_, size_);
    std::vector<std::byte> gathered(all > bytes ? all : 0);
    for (std::size_t at = 0; at < gathered.size(); at += bytes)
      std::memcpy(gathered.data() + at, in + post.place(at), bytes);
    const std::byte* const data = all > bytes ? gathered.data() : all ? in + post.bytes(post.begin) : nullptr;
    connection_->send({.kind = Kind::post, .id = id, .post = post}, data, all);
    lock.lock();
    open.emplace(id, call);
  };
  for (const Call& call : calls) send(call, 0);
  while (!open.empty()) {
    auto next = open.end();  // with the next piece to send, or when all have their answers
    const auto answered = [&](const auto& one) { return pending_[one.first].has_value(); };
    const auto over = [&] {
      next = std::ranges::find_if(open, [&](const auto& one) { return answered(one) && has_more(one.second.post); });
      if (std::ranges::all_of(open, answered)) next = open.begin();
      return next != open.end() || stopped_ || (!of_stream && failure_.code != ncclSuccess);
    };
    for (bool said = false; !changed_.wait_for(lock, deadline(), over);)
      if (!reading_ && !std::exchange(said, true))
        say(
            fmt::format("rank {} waits in vain, because the process that created the unique id is gone (NCCL does not "
                        "notice that on one machine)",
                        rank_));
    if (next == open.end()) break;
    const auto [id, call] = *next;
    const CallMessage& post = call.post;
    open.erase(next);
    const std::vector<std::byte> data = std::move(*pending_.extract(id).mapped());
    lock.unlock();
    const std::size_t bytes = post.bytes(post.length);
    for (std::size_t at = 0; at < data.size(); at += bytes)
      std::memcpy(view(static_cast<std::byte*>(call.out)) + post.place(at), data.data() + at, bytes);
    lock.lock();
    if (has_more(post)) send(call, post.begin + post.length);
  }
  for (const auto& [id, call] : open) pending_.erase(id);
  --inside_;
  changed_.notify_all();
  return open.empty();
}

void Member::connect(const std::vector<Call>& calls) {
  std::vector<Call> first;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [post, in, out] : calls) {
      const bool collective = is_collective(post.op);
      if (collective ? size_ == 1 || NCCL_VERSION_CODE < NCCL_VERSION(2, 22, 0) : post.peer == rank_) continue;
      const Op kind = collective && !is_of_messages(post.op) ? Op::all_reduce : post.op;
      if (!connected_.emplace(kind, collective ? -1 : post.peer).second) continue;
      first.emplace_back(Call{.post = post});
      first.back().post.connects = true;
      first.back().post.number = 1;
    }
  }
  if (first.empty() || transact(first, false)) return;
  const NcclError why = failure();
  throw NcclError{why.code == ncclSuccess ? ncclInternalError : why.code,
                  fmt::format("{}: the communicator {}", name_of(first[0].post.op),
                              why.text.empty() ? "was aborted" : "has failed: " + why.text)};
}

void Member::count_use(int change) {
  const std::lock_guard lock(mutex_);
  uses_ += change;
  changed_.notify_all();
}

void Member::wait_for_graphs(std::unique_lock<std::mutex>& lock, const char* call) {
  const auto unused = [&] { return uses_ == 0; };
  if (changed_.wait_for(lock, deadline(), unused)) return;
  say(
      fmt::format("{} on rank {} has waited for {} s for a graph that holds a captured call of this communicator "
                  "(destroy the graph and its executable before)",
                  call, rank_, deadline().count()));
  changed_.wait(lock, unused);
}

// Waits for all issued calls. If one does not complete, the hub reports who is late.
void Member::finalize(const char* call) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopped_ || performed_ == issued_; });
  wait_for_graphs(lock, call);
  finalized_ = true;
}

void Member::stop(Kind how) {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }
  const bool said = connection_->send(how, "");
  if (!said || how != Kind::goodbye) connection_->shut_down();  // the hub answers a goodbye by closing
  reader_.join();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return inside_ == 0; });
  wait_for_graphs(lock, "ncclCommAbort");
}

}  // namespace emulated_gpu
