// pool.hpp: functions of a job library run on a cluster, each call a task with a future.
//
//   tasks::Pool pool({.head = head, .token = token, .library = "libpi_task_library.so", .num_workers = 4});
//   tasks::Future<double> half = pool.submit<double>("sum_part", 0, 500);
//   std::cout << half.get();
#pragma once

#include "functions.hpp"

#include <multinode/endpoint.hpp>

#include <nlohmann/json.hpp>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tasks {

// What a future throws whose function threw, is unknown, or got arguments that do not fit. what() is one line with all
// of it: "sum_part (rank 3, host node1): argument 1: ...".
class TaskFailed : public std::runtime_error {
 public:
  TaskFailed(std::string its_function, int its_rank, std::string its_host, std::string its_reason)
      : std::runtime_error(its_function + " (rank " + std::to_string(its_rank) + ", host " + its_host +
                           "): " + its_reason),
        function(std::move(its_function)),
        rank(its_rank),
        host(std::move(its_host)),
        reason(std::move(its_reason)) {}
  std::string function;
  int rank;
  std::string host;
  std::string reason;  // what the function threw
};

// What all unfinished futures throw when their pool is over: its job failed, the head is gone, it was destroyed.
class PoolEnded : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace detail {
struct Result;
nlohmann::json get(const Result& result);  // waits
// Waits until `how_many` are there or `timeout` has passed; returns which are.
std::vector<bool> wait(const std::vector<const Result*>& results, std::size_t how_many,
                       std::chrono::milliseconds timeout);
}  // namespace detail

// Of a task's result. Copies are of the same task. May outlive the pool. Any thread may wait.
template <class T>
class Future {
 public:
  // Waits for the result. Throws TaskFailed, PoolEnded, or std::runtime_error where the result is no T.
  T get() const {
    const nlohmann::json value = detail::get(*result_);
    if constexpr (!std::is_void_v<T>) return convert<T>(value);
  }

 private:
  friend class Pool;
  template <class U>
  friend auto wait(const std::vector<Future<U>>& futures, std::size_t how_many, std::chrono::milliseconds timeout);
  explicit Future(std::shared_ptr<detail::Result> result) : result_(std::move(result)) {}

  std::shared_ptr<detail::Result> result_;
};

template <class T>
struct Waited {
  std::vector<Future<T>> ready, not_ready;  // each in the order given
};

// Waits until at least `how_many` of the tasks have ended, well or not, or `timeout` has passed.
template <class T>
auto wait(const std::vector<Future<T>>& futures, std::size_t how_many = 1,
          std::chrono::milliseconds timeout = std::chrono::milliseconds::max()) {
  std::vector<const detail::Result*> results;
  for (const auto& future : futures) results.push_back(future.result_.get());
  const std::vector<bool> ended = detail::wait(results, how_many, timeout);
  Waited<T> waited;
  for (std::size_t i = 0; i < futures.size(); ++i) (ended[i] ? waited.ready : waited.not_ready).push_back(futures[i]);
  return waited;
}

struct PoolOptions {
  multinode::Endpoint head;  // of the cluster
  std::string token;         // likewise
  std::string library;       // a file of the job folder
  int num_workers = 1;
  int max_failures = 0;                       // so often the runners are started again when one dies; -1: without end
  std::chrono::milliseconds timeout{60'000};  // for the runners to start
  std::function<void(const std::string&)> log = [](const std::string&) {};  // a line: waiting, failed; on any thread
};

// Runners, `num_workers` processes of one job of the cluster, and the tasks on their way to them. A task goes to the
// runner with the fewest; each runs one at a time, in the order in which it got them. Any thread may submit.
class Pool {
 public:
  // Waits for the runners. Throws PoolEnded where the job fails, or they do not come in time; UsageError.
  explicit Pool(PoolOptions options);
  // What is unfinished is dropped, and its futures throw PoolEnded. The job ends.
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // The task's arguments, as CBOR, are at most most_bytes (limits.hpp) long: else throws std::invalid_argument. Throws
  // PoolEnded.
  template <class T, class... Arguments>
  Future<T> submit(const std::string& function, const Arguments&... arguments) {
    auto array = nlohmann::json::array();
    (array.push_back(arguments), ...);
    return Future<T>(submit_json(function, array));
  }

 private:
  class Implementation;
  std::shared_ptr<detail::Result> submit_json(const std::string& function, const nlohmann::json& arguments);

  std::unique_ptr<Implementation> implementation_;
};

}  // namespace tasks
