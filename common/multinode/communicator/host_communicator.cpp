// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/check.hpp>
#include <multinode/communicator/host_communicator.hpp>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace multinode {

// Calls for the communicator's thread. Everything but carry_out runs on the thread that uses the communicator.
class HostCommunicator::Queue {
 public:
  explicit Queue(HostCommunicator& communicator) : communicator_(communicator) {}

  // No call is in progress, and none has failed: one load.
  bool idle() const noexcept { return completed_.load(std::memory_order_acquire) == submitted_; }

  std::uint64_t submit(const AllReduce& call) {
    {
      const std::lock_guard lock(mutex_);
      calls_.push_back(call);
    }
    if (thread_.joinable())
      wake_.notify_one();
    else
      thread_ = std::jthread([this](const std::stop_token& stop) { carry_out(stop); });
    return ++submitted_;
  }

  // Waits for the calls up to `number`; throws what one of them threw.
  void wait_for(std::uint64_t number) {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return finished_ >= number; });
    if (error_ && failed_ <= number) std::rethrow_exception(error_);
  }
  void drain() { wait_for(submitted_); }

  // Ends the thread after all calls, or, if the other ranks may not join them, after the call in progress, which gets
  // two seconds.
  void stop(bool unwinding) {
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
    std::unique_lock lock(mutex_);
    while (wake_.wait(lock, stop, [&] { return !calls_.empty(); })) {
      const AllReduce call = calls_.front();
      calls_.pop_front();
      perform(call, lock);
      done_.notify_all();
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
  require_waits();
  if (!queue_->idle()) queue_->drain();
}

void HostCommunicator::perform(const AllReduce& call) {
  const auto inside = watchdog().enter(call.name);
  do_all_reduce(call.block, call.reduction);
}

// The fast path: MPI itself needs only a few hundred nanoseconds.
void HostCommunicator::all_reduce(const Block& block, Reduction reduction) {
  wait_for_started();
  const auto inside = watchdog().enter("all_reduce");
  do_all_reduce(block, reduction);
}

void HostCommunicator::broadcast(Block block, int root) {
  require_root(root);
  wait_for_started();
  const auto inside = watchdog().enter("broadcast");
  do_broadcast(block, root);
}

void HostCommunicator::barrier() {
  wait_for_started();
  const auto inside = watchdog().enter("barrier");
  do_barrier();
}

Work HostCommunicator::start_all_reduce(Block block, Reduction reduction, const char* name) {
  class Queued : public Started {
   public:
    Queued(const HostCommunicator& communicator, const char* name, std::uint64_t number)
        : Started(communicator, name), queue_(communicator.queue_), number_(number) {}

   private:
    void wait_for_it() override { queue_->wait_for(number_); }
    std::shared_ptr<Queue> queue_;
    std::uint64_t number_;
  };
  const AllReduce call{block, reduction, name ? name : "all_reduce"};
  require_waits();
  return Work(std::make_unique<Queued>(*this, call.name, queue_->submit(call)));
}

}  // namespace multinode
