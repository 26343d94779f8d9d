// nccl_handle.hpp: an NCCL communicator that the watchdog's thread may abort while other threads use it.
#pragma once

#include <multinode/device.hpp>
#include <multinode/watchdog.hpp>

#include <atomic>
#include <memory>
#include <shared_mutex>
#include <stdexcept>
#include <utility>

namespace multinode {

// Owns a blocking communicator. If the watchdog ends the process, it aborts the communicator first, so that kernels
// that wait for a dead rank end. Any thread may call use(); the watchdog must outlive the object.
class NcclHandle {
 public:
  NcclHandle(Watchdog& watchdog, ncclComm_t communicator) : watchdog_(watchdog), guarded_(std::make_shared<Guarded>()) {
    guarded_->communicator = communicator;
    watchdog_.set_abort([guarded = guarded_] { guarded->abort(); });
  }
  // Destroys the communicator, unless it was aborted. During an exception it aborts it: the peers may be gone.
  ~NcclHandle() {
    if (std::uncaught_exceptions() > exceptions_)
      guarded_->abort();
    else
      guarded_->end(ncclCommDestroy);
    watchdog_.set_abort({});
  }
  NcclHandle(const NcclHandle&) = delete;
  NcclHandle& operator=(const NcclHandle&) = delete;

  // Calls function(communicator), which returns an ncclResult_t. It must not block: abort() waits until it returns.
  // Throws std::runtime_error if the call fails or the communicator was aborted.
  template <class Function>
  void use(Function&& function, source_location at = source_location::current()) const {
    std::shared_lock lock(guarded_->mutex, std::defer_lock);
    if (!guarded_->aborting) lock.lock();  // a thread that polls must not keep abort() waiting
    if (guarded_->aborting || !guarded_->communicator) throw std::runtime_error("NCCL was aborted");
    check(function(guarded_->communicator), at);
  }

 private:
  struct Guarded {  // shared with the watchdog, which may call abort() while the handle is destroyed
    void end(ncclResult_t (*with)(ncclComm_t)) {
      const std::lock_guard lock(mutex);
      if (communicator) with(std::exchange(communicator, nullptr));
    }
    void abort() {
      aborting = true;
      end(ncclCommAbort);
    }
    std::shared_mutex mutex;
    std::atomic<bool> aborting = false;
    ncclComm_t communicator = nullptr;
  };

  Watchdog& watchdog_;
  std::shared_ptr<Guarded> guarded_;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace multinode
