// SPDX-License-Identifier: Apache-2.0
#include <multinode/communicator/host_communicator.hpp>

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace multinode {

namespace {

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

// Calls for the communicator's thread, or, while that has nothing to do, calls that wait() will perform (`deferred_`).
// Everything but carry_out runs on the thread that uses the communicator.
class HostCommunicator::Queue {
 public:
  explicit Queue(HostCommunicator& communicator) : communicator_(communicator) {}

  // No call is in progress, and none has failed: one load.
  bool idle() const noexcept { return completed_.load(std::memory_order_acquire) == submitted_; }

  std::uint64_t submit(const AllReduce& call, bool may_wait) {
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
      const AllReduce call = calls_.front();
      calls_.pop_front();
      perform(call, lock);
      done_.notify_all();
    }
  }

  // The deferred calls up to `number`; they are the last ones, and those before them are complete.
  void perform_deferred(std::uint64_t number) {
    while (!deferred_.empty() && number + deferred_.size() > submitted_) {
      const AllReduce call = deferred_.front();
      deferred_.pop_front();
      std::unique_lock lock(mutex_);
      perform(call, lock);
    }
  }

  void perform(const AllReduce& call, std::unique_lock<std::mutex>& lock) {
    if (!error_) {
      busy_ = true;
      current_ = call.name;
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

  HostCommunicator& communicator_;
  std::uint64_t submitted_ = 0;
  std::deque<AllReduce> deferred_;
  std::atomic<std::uint64_t> completed_{0};
  std::mutex mutex_;  // guards the members below, except the thread
  std::condition_variable_any wake_;
  std::condition_variable done_;
  std::deque<AllReduce> calls_;
  bool busy_ = false;
  const char* current_ = "";
  std::uint64_t finished_ = 0, failed_ = 0;
  std::exception_ptr error_;
  std::jthread thread_;
};

HostCommunicator::HostCommunicator(World& world) : Communicator(world), queue_(std::make_shared<Queue>(*this)) {}

HostCommunicator::~HostCommunicator() = default;

void HostCommunicator::stop() { queue_->stop(unwinding()); }

void HostCommunicator::wait_for_started() {
  if (!queue_->idle()) queue_->drain();
}

void HostCommunicator::perform(const AllReduce& call) {
  const auto& [block, reduction, name, factor] = call;
  const auto inside = watchdog().enter(name);
  if (SharedMemory* const memory = memory_of(block)) return memory->all_reduce(block, reduction, factor);
  do_all_reduce(block, reduction);
  if (factor != 1) scale(block.type, block.data, block.count, factor);
}

SharedMemory* HostCommunicator::memory_of(const ConstBlock& block) const {
  for (const auto& memory : memory_)
    if (memory->holds(block)) return memory.get();
  return nullptr;
}

SharedMemory* HostCommunicator::memory_of(const ConstBlock& whole, const ConstBlock& part) const {
  const auto* const own_part =
      static_cast<const std::byte*>(whole.data) + static_cast<std::size_t>(rank()) * part.bytes();
  return part.data == own_part ? memory_of(whole) : nullptr;
}

std::byte* HostCommunicator::allocate_bytes(std::size_t bytes) {
  wait_for_started();  // the communicator's thread looks for blocks in memory_
  memory_.push_back(std::make_unique<SharedMemory>(world(), bytes, true));
  return memory_.back()->own_block().data();
}

// The fast path: MPI itself needs only a few hundred nanoseconds.
void HostCommunicator::all_reduce(const Block& block, Reduction reduction) {
  if (!memory_.empty() || !queue_->idle()) [[unlikely]] {
    wait_for_started();
    return perform({block, reduction, "all_reduce", 1});
  }
  const auto inside = watchdog().enter("all_reduce");
  do_all_reduce(block, reduction);
}

void HostCommunicator::broadcast(Block block, int root) {
  require_root(root);
  wait_for_started();
  const auto inside = watchdog().enter("broadcast");
  do_broadcast(block, root);
}

void HostCommunicator::reduce_scatter(ConstBlock in, Block out, Reduction reduction, const char* name, double factor) {
  require_parts("reduce_scatter", out, in);
  wait_for_started();
  const auto inside = watchdog().enter(name ? name : "reduce_scatter");
  if (SharedMemory* const memory = memory_of(in, out)) return memory->reduce_scatter(out, reduction, factor);
  do_reduce_scatter(in, out, reduction);
  if (factor != 1) scale(out.type, out.data, out.count, factor);
}

void HostCommunicator::all_gather(ConstBlock in, Block out) {
  require_parts("all_gather", in, out);
  wait_for_started();
  const auto inside = watchdog().enter("all_gather");
  if (SharedMemory* const memory = memory_of(out, in)) return memory->all_gather(out);
  do_all_gather(in, out);
}

void HostCommunicator::barrier() {
  wait_for_started();
  const auto inside = watchdog().enter("barrier");
  do_barrier();
}

Work HostCommunicator::start_all_reduce(Block block, Reduction reduction, const char* name, double factor) {
  class Queued : public Work::State {
   public:
    Queued(std::shared_ptr<Queue> queue, std::uint64_t number) : queue_(std::move(queue)), number_(number) {}
    void wait() override { queue_->wait_for(number_); }

   private:
    std::shared_ptr<Queue> queue_;
    std::uint64_t number_;
  };
  const AllReduce call{block, reduction, name ? name : "all_reduce", factor};
  return Work(std::make_unique<Queued>(queue_, queue_->submit(call, shared(block))));
}

}  // namespace multinode
