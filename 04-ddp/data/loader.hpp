// loader.hpp: batches that are made ahead of the training, by a thread of their own.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace data {

// While the training works on one batch B, up to `ahead` more are ready or being made. One thread calls next().
template <class B>
class Loader {
 public:
  // Makes the batch of a step, over whatever an earlier one left in it: its memory is used again. Called in order of
  // the steps, on the loader's thread only; what it reads must stay as it is until the loader is gone.
  using Fill = std::function<void(std::size_t step, B& batch)>;

  // Of steps first ... last - 1. Throws std::logic_error for last < first or ahead = 0.
  Loader(std::size_t first, std::size_t last, Fill fill, std::size_t ahead = 2)
      : fill_(std::move(fill)), ahead_(ahead), batches_(ahead + 1), last_(last), made_(first), taken_(first) {
    if (last < first || ahead == 0) throw std::logic_error("Loader: no such steps, or nothing to be made ahead");
    thread_ = std::thread([this] { make(); });
  }

  // Drops the batches that were not taken; waits for a fill that is under way.
  ~Loader() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    room_.notify_one();
    thread_.join();
  }
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The next step's batch, which belongs to the loader and stays until the following call. Throws what fill threw for
  // this step, again at each further call; std::logic_error after the last step.
  B& next() {
    std::unique_lock lock(mutex_);
    if (taken_ == last_) throw std::logic_error("Loader: no step is left");
    batch_made_.wait(lock, [this] { return made_ > taken_ || failure_; });
    if (made_ == taken_) std::rethrow_exception(failure_);
    B& batch = batches_[taken_++ % batches_.size()];
    lock.unlock();
    room_.notify_one();
    return batch;
  }

 private:
  void make() {
    std::unique_lock lock(mutex_);
    while (made_ < last_) {
      // The batch of step taken_ - 1 is in use: of ahead_ + 1, ahead_ are free.
      room_.wait(lock, [this] { return stopped_ || made_ < taken_ + ahead_; });
      if (stopped_) return;
      const std::size_t step = made_;
      lock.unlock();
      std::exception_ptr failure;
      try {
        fill_(step, batches_[step % batches_.size()]);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      failure_ = failure;
      if (!failure) ++made_;
      batch_made_.notify_one();
      if (failure) return;
    }
  }

  Fill fill_;
  std::size_t ahead_;
  std::vector<B> batches_;  // step s is in number s % (ahead_ + 1)
  std::size_t last_;

  std::mutex mutex_;  // of all below
  std::condition_variable room_, batch_made_;
  std::size_t made_;   // steps below it are complete
  std::size_t taken_;  // steps below it were given to next()'s caller
  std::exception_ptr failure_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace data
