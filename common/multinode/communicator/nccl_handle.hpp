// nccl_handle.hpp: NCCL communicators that the watchdog's thread may abort while other threads use them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <multinode/communicator/device.hpp>
#include <multinode/world/watchdog.hpp>

#include <atomic>
#include <memory>
#include <shared_mutex>
#include <stdexcept>
#include <utility>
#include <vector>

namespace multinode {

// Owns the blocking communicators of this process, one per GPU that it uses. If the watchdog ends the process, it
// aborts them first, so that kernels that wait for a dead rank end. Any thread may use them; the watchdog must outlive
// the object.
class NcclHandle {
 public:
  using Lock = std::shared_lock<std::shared_mutex>;

  NcclHandle(Watchdog& watchdog, std::vector<ncclComm_t> communicators)
      : watchdog_(watchdog), guarded_(std::make_shared<Guarded>()) {
    guarded_->communicators = std::move(communicators);
    watchdog_.set_abort([guarded = guarded_] { guarded->abort(); });
  }
  NcclHandle(Watchdog& watchdog, ncclComm_t communicator) : NcclHandle(watchdog, std::vector{communicator}) {}
  // Destroys the communicators, unless they were aborted. During an exception it aborts them: the peers may be gone.
  ~NcclHandle() {
    if (std::uncaught_exceptions() > exceptions_)
      guarded_->abort();
    else
      guarded_->end(ncclCommDestroy);
    watchdog_.set_abort({});
  }
  NcclHandle(const NcclHandle&) = delete;
  NcclHandle& operator=(const NcclHandle&) = delete;

  // Hold the lock during calls of NCCL. Throws std::runtime_error if the communicators were aborted. abort() waits for
  // the lock, and a call may block until the peers make theirs: the first send to a peer, and since NCCL 2.22 the first
  // collectives, connect inside the call. Then the watchdog ends the process without the abort.
  [[nodiscard]] Lock lock() const {
    Lock lock(guarded_->mutex, std::defer_lock);
    if (!guarded_->aborting) lock.lock();  // a thread that polls must not keep abort() waiting
    if (guarded_->aborting) throw std::runtime_error("NCCL was aborted");
    return lock;
  }
  ncclComm_t operator[](std::size_t i) const { return guarded_->communicators[i]; }  // with lock()

  // Calls function(the only communicator), which returns an ncclResult_t, with lock(). Throws std::runtime_error also
  // if the call fails.
  template <class Function>
  void use(Function&& function, source_location at = source_location::current()) const {
    const Lock held = lock();
    check(function((*this)[0]), at);
  }

 private:
  struct Guarded {  // shared with the watchdog, which may call abort() while the handle is destroyed
    void end(ncclResult_t (*with)(ncclComm_t)) {
      const std::lock_guard lock(mutex);
      const bool several = communicators.size() > 1;  // each call may wait for the others
      if (several) ncclGroupStart();
      for (ncclComm_t& communicator : communicators)
        if (communicator) with(std::exchange(communicator, nullptr));
      if (several) ncclGroupEnd();
    }
    void abort() {
      aborting = true;
      end(ncclCommAbort);
    }
    std::shared_mutex mutex;
    std::atomic<bool> aborting = false;
    std::vector<ncclComm_t> communicators;
  };

  Watchdog& watchdog_;
  std::shared_ptr<Guarded> guarded_;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace multinode
