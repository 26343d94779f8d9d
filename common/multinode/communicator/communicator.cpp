#include <multinode/communicator/communicator_backends.hpp>
#include <multinode/communicator/device.hpp>
#include <multinode/communicator/shared_memory.hpp>

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <thread>

namespace multinode {

using Clock = std::chrono::steady_clock;

namespace {

std::string counted(std::size_t count, DataType type) {
  return std::to_string(count) + " of " + std::string(name_of(type));
}

// The communicator's thread mostly waits for other ranks, often on the same core as a thread that computes. In
// Linux 6.12 or newer a thread with shorter time slices preempts the other one as soon as it wakes up. With equal
// slices each message may wait milliseconds for the end of the other's slice. On older kernels, or without permission,
// this has no effect.
void take_short_time_slices() {
  struct {  // the kernel's sched_attr, for which the C library has no header yet
    std::uint32_t size, policy;
    std::uint64_t flags;
    std::int32_t nice;
    std::uint32_t priority;
    std::uint64_t runtime, deadline, period;
  } attributes{};
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0u) != 0) return;
  if (attributes.policy != 0) return;  // not SCHED_OTHER: the user has chosen another policy
  attributes.runtime = 100'000;        // ns, the minimum
  syscall(SYS_sched_setattr, 0, &attributes, 0u);
}

}  // namespace

std::string_view name_of(Backend backend) {
  static constexpr const char* names[] = {"auto", "mpi", "nccl", "gloo"};
  return names[static_cast<std::size_t>(backend)];
}

Backend parse_backend(std::string_view name) {
  for (const Backend backend : {Backend::automatic, Backend::mpi, Backend::nccl, Backend::gloo})
    if (name == name_of(backend)) return backend;
  throw UsageError("--backend must be auto, mpi, nccl or gloo, not '" + std::string(name) + "'");
}

// Calls for the communicator's thread, or, while that has nothing to do, calls that wait() will perform (`deferred_`).
// Everything but carry_out runs on the thread that uses the communicator.
class Communicator::Queue {
 public:
  explicit Queue(Communicator& communicator) : communicator_(communicator) {}

  // No call is in progress, and none has failed: one load.
  bool idle() const noexcept { return completed_.load(std::memory_order_acquire) == submitted_; }

  std::uint64_t submit(const Call& call, bool may_wait) {
    if (may_wait && completed_.load(std::memory_order_acquire) + deferred_.size() == submitted_) {
      deferred_.push_back(call);
      return ++submitted_;
    }
    {
      const std::lock_guard lock(mutex_);
      calls_.insert(calls_.end(), deferred_.begin(), deferred_.end());
      calls_.push_back(call);
    }
    deferred_.clear();
    if (thread_.joinable())
      wake_.notify_one();
    else
      thread_ = std::jthread([this](const std::stop_token& stop) { carry_out(stop); });
    return ++submitted_;
  }

  // Waits for the calls up to `number`; throws what one of them threw.
  void wait_for(std::uint64_t number) {
    perform_deferred(number);
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return finished_ >= number; });
    if (error_ && failed_ <= number) std::rethrow_exception(error_);
  }
  void drain() { wait_for(submitted_); }

  // Ends the thread after all calls, or, if the other ranks may not join them, after the call in progress, which gets
  // two seconds.
  void stop(bool unwinding) {
    if (!unwinding) perform_deferred(submitted_);
    if (!thread_.joinable()) return;
    if (unwinding) {
      std::unique_lock lock(mutex_);
      calls_.clear();
      if (!done_.wait_for(lock, std::chrono::seconds(2), [&] { return !busy_; }))
        communicator_.world().watchdog().fail("failed while " + std::string(current_) + " was in progress", exit_wrong);
    }
    thread_.request_stop();
    thread_.join();
  }

 private:
  void carry_out(const std::stop_token& stop) {
    take_short_time_slices();
    std::unique_lock lock(mutex_);
    while (wake_.wait(lock, stop, [&] { return !calls_.empty(); })) {
      const Call call = calls_.front();
      calls_.pop_front();
      perform(call, lock);
      done_.notify_all();
    }
  }

  // The deferred calls up to `number`; they are the last ones, and those before them are complete.
  void perform_deferred(std::uint64_t number) {
    while (!deferred_.empty() && number + deferred_.size() > submitted_) {
      const Call call = deferred_.front();
      deferred_.pop_front();
      std::unique_lock lock(mutex_);
      perform(call, lock);
    }
  }

  void perform(const Call& call, std::unique_lock<std::mutex>& lock) {
    if (!error_) {
      busy_ = true;
      current_ = call.name();
      lock.unlock();
      std::exception_ptr error;
      try {
        communicator_.perform(call);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      busy_ = false;
      if (error) {
        error_ = error;
        failed_ = finished_ + 1;
      }
    }
    ++finished_;
    if (!error_) completed_.store(finished_, std::memory_order_release);  // after a failure: never idle again
  }

  Communicator& communicator_;
  std::uint64_t submitted_ = 0;
  std::deque<Call> deferred_;
  std::atomic<std::uint64_t> completed_{0};
  std::mutex mutex_;  // guards the members below, except the thread
  std::condition_variable_any wake_;
  std::condition_variable done_;
  std::deque<Call> calls_;
  bool busy_ = false;
  const char* current_ = "";
  std::uint64_t finished_ = 0, failed_ = 0;
  std::exception_ptr error_;
  std::jthread thread_;
};

Communicator::Communicator(World& world, Carrier carrier)
    : world_(world),
      watchdog_(world.watchdog()),
      rank_(world.rank()),
      size_(world.size()),
      carrier_(carrier),
      queue_(std::make_shared<Queue>(*this)) {}

Communicator::~Communicator() = default;

void Communicator::stop() { queue_->stop(unwinding()); }

void Communicator::synchronize() {
  if (!queue_->idle()) queue_->drain();
}

#ifdef MULTINODE_HAVE_CUDA
void Communicator::set_stream(cudaStream_t) {}
#endif

Work Communicator::start(const Call& call) {
  class Queued : public Work::State {
   public:
    Queued(std::shared_ptr<Queue> queue, std::uint64_t number) : queue_(std::move(queue)), number_(number) {}
    void wait() override { queue_->wait_for(number_); }

   private:
    std::shared_ptr<Queue> queue_;
    std::uint64_t number_;
  };
  return Work(
      std::make_unique<Queued>(queue_, queue_->submit(call, shared(call.out) && call.kind == Call::Kind::all_reduce)));
}

const char* Communicator::Call::name() const {
  static constexpr const char* names[] = {"broadcast", "all_reduce", "reduce_scatter", "all_gather",
                                          "send",      "recv",       "barrier"};
  return own_name ? own_name : names[static_cast<std::size_t>(kind)];
}

void Communicator::perform(const Call& call) {
  const bool pair = call.kind == Call::Kind::send || call.kind == Call::Kind::recv;
  const bool observed = observer_ && carrier_ == Carrier::thread;
  const auto begin = observed ? Clock::now() : Clock::time_point();
  {
    const auto inside = watchdog_.enter(call.name(), pair ? call.peer : everyone);
    carry_out(call);
  }
  if (observed) observer_(call.name(), std::max(call.in.bytes(), call.out.bytes()), begin, Clock::now());
}

void Communicator::carry_out(const Call& call) {
  using enum Call::Kind;
  switch (call.kind) {
    case broadcast:
      return do_broadcast(call.out, call.peer);
    case all_reduce:
      return all_reduce_block(call.out, call.reduction, call.factor);
    case reduce_scatter:
      if (SharedMemory* const memory = is_own_part(call.out, call.in) ? memory_of(call.in) : nullptr)
        return memory->reduce_scatter(call.out, call.reduction, call.factor);
      do_reduce_scatter(call.in, call.out, call.reduction);
      if (call.factor != 1) scale(call.out.type, call.out.data, call.out.count, call.factor);
      return;
    case all_gather:
      if (SharedMemory* const memory = is_own_part(call.in, call.out) ? memory_of(call.out) : nullptr)
        return memory->all_gather(call.out);
      return do_all_gather(call.in, call.out);
    case send:
      return do_send(call.in, call.peer);
    case recv:
      return do_recv(call.out, call.peer);
    case barrier:
      return do_barrier();
  }
}

void Communicator::all_reduce_block(const Block& block, Reduction reduction, double factor) {
  if (SharedMemory* const memory = memory_of(block)) return memory->all_reduce(block, reduction, factor);
  do_all_reduce(block, reduction);
  if (factor != 1) scale(block.type, block.data, block.count, factor);
}

bool Communicator::is_own_part(const ConstBlock& part, const ConstBlock& whole) const {
  return part.data == static_cast<const std::byte*>(whole.data) + static_cast<std::size_t>(rank_) * part.bytes();
}

SharedMemory* Communicator::memory_of(const ConstBlock& block) const {
  for (const auto& memory : memory_)
    if (memory->holds(block)) return memory.get();
  return nullptr;
}

std::byte* Communicator::allocate_bytes(std::size_t bytes) {
  if (!queue_->idle()) queue_->drain();  // the communicator's thread looks for blocks in memory_
  memory_.push_back(std::make_unique<SharedMemory>(world_, bytes, carrier_ == Carrier::thread));
  return memory_.back()->mine().data();
}

Communicator::Call Communicator::broadcast_call(Block block, int root) const {
  if (root < 0 || root >= size_)
    throw std::invalid_argument("broadcast: root " + std::to_string(root) + " is not a rank: there are " +
                                std::to_string(size_));
  return {.kind = Call::Kind::broadcast, .peer = root, .in = {}, .out = block};
}

Communicator::Call Communicator::reduce_scatter_call(ConstBlock in, Block out, Reduction reduction) const {
  if (in.type != out.type || in.count != out.count * static_cast<std::size_t>(size_))
    throw std::invalid_argument("reduce_scatter: " + counted(in.count, in.type) + " in, " +
                                counted(out.count, out.type) + " out, with " + std::to_string(size_) +
                                " ranks: in must have one block of the size of out per rank");
  return {.kind = Call::Kind::reduce_scatter, .reduction = reduction, .in = in, .out = out};
}

Communicator::Call Communicator::all_gather_call(ConstBlock in, Block out) const {
  if (in.type != out.type || out.count != in.count * static_cast<std::size_t>(size_))
    throw std::invalid_argument("all_gather: " + counted(in.count, in.type) + " in, " + counted(out.count, out.type) +
                                " out, with " + std::to_string(size_) +
                                " ranks: out must have one block of the size of in per rank");
  return {.kind = Call::Kind::all_gather, .in = in, .out = out};
}

Communicator::Call Communicator::peer_call(Call::Kind kind, ConstBlock in, Block out, int peer) const {
  const Call call{.kind = kind, .peer = peer, .in = in, .out = out};
  if (peer < 0 || peer >= size_ || peer == rank_)
    throw std::invalid_argument(std::string(call.name()) + " on rank " + std::to_string(rank_) + ": peer " +
                                std::to_string(peer) + " is not another rank: there are " + std::to_string(size_));
  return call;
}

// A blocking call waits for the operations started before it.
[[gnu::noinline]] void Communicator::run(const Call& call) {
  if (carrier_ == Carrier::stream) return start(call).wait();
  if (!queue_->idle()) queue_->drain();
  perform(call);
}

void Communicator::broadcast(Block block, int root) { run(broadcast_call(block, root)); }

// The fast path: MPI itself needs only a few hundred nanoseconds.
void Communicator::all_reduce(const Block& block, Reduction reduction) {
  if (carrier_ == Carrier::stream || observer_ || !queue_->idle()) [[unlikely]]
    return run({.kind = Call::Kind::all_reduce, .reduction = reduction, .in = {}, .out = block});
  const auto inside = watchdog_.enter("all_reduce");
  if (memory_.empty()) return do_all_reduce(block, reduction);
  all_reduce_block(block, reduction, 1);
}

void Communicator::reduce_scatter(ConstBlock in, Block out, Reduction reduction, const char* name, double factor) {
  if (factor != 1 && carrier_ == Carrier::stream) throw std::invalid_argument("reduce_scatter: nccl takes no factor");
  Call call = reduce_scatter_call(in, out, reduction);
  call.own_name = name;
  call.factor = factor;
  run(call);
}
void Communicator::all_gather(ConstBlock in, Block out) { run(all_gather_call(in, out)); }
void Communicator::send(ConstBlock block, int peer) { run(peer_call(Call::Kind::send, block, {}, peer)); }
void Communicator::recv(Block block, int peer) { run(peer_call(Call::Kind::recv, {}, block, peer)); }
void Communicator::barrier() { run({.kind = Call::Kind::barrier, .in = {}, .out = {}}); }

Work Communicator::start_broadcast(Block block, int root) { return start(broadcast_call(block, root)); }
Work Communicator::start_all_reduce(Block block, Reduction reduction, const char* name, double factor) {
  if (factor != 1 && carrier_ == Carrier::stream) throw std::invalid_argument("all_reduce: nccl takes no factor");
  return start({.kind = Call::Kind::all_reduce,
                .reduction = reduction,
                .in = {},
                .out = block,
                .own_name = name,
                .factor = factor});
}
Work Communicator::start_reduce_scatter(ConstBlock in, Block out, Reduction reduction) {
  return start(reduce_scatter_call(in, out, reduction));
}
Work Communicator::start_all_gather(ConstBlock in, Block out) { return start(all_gather_call(in, out)); }
Work Communicator::start_send(ConstBlock block, int peer) {
  return start(peer_call(Call::Kind::send, block, {}, peer));
}
Work Communicator::start_recv(Block block, int peer) { return start(peer_call(Call::Kind::recv, {}, block, peer)); }

Backend choose_cpu_backend([[maybe_unused]] const World& world) {
#if defined(MULTINODE_HAVE_MPI) && defined(MULTINODE_HAVE_GLOO)
  return world.launch().under_mpi ? Backend::mpi : Backend::gloo;
#elif defined(MULTINODE_HAVE_MPI)
  return Backend::mpi;
#else
  return Backend::gloo;
#endif
}

std::unique_ptr<Communicator> make_communicator(World& world, Backend backend) {
#ifdef MULTINODE_HAVE_NCCL
  const std::optional<int> device = backend == Backend::nccl        ? require_own_gpus(world)
                                    : backend == Backend::automatic ? own_gpus(world)
                                                                    : std::nullopt;
  if (device) backend = Backend::nccl;
#endif
  if (backend == Backend::automatic) backend = choose_cpu_backend(world);
  switch (backend) {
    case Backend::mpi:
#ifdef MULTINODE_HAVE_MPI
      return make_mpi(world);
#else
      throw UsageError(
          "--backend mpi: this build has no MPI: apt install libopenmpi-dev openmpi-bin, and build again; or use "
          "--backend gloo");
#endif
    case Backend::gloo:
#ifdef MULTINODE_HAVE_GLOO
      return make_gloo(world);
#else
      throw UsageError(
          "--backend gloo: this build has no Gloo: apt install libgloo-dev, and build again; or use --backend mpi");
#endif
    case Backend::nccl:
#ifdef MULTINODE_HAVE_NCCL
      return make_nccl(world, *device);
#else
      throw UsageError(
          "--backend nccl: this build has no NCCL: install the CUDA Toolkit and libnccl-dev, and build again; or use "
          "--backend mpi or gloo");
#endif
    case Backend::automatic:
      break;
  }
  throw std::invalid_argument("no such backend");
}

std::unique_ptr<Communicator> make_cpu_communicator(World& world, Backend backend) {
  if (backend == Backend::nccl)
    throw UsageError("--backend nccl: this program trains on the CPU; use --backend mpi or gloo");
  return make_communicator(world, backend == Backend::automatic ? choose_cpu_backend(world) : backend);
}

}  // namespace multinode
