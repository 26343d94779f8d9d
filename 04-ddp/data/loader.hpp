// loader.hpp: batches that are made ahead of the training, by a thread of their own.
#pragma once

#include <boost/asio/packaged_task.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>

#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <future>
#include <stdexcept>
#include <utility>

namespace data {

// While the training works on one batch B, up to two more are ready or being made. One thread calls next(). The
// destructor drops the batches that were not taken, and waits for a fill that is under way.
template <class B>
class Loader {
 public:
  // Makes the batch of a step, over whatever an earlier one left in it: its memory is used again. Called in order of
  // the steps, on the loader's thread only; what it reads must stay as it is until the loader is gone.
  using Fill = std::function<void(std::size_t step, B& batch)>;

  // Of steps first ... last - 1.
  Loader(std::size_t first, std::size_t last, Fill fill)
      : fill_(std::move(fill)), taken_(first), started_(first), last_(last) {
    while (started_ < last_ && started_ < first + ahead) start();
  }

  // The next step's batch, which belongs to the loader and stays until the following call. Throws what fill threw for
  // this step, and std::logic_error after the last step.
  B& next() {
    if (making_.empty()) throw std::logic_error("Loader: no step is left");
    making_.front().get();
    making_.pop_front();
    if (started_ < last_) start();  // over the batch of the step before, which is no longer in use
    return batches_[taken_++ % batches_.size()];
  }

 private:
  static constexpr std::size_t ahead = 2;

  void start() {
    making_.push_back(boost::asio::post(thread_, std::packaged_task<void()>([this, step = started_++] {
                                          fill_(step, batches_[step % batches_.size()]);
                                        })));
  }

  Fill fill_;
  std::array<B, ahead + 1> batches_;  // step s is in number s % 3
  std::size_t taken_, started_, last_;
  std::deque<std::future<void>> making_;  // batches of steps taken_ ... started_ - 1
  boost::asio::thread_pool thread_{1};    // the last member: its thread ends before the others are destroyed
};

}  // namespace data
