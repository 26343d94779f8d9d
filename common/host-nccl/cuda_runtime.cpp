// A stand-in for the CUDA runtime: HOST_NCCL_DEVICES devices in host memory, one thread per stream, no kernels.
// See README.md.
#include "device.hpp"

#include <cxxabi.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

using host_nccl::Task;
using Clock = std::chrono::steady_clock;
using Make = std::function<Task()>;

namespace {

constexpr int fresh_byte = 0xA5, freed_byte = 0x5A;
constexpr std::size_t device_memory = std::size_t{1} << 30;
const char* const text_of_description = "stand-ins of GPUs (host-nccl): on the CPU, for correctness";

// The tasks of a stream, executed in order by a thread. It outlives its stream until the last task is done.
class Queue : public std::enable_shared_from_this<Queue> {
 public:
  std::uint64_t put(Task task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    if (!running_) {
      running_ = true;
      std::thread([self = shared_from_this()] { self->carry_out(); }).detach();
    }
    changed_.notify_all();
    return ++submitted_;
  }
  std::uint64_t submitted() const {
    const std::lock_guard lock(mutex_);
    return submitted_;
  }
  bool reached(std::uint64_t number) const {
    const std::lock_guard lock(mutex_);
    return completed_ >= number;
  }
  void wait_for(std::uint64_t number) const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return completed_ >= number; });
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
        const Task task = std::move(tasks_.front());
        tasks_.pop_front();
        lock.unlock();
        task();
      }
      lock.lock();
      ++completed_;
      changed_.notify_all();
    }
  }

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<Task> tasks_;
  std::uint64_t submitted_ = 0, completed_ = 0;
  bool running_ = false, closed_ = false;
};

// A position in a stream.
struct Point {
  std::shared_ptr<Queue> queue;
  std::uint64_t number = 0;

  bool reached() const { return queue->reached(number); }
  void wait() const { queue->wait_for(number); }
};
Point end_of(const std::shared_ptr<Queue>& queue) { return {queue, queue->submitted()}; }

// A point, and the time when it was reached.
struct Record {
  Point point;
  Clock::time_point time;  // set when the point is reached
};

}  // namespace

// A graph that is being recorded, of the tasks of one or more streams. It keeps them in the order of the calls, which
// is one of the orders that the streams and events allow.
struct Capture {
  cudaStream_t origin = nullptr;
  std::thread::id thread;
  std::vector<Make> tasks;
  std::vector<cudaStream_t> streams;
};
// For each stream of a capture the number of its tasks that come before a point.
using Seen = std::map<cudaStream_t, std::size_t>;

// CUDA's names for the types behind its handles.
struct CUstream_st {
  int device = 0;
  bool blocking = false;  // synchronizes with the default stream
  std::shared_ptr<Queue> queue = std::make_shared<Queue>();
  std::shared_ptr<Capture> capture;
  Seen seen;
};
struct CUevent_st {
  int device = 0;
  bool timed = true;
  std::shared_ptr<Record> record;
  bool captured = false;  // its last record is a part of a capture, which is gone when it has ended
  std::weak_ptr<Capture> capture;
  Seen seen;
};
struct CUgraph_st {
  std::vector<Make> tasks;
};
struct CUgraphExec_st {
  std::vector<Make> tasks;
};

namespace {

struct Allocation {
  std::size_t bytes = 0;
  int device = -1;  // -1: pinned memory of the host
};

struct Machine {
  Machine();

  std::vector<int> devices;  // their physical numbers
  std::string description;
  std::mutex mutex;  // guards the members below
  std::map<int, std::unique_ptr<CUstream_st>> default_streams;
  std::set<cudaStream_t> streams;
  std::vector<std::pair<int, Point>> destroyed;  // device and end of streams that were destroyed with tasks left
  std::set<cudaEvent_t> events;
  std::set<cudaGraph_t> graphs;
  std::set<cudaGraphExec_t> executables;
  std::map<std::uintptr_t, Allocation> memory;
  std::map<const void*, std::string> kernels;

  // Never destroyed: threads may still use it when the process exits.
  static Machine& get() {
    static Machine& machine = *new Machine;
    return machine;
  }
};

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;
thread_local std::pair<cudaError_t, std::string> explained{cudaSuccess, ""};

std::optional<int> whole_number(const std::string& text, int most) {
  if (text.empty() || text.size() > 6 || text.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  const int value = std::stoi(text);
  return value <= most ? std::optional(value) : std::nullopt;
}

Machine::Machine() {
  const char* count = std::getenv("HOST_NCCL_DEVICES");
  if (!count) return;
  const std::optional<int> number = whole_number(count, 64);
  if (!number) {
    host_nccl::say("HOST_NCCL_DEVICES must be a number of devices from 0 to 64, not '" + std::string(count) + "'");
    return;
  }
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (!visible) {
    for (int i = 0; i < *number; ++i) devices.push_back(i);
  } else {  // like CUDA, up to the first invalid number
    std::istringstream words(visible);
    for (std::string word; std::getline(words, word, ',');) {
      const std::optional<int> device = whole_number(word, *number - 1);
      if (!device) break;
      devices.push_back(*device);
    }
  }
  if (!devices.empty()) description = std::to_string(devices.size()) + " " + text_of_description;
}

using Lock = std::lock_guard<std::mutex>;

bool has_device() { return !Machine::get().devices.empty(); }

// Thrown by a function that fails. `why`, if given, becomes the text of cudaGetErrorString on this thread.
struct Failure {
  cudaError_t code;
  std::string why = {};
};
[[noreturn]] void refuse(cudaError_t code, const std::string& why) { throw Failure{code, why}; }

// Runs the body of the CUDA function `name`.
template <class Function>
cudaError_t guarded(const char* name, Function&& function) try {
  if (!has_device()) throw Failure{cudaErrorNoDevice};
  if constexpr (std::is_void_v<decltype(function())>) {
    function();
    return cudaSuccess;
  } else {
    return function();
  }
} catch (const Failure& failure) {
  if (!failure.why.empty()) explained = {failure.code, std::string(name) + ": " + failure.why};
  return last_error = failure.code;
}
// The same with the machine's mutex held.
template <class Function>
cudaError_t locked(const char* name, Function&& function) {
  return guarded(name, [&] {
    const Lock lock(Machine::get().mutex);
    return function(Machine::get());
  });
}

// The functions from here to submit() are called with the machine's mutex held.

// Null if the stream is invalid.
CUstream_st* find(cudaStream_t stream, int device = current_device) {
  Machine& machine = Machine::get();
  if (stream == nullptr || stream == cudaStreamLegacy) {
    auto& own = machine.default_streams[device];
    if (!own) {
      own = std::make_unique<CUstream_st>();
      own->device = device;
      own->blocking = true;
    }
    return own.get();
  }
  if (machine.streams.count(stream)) return stream;
  for (const auto& [number, own] : machine.default_streams)
    if (own.get() == stream) return stream;
  return nullptr;
}
CUstream_st& valid(cudaStream_t stream) {
  CUstream_st* const found = find(stream);
  if (!found) refuse(cudaErrorInvalidResourceHandle, "this stream was destroyed or never created");
  return *found;
}
CUevent_st& valid(cudaEvent_t event) {
  if (!Machine::get().events.count(event))
    refuse(cudaErrorInvalidResourceHandle, "this event was destroyed or never created");
  return *event;
}
// The event's last record; null if there is none.
std::shared_ptr<Record> record_of(cudaEvent_t event) {
  if (valid(event).captured) refuse(cudaErrorCapturedEvent, "this event was last recorded in a capture, not executed");
  return event->record;
}
bool is_default(const CUstream_st* stream) {
  const auto own = Machine::get().default_streams.find(stream->device);
  return own != Machine::get().default_streams.end() && own->second.get() == stream;
}

// Appends a task to `stream`, after the work that the rules of the default stream put
// before it.
Point submit(CUstream_st* stream, Task task) {
  Machine& machine = Machine::get();
  std::vector<Point> before;
  if (stream->blocking) {
    if (is_default(stream)) {
      for (const cudaStream_t other : machine.streams)
        if (other->device == stream->device && other->blocking) before.push_back(end_of(other->queue));
    } else if (const auto own = machine.default_streams.find(stream->device); own != machine.default_streams.end()) {
      before.push_back(end_of(own->second->queue));
    }
    std::erase_if(before, [](const Point& point) { return point.reached(); });
  }
  if (!before.empty())
    task = [before, task = std::move(task)] {
      for (const Point& point : before) point.wait();
      task();
    };
  return {stream->queue, stream->queue->put(std::move(task))};
}

void put(cudaStream_t stream, const Make& make) {
  const Lock lock(Machine::get().mutex);
  CUstream_st& found = valid(stream);
  if (found.capture) {
    found.capture->tasks.push_back(make);
    ++found.seen[&found];
  } else {
    submit(&found, make());
  }
}

// The first address and the allocation that `data` points into, or null. With the machine's mutex held.
const std::pair<const std::uintptr_t, Allocation>* find_memory(const void* data) {
  const auto& memory = Machine::get().memory;
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const auto behind = memory.upper_bound(address);
  if (behind == memory.begin()) return nullptr;
  const auto& found = *std::prev(behind);
  return address < found.first + found.second.bytes ? &found : nullptr;
}

std::string range_refusal(const void* data, std::size_t bytes, bool of_device, const char* what) {
  const std::string name = fmt::format("{} ({} bytes at {}) ", what, bytes, data);
  const Lock lock(Machine::get().mutex);
  const auto* const where = find_memory(data);
  if (of_device && (!where || where->second.device < 0)) return name + "is not device memory";
  if (!of_device && where && where->second.device >= 0)
    return fmt::format("{}is memory of device {}", name, where->second.device);
  if (!of_device && data == nullptr) return name + "is null";
  if (where && reinterpret_cast<std::uintptr_t>(data) + bytes > where->first + where->second.bytes)
    return fmt::format("{}extends beyond its allocation of {} bytes", name, where->second.bytes);
  return "";
}

void require_range(const void* data, std::size_t bytes, bool of_device, const char* what) {
  if (const std::string why = range_refusal(data, bytes, of_device, what); !why.empty())
    refuse(cudaErrorInvalidValue, why);
}

bool is_of_device(const void* data) {
  const Lock lock(Machine::get().mutex);
  const auto* const where = find_memory(data);
  return where && where->second.device >= 0;
}

void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (bytes == 0) return;
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault)
    refuse(cudaErrorInvalidValue, "no such cudaMemcpyKind: " + std::to_string(static_cast<int>(kind)));
  const bool any = kind == cudaMemcpyDefault;
  const bool to_device = any ? is_of_device(to) : kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device =
      any ? is_of_device(from) : kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  require_range(to, bytes, to_device, "the destination");
  require_range(from, bytes, from_device, "the source");
  put(stream, [=] { return [=] { std::memmove(to, from, bytes); }; });
}

void set(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return;
  require_range(memory, bytes, true, "the memory");
  put(stream, [=] { return [=] { std::memset(memory, value, bytes); }; });
}

// With the machine's mutex held: allocating and freeing would be no part of the graph.
void require_no_capture() {
  for (const cudaStream_t stream : Machine::get().streams)
    if (stream->capture && stream->capture->thread == std::this_thread::get_id())
      refuse(cudaErrorStreamCaptureUnsupported, "this thread is capturing a stream");
}

std::size_t used_memory(int device) {
  std::size_t used = 0;
  for (const auto& [begin, allocation] : Machine::get().memory)
    if (allocation.device == device) used += allocation.bytes;
  return used;
}

cudaError_t allocate(const char* call, void** memory, std::size_t bytes, int device) {
  return locked(call, [&](Machine& machine) {
    if (!memory) refuse(cudaErrorInvalidValue, "the output pointer is null");
    *memory = nullptr;
    if (bytes == 0) return;
    require_no_capture();
    const std::size_t used = used_memory(device);
    if (device >= 0 && (bytes > device_memory || used > device_memory - bytes))
      refuse(cudaErrorMemoryAllocation,
             fmt::format("out of memory: {} bytes requested, {} of {} in use", bytes, used, device_memory));
    *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (!*memory) throw Failure{cudaErrorMemoryAllocation};
    std::memset(*memory, fresh_byte, bytes);
    machine.memory[reinterpret_cast<std::uintptr_t>(*memory)] = {bytes, device};
  });
}

std::vector<Point> ends_of_streams(int device) {
  Machine& machine = Machine::get();
  const Lock lock(machine.mutex);
  std::vector<Point> points;
  const auto add = [&](const CUstream_st& stream) {
    if (stream.device == device) points.push_back(end_of(stream.queue));
  };
  for (const cudaStream_t stream : machine.streams) add(*stream);
  for (const auto& [own, stream] : machine.default_streams) add(*stream);
  for (const auto& [of_device, end] : machine.destroyed)
    if (of_device == device) points.push_back(end);
  return points;
}

void wait_for_device(int device) {
  for (const Point& point : ends_of_streams(device)) point.wait();
}

cudaError_t release(const char* call, void* memory, bool pinned) {
  if (!memory) return cudaSuccess;
  Machine& machine = Machine::get();
  const auto find = [&] { return machine.memory.find(reinterpret_cast<std::uintptr_t>(memory)); };
  int device = 0;
  const cudaError_t code = locked(call, [&](Machine&) {
    require_no_capture();
    if (find() == machine.memory.end() || (find()->second.device < 0) != pinned)
      refuse(cudaErrorInvalidValue,
             fmt::format("{} was already freed, or not allocated by the matching function", memory));
    device = find()->second.device;
  });
  if (code != cudaSuccess) return code;
  if (!pinned) wait_for_device(device);  // like CUDA, waits for all work, including that of destroyed streams
  const Lock lock(machine.mutex);
  std::memset(memory, freed_byte, find()->second.bytes);
  machine.memory.erase(find());
  std::free(memory);
  return cudaSuccess;
}

// The present end of the stream.
Point end_of(cudaStream_t stream) {
  const Lock lock(Machine::get().mutex);
  const CUstream_st& found = valid(stream);
  if (found.capture) refuse(cudaErrorStreamCaptureUnsupported, "this stream is being captured");
  return end_of(found.queue);
}

bool done(const std::shared_ptr<Record>& record) { return !record || record->point.reached(); }

int device_count() { return static_cast<int>(Machine::get().devices.size()); }
void require_device(int device) {
  if (device < 0 || device >= device_count())
    refuse(cudaErrorInvalidDevice, fmt::format("no device {}: there are {}", device, device_count()));
}

// Reports what the program leaked.
struct AtExit {
  ~AtExit() {
    Machine& machine = Machine::get();
    const Lock lock(machine.mutex);
    std::string left;
    const auto add = [&](std::size_t count, const std::string& what) {
      if (count) left += (left.empty() ? "" : ", ") + std::to_string(count) + " " + what + (count > 1 ? "s" : "");
    };
    add(machine.memory.size(), "buffer");
    add(machine.streams.size(), "stream");
    add(machine.events.size(), "event");
    add(machine.graphs.size(), "graph");
    add(machine.executables.size(), "executable graph");
    if (!left.empty()) host_nccl::say("leaked at exit: " + left);
  }
} at_exit;

}  // namespace

namespace host_nccl {

void say(const std::string& line) {
  const std::string text = "host-nccl: " + line + "\n";
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) return;  // stderr is closed
}

std::chrono::seconds deadline() {
  static const int seconds = [] {
    const char* text = std::getenv("HOST_NCCL_DEADLINE");
    const std::optional<int> value = text ? whole_number(text, 999999) : 10;
    if (!value) say("HOST_NCCL_DEADLINE must be seconds from 0 to 999999, not '" + std::string(text) + "'; using 10");
    return value.value_or(10);
  }();
  return std::chrono::seconds(seconds);
}

cudaError_t enqueue(cudaStream_t stream, std::function<Task()> make) {
  return guarded("NCCL", [&] { put(stream, make); });
}

cudaStream_t find_stream(cudaStream_t stream, int device) {
  const Lock lock(Machine::get().mutex);
  return find(stream, device);
}
int device_of(cudaStream_t found) { return found->device; }

std::string refusal(const void* data, std::size_t bytes, int device) {
  if (bytes == 0) return "";
  int owner = device;
  {
    const Lock lock(Machine::get().mutex);
    if (const auto* const where = find_memory(data)) owner = where->second.device;
  }
  if (owner >= 0 && owner != device)
    return fmt::format("it is memory of device {}, and the communicator's is {}", owner, device);
  return range_refusal(data, bytes, owner >= 0, "it");  // pinned host memory is also valid
}

int physical_device(int device) { return Machine::get().devices.at(static_cast<std::size_t>(device)); }

}  // namespace host_nccl

extern "C" {

const char* host_nccl_description() {
  const std::string& text = Machine::get().description;
  return text.empty() ? nullptr : text.c_str();
}

// Devices and errors

cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count();
  return guarded(__func__, [] {});
}
cudaError_t cudaGetDevice(int* device) {
  return guarded(__func__, [&] { *device = current_device; });
}
cudaError_t cudaSetDevice(int device) {
  return guarded(__func__, [&] {
    require_device(device);
    current_device = device;
  });
}
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }
const char* cudaGetErrorName(cudaError_t error) {
  static constexpr std::pair<cudaError_t, const char*> names[] = {
      {cudaSuccess, "cudaSuccess"},
      {cudaErrorInvalidValue, "cudaErrorInvalidValue"},
      {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation"},
      {cudaErrorNoDevice, "cudaErrorNoDevice"},
      {cudaErrorInvalidDevice, "cudaErrorInvalidDevice"},
      {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle"},
      {cudaErrorNotReady, "cudaErrorNotReady"},
      {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported"},
      {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread"},
      {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit"},
      {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation"},
      {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge"},
      {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined"},
      {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched"},
      {cudaErrorCapturedEvent, "cudaErrorCapturedEvent"},
      {cudaErrorIllegalState, "cudaErrorIllegalState"}};
  for (const auto& [code, name] : names)
    if (code == error) return name;
  return "unknown cudaError";
}
const char* cudaGetErrorString(cudaError_t error) {
  if (explained.first == error && error != cudaSuccess) return explained.second.c_str();
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorNoDevice:
      return "no GPU; set HOST_NCCL_DEVICES=N to use N stand-ins";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNotReady:
      return "not ready";
    default:
      return "an error of host-nccl's CUDA runtime";
  }
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = has_device() ? CUDART_VERSION : 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return guarded(__func__, [&] {
    require_device(device);
    *properties = {};
    std::strncpy(properties->name, "host-nccl stand-in", sizeof properties->name - 1);
    properties->totalGlobalMem = device_memory;
    properties->pciDeviceID = host_nccl::physical_device(device);
  });
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  return guarded(__func__, [&] {
    require_device(device);
    std::snprintf(text, static_cast<std::size_t>(bytes), "0000:00:%02x.0",
                  static_cast<unsigned>(host_nccl::physical_device(device)));
  });
}
// Peer access is not supported.
cudaError_t cudaDeviceCanAccessPeer(int* access, int device, int peer) {
  return guarded(__func__, [&] {
    require_device(device);
    require_device(peer);
    *access = 0;
  });
}
cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute, int device, int peer) {
  if (attribute == cudaDevP2PAttrAccessSupported) return cudaDeviceCanAccessPeer(value, device, peer);
  return guarded(__func__, [] { refuse(cudaErrorInvalidDevice, "these devices have no peer access"); });
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return locked(__func__, [&](Machine&) {
    *total = device_memory;
    *free = device_memory - used_memory(current_device);
  });
}
cudaError_t cudaDeviceSynchronize() {
  return guarded(__func__, [] { wait_for_device(current_device); });
}

// Memory

cudaError_t cudaMalloc(void** memory, std::size_t bytes) { return allocate(__func__, memory, bytes, current_device); }
cudaError_t cudaFree(void* memory) { return release(__func__, memory, false); }
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) { return allocate(__func__, memory, bytes, -1); }
cudaError_t cudaFreeHost(void* memory) { return release(__func__, memory, true); }
cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  return guarded(__func__, [&] { set(memory, value, bytes, nullptr); });
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  return guarded(__func__, [&] { set(memory, value, bytes, stream); });
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  const cudaError_t code = guarded(__func__, [&] { copy(to, from, bytes, kind, nullptr); });
  return code == cudaSuccess ? cudaStreamSynchronize(nullptr) : code;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return guarded(__func__, [&] { copy(to, from, bytes, kind, stream); });
}

// Streams

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return locked(__func__, [&](Machine& machine) {
    auto made = std::make_unique<CUstream_st>();
    made->device = current_device;
    made->blocking = !(flags & cudaStreamNonBlocking);
    machine.streams.insert(*stream = made.release());
  });
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return locked(__func__, [&](Machine& machine) {
    valid(stream);
    if (machine.streams.erase(stream) == 0) throw Failure{cudaErrorInvalidResourceHandle};  // the default stream
    stream->queue->close();
    std::erase_if(machine.destroyed, [](const auto& one) { return one.second.reached(); });
    machine.destroyed.push_back({stream->device, end_of(stream->queue)});
    delete stream;
  });
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return guarded(__func__, [&] { return end_of(stream).reached() ? cudaSuccess : cudaErrorNotReady; });
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return guarded(__func__, [&] { end_of(stream).wait(); });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return locked(__func__, [&](Machine&) {
    valid(event);
    CUstream_st& found = valid(stream);
    if (event->captured) {
      const auto capture = event->capture.lock();
      if (!capture) refuse(cudaErrorCapturedEvent, "this event was last recorded in a capture that has ended");
      if (is_default(&found)) refuse(cudaErrorStreamCaptureImplicit, "the default stream cannot join a capture");
      if (found.capture && found.capture != capture)
        refuse(cudaErrorStreamCaptureMerge, "the stream and the event are parts of two captures");
      if (!found.capture) capture->streams.push_back(&found);
      found.capture = capture;
      for (const auto& [other, number] : event->seen) found.seen[other] = std::max(found.seen[other], number);
    } else if (found.capture) {
      refuse(cudaErrorStreamCaptureIsolation, "this stream is being captured, and the event is outside");
    } else if (const auto record = event->record) {  // as in CUDA: without one the event counts as complete
      submit(&found, [record] { record->point.wait(); });
    }
  });
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return guarded(__func__, [&] { put(stream, [=] { return [=] { function(data); }; }); });
}

// Events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return locked(__func__, [&](Machine& machine) {
    auto made = std::make_unique<CUevent_st>();
    made->device = current_device;
    made->timed = !(flags & cudaEventDisableTiming);
    machine.events.insert(*event = made.release());
  });
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return locked(__func__, [&](Machine& machine) {
    valid(event);
    machine.events.erase(event);
    delete event;
  });
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return locked(__func__, [&](Machine&) {
    valid(event);
    CUstream_st& found = valid(stream);
    if (found.device != event->device)
      refuse(cudaErrorInvalidResourceHandle,
             fmt::format("the event is of device {}, the stream of device {}", event->device, found.device));
    event->captured = found.capture != nullptr;
    event->capture = found.capture;
    event->seen = found.seen;
    if (event->captured) return;
    auto record = std::make_shared<Record>();
    record->point = submit(&found, [record] { record->time = Clock::now(); });
    event->record = std::move(record);
  });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return locked(__func__, [&](Machine&) { return done(record_of(event)) ? cudaSuccess : cudaErrorNotReady; });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  std::shared_ptr<Record> record;
  const cudaError_t code = locked(__func__, [&](Machine&) { record = record_of(event); });
  if (record) record->point.wait();
  return code;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return locked(__func__, [&](Machine&) {
    const auto from = record_of(start), to = record_of(end);
    if (!from || !to || !start->timed || !end->timed)
      refuse(cudaErrorInvalidResourceHandle, "the event was not recorded, or has no timing");
    if (!done(from) || !done(to)) return cudaErrorNotReady;
    *milliseconds = std::chrono::duration<float, std::milli>(to->time - from->time).count();
    return cudaSuccess;
  });
}

// Graphs: recorded tasks of a stream, to be launched again

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  return locked(__func__, [&](Machine&) {
    CUstream_st* const found = &valid(stream);
    if (is_default(found)) refuse(cudaErrorStreamCaptureUnsupported, "the default stream cannot be captured");
    if (found->capture) refuse(cudaErrorIllegalState, "this stream is being captured");
    found->capture = std::make_shared<Capture>(Capture{found, std::this_thread::get_id(), {}, {found}});
  });
}
// Queries of another thread never disturb a capture here.
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return locked(__func__, [&](Machine&) {
    *status = valid(stream).capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  });
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return locked(__func__, [&](Machine& machine) {
    CUstream_st& found = valid(stream);
    *graph = nullptr;
    const std::shared_ptr<Capture> capture = found.capture;
    if (!capture) refuse(cudaErrorIllegalState, "this stream is not captured");
    if (capture->thread != std::this_thread::get_id())
      refuse(cudaErrorStreamCaptureWrongThread, "another thread began the capture");
    if (capture->origin != &found) refuse(cudaErrorStreamCaptureUnmatched, "the capture began on another stream");
    bool joined = true;
    for (const cudaStream_t one : capture->streams) {
      if (machine.streams.count(one) == 0) continue;
      joined = joined && found.seen[one] == one->seen[one];
      one->capture.reset();
      if (one != &found) one->seen.clear();
    }
    found.seen.clear();
    if (!joined)
      refuse(cudaErrorStreamCaptureUnjoined, "another stream has tasks in the capture that this one does not wait for");
    machine.graphs.insert(*graph = new CUgraph_st{std::move(capture->tasks)});
  });
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  return locked(__func__, [&](Machine& machine) {
    if (!machine.graphs.count(graph)) throw Failure{cudaErrorInvalidValue};
    machine.executables.insert(*executable = new CUgraphExec_st{graph->tasks});
  });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return locked(__func__, [&](Machine& machine) {
    if (machine.graphs.erase(graph) == 0) throw Failure{cudaErrorInvalidValue};
    delete graph;
  });
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return locked(__func__, [&](Machine& machine) {
    if (machine.executables.erase(executable) == 0) throw Failure{cudaErrorInvalidValue};
    delete executable;
  });
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return locked(__func__, [&](Machine& machine) {
    CUstream_st& found = valid(stream);
    if (!machine.executables.count(executable)) throw Failure{cudaErrorInvalidResourceHandle};
    for (const Make& make : executable->tasks) submit(&found, make());
  });
}

// Kernels: the functions that nvcc's code calls. Launches fail with the kernel's name.

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}
void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  int status = 0;
  char* text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  const Lock lock(Machine::get().mutex);
  Machine::get().kernels[function] = status == 0 ? text : name;
  std::free(text);
}
unsigned __cudaPushCallConfiguration(dim3, dim3, std::size_t, cudaStream_t) { return 0; }
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
  *grid = *block = dim3(1, 1, 1);
  *shared = 0;
  *static_cast<cudaStream_t*>(stream) = nullptr;
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void**, std::size_t, cudaStream_t) {
  std::string name;
  if (has_device()) {
    const Lock lock(Machine::get().mutex);
    name = Machine::get().kernels[function];
  }
  return guarded(("kernel " + name.substr(0, name.rfind('('))).c_str(),
                 [] { refuse(cudaErrorNoDevice, "host-nccl cannot run kernels: use a GPU"); });
}
#if CUDART_VERSION >= 12010
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                               cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}
#endif

}  // extern "C"
