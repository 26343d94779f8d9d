// runtime.hpp: what the files of the CUDA runtime share: devices, streams with their queues and captures, errors.
#pragma once

#include "device.hpp"
#include "ptx/program.hpp"

#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace emulated_gpu {

using Clock = std::chrono::steady_clock;
using Make = std::function<Task()>;

// The calls that this thread is in, and the first of them in the program: " (main.cu:12)", or "" without -g.
using Frames = std::vector<void*>;
Frames frames();
std::string place_of(const Frames& frames);
extern thread_local void* launch_site;  // of <<<>>>, or null

// The tasks of a stream, executed in order by a thread. It outlives its stream until the last task is done.
class Queue : public std::enable_shared_from_this<Queue> {
 public:
  // A late task is carried out when there is a task behind it or somebody waits, or after a moment. With --check all
  // are late, and a task behind does not matter: a program that reads a result too early reads the old one.
  std::uint64_t put(Task task, bool late = false) {
    std::unique_lock lock(mutex_);
    tasks_.push_back({std::move(task), late || checks()});
    if (!running_) {
      running_ = true;
      std::thread([self = shared_from_this()] { self->carry_out(); }).detach();
    }
    const std::uint64_t number = ++submitted_;
    lock.unlock();  // the thread that wakes up needs it
    changed_.notify_all();
    return number;
  }
  std::uint64_t submitted() const {
    const std::lock_guard lock(mutex_);
    return submitted_;
  }
  bool reached(std::uint64_t number) const {
    const std::lock_guard lock(mutex_);
    return completed_ >= number;
  }
  bool wait_for(std::uint64_t number, std::chrono::seconds most) const {
    std::unique_lock lock(mutex_);
    wanted_ = std::max(wanted_, number);
    if (completed_ < number) changed_.notify_all();
    return changed_.wait_for(lock, most, [&] { return completed_ >= number; });
  }
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

 private:
  void carry_out() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return closed_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      {
        if (tasks_.front().second) be_late(lock);
        const Task task = std::move(tasks_.front().first);
        tasks_.pop_front();
        lock.unlock();
        task();
      }
      lock.lock();
      ++completed_;
      changed_.notify_all();
    }
  }

  // The host may also wait in ways that are not seen here, for a flag that a kernel sets: all such waits of a program
  // with --check take 1 s at most.
  void be_late(std::unique_lock<std::mutex>& lock) {
    static std::atomic<int> left{1000};
    const int most = checks() ? std::clamp(left.load(), 0, 500) : 20;
    const auto began = Clock::now();
    const auto wanted = [&] { return wanted_ > completed_ || (!checks() && (closed_ || tasks_.size() > 1)); };
    if (!changed_.wait_for(lock, std::chrono::milliseconds(most), wanted)) wanted_ = submitted_;
    left -= static_cast<int>((Clock::now() - began) / std::chrono::milliseconds(1));
  }

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable std::uint64_t wanted_ = 0;  // the last task that somebody waits for
  std::deque<std::pair<Task, bool>> tasks_;
  std::uint64_t submitted_ = 0, completed_ = 0;
  bool running_ = false, closed_ = false;
};

// A position in a stream.
struct Point {
  std::shared_ptr<Queue> queue;
  std::uint64_t number = 0;
  std::map<const Queue*, std::uint64_t> before{};  // with --check: the last tasks of other streams that it is behind

  bool reached() const { return queue->reached(number); }
  bool wait(std::chrono::seconds most = std::chrono::hours(1000000)) const { return queue->wait_for(number, most); }
};

// With --check: a task of a stream, and the memory that it used.
struct Trace {
  Point point;
  std::uint64_t submitted = 0;
  Frames by{};
  std::uint64_t done = 0;
  std::string what{};
  ptx::Used used{};
};
extern thread_local Trace* current_task;

// A point, and the time when it was reached.
struct Record {
  Point point;
  Clock::time_point time;  // set when the point is reached
};

// The tasks of streams that are being recorded for a graph, in the order of the calls.
struct Capture {
  std::thread::id thread;
  cudaStream_t origin = nullptr;  // on which it began
  std::vector<Make> tasks{};
  bool invalid = false;  // a part of it was refused
};
using Before = std::map<cudaStream_t, std::size_t>;  // how many tasks of each stream of a capture

}  // namespace emulated_gpu

// CUDA's names for the types behind its handles.
struct CUstream_st {
  int device = 0;
  bool blocking = false;    // synchronizes with the default stream
  bool is_default = false;  // of its device: made when first used, never destroyed
  int priority = 0;         // has no effect
  std::shared_ptr<emulated_gpu::Queue> queue = std::make_shared<emulated_gpu::Queue>();
  decltype(emulated_gpu::Point::before) behind{};  // of its next task

  emulated_gpu::Point end() const { return {queue, queue->submitted(), behind}; }
  std::shared_ptr<emulated_gpu::Capture> capture{};
  emulated_gpu::Before before{};
};
struct CUevent_st {
  int device = 0;
  bool timed = true;
  std::shared_ptr<emulated_gpu::Record> record;
  bool captured = false;  // its last record is a part of a capture
  std::weak_ptr<emulated_gpu::Capture> capture{};
  emulated_gpu::Before before{};
};
struct CUgraph_st {
  std::vector<emulated_gpu::Make> tasks;
};
struct CUgraphExec_st : CUgraph_st {};

namespace emulated_gpu {

inline constexpr int multiprocessors = 8;
inline constexpr std::size_t device_memory = std::size_t{16} << 30;  // what is not written costs nothing

struct Allocation {
  std::size_t bytes = 0;
  int device = -1;  // -1: pinned memory of the host
  enum Kind { allocated, managed, registered, variable } kind = allocated;
  Frames by{};  // with --check

  bool of_device() const { return device >= 0; }
  bool of_host() const { return device < 0 || kind == managed; }
};

struct Machine {
  Machine();

  std::vector<int> devices;                  // their physical numbers
  cudaError_t why_none = cudaErrorNoDevice;  // EMULATED_GPU_FAULT=device:802, for tests: what CUDA says instead
  std::string description;
  std::mutex mutex;  // guards the members below
  std::set<cudaStream_t> streams;
  std::vector<std::pair<int, Point>> destroyed;  // device and end of streams that were destroyed with tasks left
  std::set<cudaEvent_t> events;
  std::set<cudaGraph_t> graphs;
  std::set<cudaGraphExec_t> executables;
  std::map<std::uintptr_t, Allocation> memory;
  std::set<std::pair<int, int>> peers;  // (a, b): a can use b's memory
  std::atomic<bool> ended{false};       // with --check: the program has ended
};
// Of the calling thread.
extern thread_local int current_device;
extern thread_local bool in_host_function;  // on a stream's thread, in a function of the program
extern thread_local cudaError_t last_error;
extern thread_local std::pair<cudaError_t, std::string> explained;  // the text of the last refusal

using Lock = std::lock_guard<std::mutex>;

inline bool has_device() { return !the<Machine>().devices.empty(); }

// Thrown by a function that fails. `why`, if given, becomes the text of cudaGetErrorString on this thread.
struct CudaError {
  cudaError_t code;
  std::string why = {};
  bool reported = false;  // when a kernel failed
};
[[noreturn]] inline void refuse(cudaError_t code, const std::string& why) { throw CudaError{code, why}; }

// Throws the error of a kernel that failed on the current device.
void require_no_fault();
void require_success();         // also an error that one call returns
void require_success_of_all();  // also one that a launch has returned, because many programs do not look

// Reports what does not end the program, once for each kernel and source line: the begin and the end of the text.
void report_once(const std::string& text);
// With --check, keeps errors of calls until the program looks at one of this code. At its end the others are reported.
void unseen(cudaError_t code, const std::string& what);
void seen(cudaError_t code);

// Runs the body of the CUDA function `name`.
template <class Function>
cudaError_t guarded(const char* name, Function&& function) try {
  if (!has_device()) throw CudaError{the<Machine>().why_none, "", true};
  if (in_host_function) refuse(cudaErrorNotPermitted, "a host function of a stream must not use CUDA");
  require_no_fault();
  if constexpr (std::is_void_v<decltype(function())>) {
    function();
    require_success();
    return cudaSuccess;
  } else {
    const auto code = function();
    require_success();
    return code;
  }
} catch (const CudaError& failure) {
  const std::string text = std::string(name) + ": " + failure.why;
  if (!failure.why.empty()) explained = {failure.code, text};
  if (!failure.reported && checks()) unseen(failure.code, text);
  return last_error = failure.code;
}
// Of a call that has no effect here.
inline cudaError_t hint(const char* name) {
  return guarded(name, [] {});
}
// The same with the machine's mutex held.
template <class Function>
cudaError_t locked(const char* name, Function&& function) {
  return guarded(name, [&] {
    const Lock lock(the<Machine>().mutex);
    return function(the<Machine>());
  });
}

inline int device_count() { return static_cast<int>(the<Machine>().devices.size()); }
void require_device(int device);

// The functions from here to submit() are called with the machine's mutex held.

CUstream_st* find(cudaStream_t stream, int device = current_device);  // null if the stream is invalid
CUstream_st& valid(cudaStream_t stream);
void require_no_capture();  // by this thread
// The first address and the allocation that `data` points into, or null.
const std::pair<const std::uintptr_t, Allocation>* find_memory(const void* data);
std::size_t used_memory(int device);
bool can_access(int device, const Allocation& memory);
// Appends a task to `stream`, after the work that the rules of the default stream put before it.
Point submit(CUstream_st* stream, Task task, bool late = false);

// Submits, or adds to the stream's capture.
std::optional<Point> put(cudaStream_t stream, const Make& make);
Point end_of(cudaStream_t stream);  // the present end of the stream
void wait_for_device(int device, std::chrono::seconds most = std::chrono::hours(1000000));

}  // namespace emulated_gpu
