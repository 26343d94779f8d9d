// A stand-in for the CUDA runtime: HOST_NCCL_DEVICES devices in host memory, one thread per stream, no kernels.
// See README.md.
#include "device.hpp"

#include <cxxabi.h>
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
};

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

cudaError_t result(cudaError_t code) {
  if (code != cudaSuccess && code != cudaErrorNotReady) last_error = code;
  return code;
}
// `why` becomes the text of cudaGetErrorString for this error on this thread.
cudaError_t refuse(cudaError_t code, const std::string& call, const std::string& why) {
  explained = {code, call + ": " + why};
  return result(code);
}

cudaError_t no_device() { return result(cudaErrorNoDevice); }
bool has_device() { return !Machine::get().devices.empty(); }

// With the machine's mutex held.
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
bool is_default(const CUstream_st* stream) {
  const auto own = Machine::get().default_streams.find(stream->device);
  return own != Machine::get().default_streams.end() && own->second.get() == stream;
}

// With the machine's mutex held: appends a task to `stream`, after the work that the rules of the default stream put
// before it.
Point submit(CUstream_st* stream, Task task) {
  Machine& machine = Machine::get();
  std::vector<Point> before;
  if (stream->blocking) {
    if (is_default(stream)) {
      for (const cudaStream_t other : machine.streams)
        if (other->device == stream->device && other->blocking)
          before.push_back({other->queue, other->queue->submitted()});
    } else if (const auto own = machine.default_streams.find(stream->device); own != machine.default_streams.end()) {
      before.push_back({own->second->queue, own->second->queue->submitted()});
    }
    std::erase_if(before, [](const Point& point) { return point.queue->reached(point.number); });
  }
  if (!before.empty())
    task = [before, task = std::move(task)] {
      for (const Point& point : before) point.queue->wait_for(point.number);
      task();
    };
  return {stream->queue, stream->queue->put(std::move(task))};
}

cudaError_t put(const char* call, cudaStream_t stream, Make make) {
  if (!has_device()) return no_device();
  const Lock lock(Machine::get().mutex);
  CUstream_st* found = find(stream);
  if (!found) return refuse(cudaErrorInvalidResourceHandle, call, "this stream was destroyed or never created");
  if (found->capture) {
    found->capture->tasks.push_back(std::move(make));
    ++found->seen[found];
  } else {
    submit(found, make());
  }
  return cudaSuccess;
}

std::string text_of(const void* data) {
  std::ostringstream out;
  out << data;
  return out.str();
}

struct Where {
  std::uintptr_t begin = 0;
  Allocation allocation;
};
// The allocation that `data` points into. With the machine's mutex held.
std::optional<Where> find_memory(const void* data) {
  const auto& memory = Machine::get().memory;
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  auto at = memory.upper_bound(address);
  if (at == memory.begin()) return std::nullopt;
  --at;
  if (address >= at->first + at->second.bytes) return std::nullopt;
  return Where{at->first, at->second};
}

std::string range_refusal(const void* data, std::size_t bytes, bool of_device, const char* what) {
  const std::string name = std::string(what) + " (" + std::to_string(bytes) + " bytes at " + text_of(data) + ") ";
  const Lock lock(Machine::get().mutex);
  const auto where = find_memory(data);
  if (of_device && (!where || where->allocation.device < 0)) return name + "is not device memory";
  if (!of_device && where && where->allocation.device >= 0)
    return name + "is memory of device " + std::to_string(where->allocation.device);
  if (!of_device && data == nullptr) return name + "is null";
  if (where && reinterpret_cast<std::uintptr_t>(data) + bytes > where->begin + where->allocation.bytes)
    return name + "extends beyond its allocation of " + std::to_string(where->allocation.bytes) + " bytes";
  return "";
}

// The reason why a copy of this kind is invalid; "" if it is valid.
std::string copy_refusal(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  bool to_device = false, from_device = false;
  switch (kind) {
    case cudaMemcpyHostToHost:
      break;
    case cudaMemcpyHostToDevice:
      to_device = true;
      break;
    case cudaMemcpyDeviceToHost:
      from_device = true;
      break;
    case cudaMemcpyDeviceToDevice:
      to_device = from_device = true;
      break;
    case cudaMemcpyDefault: {
      const Lock lock(Machine::get().mutex);
      const auto device = [](const void* data) {
        const auto where = find_memory(data);
        return where && where->allocation.device >= 0;
      };
      to_device = device(to);
      from_device = device(from);
      break;
    }
    default:
      return "no such cudaMemcpyKind: " + std::to_string(static_cast<int>(kind));
  }
  std::string why = range_refusal(to, bytes, to_device, "the destination");
  if (why.empty()) why = range_refusal(from, bytes, from_device, "the source");
  return why;
}

cudaError_t copy(const char* call, void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                 cudaStream_t stream) {
  if (!has_device()) return no_device();
  if (bytes == 0) return cudaSuccess;
  if (const std::string why = copy_refusal(to, from, bytes, kind); !why.empty())
    return refuse(cudaErrorInvalidValue, call, why);
  return put(call, stream, [=] { return [=] { std::memmove(to, from, bytes); }; });
}

cudaError_t set(const char* call, void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  if (!has_device()) return no_device();
  if (bytes == 0) return cudaSuccess;
  if (const std::string why = range_refusal(memory, bytes, true, "the memory"); !why.empty())
    return refuse(cudaErrorInvalidValue, call, why);
  return put(call, stream, [=] { return [=] { std::memset(memory, value, bytes); }; });
}

// With the machine's mutex held: allocating and freeing would be no part of the graph.
bool this_thread_captures() {
  return std::ranges::any_of(Machine::get().streams, [](cudaStream_t stream) {
    return stream->capture && stream->capture->thread == std::this_thread::get_id();
  });
}

cudaError_t allocate(const char* call, void** memory, std::size_t bytes, int device) {
  if (!has_device()) return no_device();
  if (!memory) return refuse(cudaErrorInvalidValue, call, "the output pointer is null");
  *memory = nullptr;
  if (bytes == 0) return cudaSuccess;
  Machine& machine = Machine::get();
  const Lock lock(machine.mutex);
  if (this_thread_captures())
    return refuse(cudaErrorStreamCaptureUnsupported, call, "this thread is capturing a stream");
  std::size_t used = 0;
  for (const auto& [begin, allocation] : machine.memory)
    if (allocation.device == device) used += allocation.bytes;
  if (device >= 0 && (bytes > device_memory || used > device_memory - bytes))
    return refuse(cudaErrorMemoryAllocation, call,
                  "out of memory: " + std::to_string(bytes) + " bytes requested, " + std::to_string(used) + " of " +
                      std::to_string(device_memory) + " in use");
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (!*memory) return result(cudaErrorMemoryAllocation);
  std::memset(*memory, fresh_byte, bytes);
  machine.memory[reinterpret_cast<std::uintptr_t>(*memory)] = {bytes, device};
  return cudaSuccess;
}

std::vector<Point> ends_of_streams(int device) {
  Machine& machine = Machine::get();
  const Lock lock(machine.mutex);
  std::vector<Point> points;
  const auto add = [&](const CUstream_st& stream) {
    if (stream.device == device) points.push_back({stream.queue, stream.queue->submitted()});
  };
  for (const cudaStream_t stream : machine.streams) add(*stream);
  for (const auto& [own, stream] : machine.default_streams) add(*stream);
  for (const auto& [of_device, end] : machine.destroyed)
    if (of_device == device) points.push_back(end);
  return points;
}

cudaError_t release(const char* call, void* memory, bool pinned) {
  if (!memory) return cudaSuccess;
  Machine& machine = Machine::get();
  int device = 0;
  {
    const Lock lock(machine.mutex);
    if (this_thread_captures())
      return refuse(cudaErrorStreamCaptureUnsupported, call, "this thread is capturing a stream");
    const auto found = machine.memory.find(reinterpret_cast<std::uintptr_t>(memory));
    if (found == machine.memory.end() || (found->second.device < 0) != pinned)
      return refuse(cudaErrorInvalidValue, call,
                    text_of(memory) + " was already freed, or not allocated by the matching function");
    device = found->second.device;
  }
  if (!pinned)  // like CUDA, waits for all work of the device, including that of destroyed streams
    for (const Point& point : ends_of_streams(device)) point.queue->wait_for(point.number);
  const Lock lock(machine.mutex);
  const auto found = machine.memory.find(reinterpret_cast<std::uintptr_t>(memory));
  std::memset(memory, freed_byte, found->second.bytes);
  machine.memory.erase(found);
  std::free(memory);
  return cudaSuccess;
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

cudaError_t enqueue(cudaStream_t stream, Make make) { return put("NCCL", stream, std::move(make)); }

cudaStream_t find_stream(cudaStream_t stream, int device) {
  const Lock lock(Machine::get().mutex);
  return find(stream, device);
}
int device_of(cudaStream_t found) { return found->device; }

std::string refusal(const void* data, std::size_t bytes, int device) {
  if (bytes == 0) return "";
  if (std::string why = range_refusal(data, bytes, true, "it"); !why.empty()) {
    const Lock lock(Machine::get().mutex);
    const auto where = find_memory(data);  // pinned host memory is also valid
    if (!where || where->allocation.device >= 0) return why;
    return reinterpret_cast<std::uintptr_t>(data) + bytes > where->begin + where->allocation.bytes ? why : "";
  }
  const Lock lock(Machine::get().mutex);
  const int owner = find_memory(data)->allocation.device;
  if (owner == device) return "";
  return "it is memory of device " + std::to_string(owner) + ", and the communicator's is " + std::to_string(device);
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
  *count = static_cast<int>(Machine::get().devices.size());
  return *count ? cudaSuccess : no_device();
}
cudaError_t cudaGetDevice(int* device) {
  if (!has_device()) return no_device();
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (!has_device()) return no_device();
  const auto count = static_cast<int>(Machine::get().devices.size());
  if (device < 0 || device >= count)
    return refuse(cudaErrorInvalidDevice, "cudaSetDevice",
                  "no device " + std::to_string(device) + ": there are " + std::to_string(count));
  current_device = device;
  return cudaSuccess;
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
      {cudaErrorNotSupported, "cudaErrorNotSupported"},
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
  if (!has_device()) return no_device();
  if (device < 0 || device >= static_cast<int>(Machine::get().devices.size())) return result(cudaErrorInvalidDevice);
  *properties = {};
  std::strncpy(properties->name, "host-nccl stand-in", sizeof properties->name - 1);
  properties->totalGlobalMem = device_memory;
  properties->pciDeviceID = host_nccl::physical_device(device);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  if (!has_device()) return no_device();
  if (device < 0 || device >= static_cast<int>(Machine::get().devices.size())) return result(cudaErrorInvalidDevice);
  std::snprintf(text, static_cast<std::size_t>(bytes), "0000:00:%02x.0",
                static_cast<unsigned>(host_nccl::physical_device(device)));
  return cudaSuccess;
}
// Peer access is not supported.
cudaError_t cudaDeviceCanAccessPeer(int* access, int device, int peer) {
  if (!has_device()) return no_device();
  const int count = static_cast<int>(Machine::get().devices.size());
  if (device < 0 || device >= count || peer < 0 || peer >= count) return result(cudaErrorInvalidDevice);
  *access = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute, int device, int peer) {
  if (attribute == cudaDevP2PAttrAccessSupported) return cudaDeviceCanAccessPeer(value, device, peer);
  return refuse(cudaErrorInvalidDevice, "cudaDeviceGetP2PAttribute", "these devices have no peer access");
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  if (!has_device()) return no_device();
  const Lock lock(Machine::get().mutex);
  *free = *total = device_memory;
  for (const auto& [begin, allocation] : Machine::get().memory)
    if (allocation.device == current_device) *free -= allocation.bytes;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  if (!has_device()) return no_device();
  for (const Point& point : ends_of_streams(current_device)) point.queue->wait_for(point.number);
  return cudaSuccess;
}

// Memory

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  return allocate("cudaMalloc", memory, bytes, current_device);
}
cudaError_t cudaFree(void* memory) { return release("cudaFree", memory, false); }
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) { return allocate("cudaMallocHost", memory, bytes, -1); }
cudaError_t cudaFreeHost(void* memory) { return release("cudaFreeHost", memory, true); }
cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  return set("cudaMemset", memory, value, bytes, nullptr);
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  return set("cudaMemsetAsync", memory, value, bytes, stream);
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  const cudaError_t code = copy("cudaMemcpy", to, from, bytes, kind, nullptr);
  return code == cudaSuccess ? cudaStreamSynchronize(nullptr) : code;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return copy("cudaMemcpyAsync", to, from, bytes, kind, stream);
}

// Streams

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  if (!has_device()) return no_device();
  auto made = std::make_unique<CUstream_st>();
  made->device = current_device;
  made->blocking = !(flags & cudaStreamNonBlocking);
  const Lock lock(Machine::get().mutex);
  Machine::get().streams.insert(*stream = made.release());
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock(Machine::get().mutex);
  if (Machine::get().streams.erase(stream) == 0)
    return refuse(cudaErrorInvalidResourceHandle, "cudaStreamDestroy", "this stream was destroyed or never created");
  stream->queue->close();
  auto& destroyed = Machine::get().destroyed;
  std::erase_if(destroyed, [](const auto& one) { return one.second.queue->reached(one.second.number); });
  destroyed.push_back({stream->device, {stream->queue, stream->queue->submitted()}});
  delete stream;
  return cudaSuccess;
}

}  // extern "C"

namespace {

// The present end of the stream; an error if the stream is invalid or being captured.
cudaError_t end_of(const char* call, cudaStream_t stream, Point& end) {
  if (!has_device()) return no_device();
  const Lock lock(Machine::get().mutex);
  const CUstream_st* found = find(stream);
  if (!found) return refuse(cudaErrorInvalidResourceHandle, call, "this stream was destroyed or never created");
  if (found->capture) return refuse(cudaErrorStreamCaptureUnsupported, call, "this stream is being captured");
  end = {found->queue, found->queue->submitted()};
  return cudaSuccess;
}

// With the machine's mutex held.
cudaError_t known(const char* call, cudaEvent_t event) {
  if (Machine::get().events.count(event)) return cudaSuccess;
  return refuse(cudaErrorInvalidResourceHandle, call, "this event was destroyed or never created");
}

// The event's last record; null if there is none.
cudaError_t record_of(const char* call, cudaEvent_t event, std::shared_ptr<Record>& record) {
  if (!has_device()) return no_device();
  const Lock lock(Machine::get().mutex);
  if (const cudaError_t code = known(call, event); code != cudaSuccess) return code;
  if (event->captured)
    return refuse(cudaErrorCapturedEvent, call, "this event was last recorded in a capture, not executed");
  record = event->record;
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  Point end;
  if (const cudaError_t code = end_of("cudaStreamQuery", stream, end); code != cudaSuccess) return code;
  return end.queue->reached(end.number) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Point end;
  if (const cudaError_t code = end_of("cudaStreamSynchronize", stream, end); code != cudaSuccess) return code;
  end.queue->wait_for(end.number);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const char* call = "cudaStreamWaitEvent";
  if (!has_device()) return no_device();
  const Lock lock(Machine::get().mutex);
  if (const cudaError_t code = known(call, event); code != cudaSuccess) return code;
  CUstream_st* found = find(stream);
  if (!found) return refuse(cudaErrorInvalidResourceHandle, call, "this stream was destroyed or never created");
  if (event->captured) {
    const auto capture = event->capture.lock();
    if (!capture)
      return refuse(cudaErrorCapturedEvent, call, "this event was last recorded in a capture that has ended");
    if (is_default(found))
      return refuse(cudaErrorStreamCaptureImplicit, call, "the default stream cannot join a capture");
    if (found->capture && found->capture != capture)
      return refuse(cudaErrorStreamCaptureMerge, call, "the stream and the event are parts of two captures");
    if (!found->capture) capture->streams.push_back(found);
    found->capture = capture;
    for (const auto& [other, number] : event->seen) found->seen[other] = std::max(found->seen[other], number);
    return cudaSuccess;
  }
  if (found->capture)
    return refuse(cudaErrorStreamCaptureIsolation, call, "this stream is being captured, and the event is outside");
  if (const auto record = event->record)  // as in CUDA: without one the event counts as complete
    submit(found, [record] { record->point.queue->wait_for(record->point.number); });
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return put("cudaLaunchHostFunc", stream, [=] { return [=] { function(data); }; });
}

// Events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (!has_device()) return no_device();
  auto made = std::make_unique<CUevent_st>();
  made->device = current_device;
  made->timed = !(flags & cudaEventDisableTiming);
  const Lock lock(Machine::get().mutex);
  Machine::get().events.insert(*event = made.release());
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Lock lock(Machine::get().mutex);
  if (Machine::get().events.erase(event) == 0)
    return refuse(cudaErrorInvalidResourceHandle, "cudaEventDestroy", "this event was destroyed or never created");
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const char* call = "cudaEventRecord";
  if (!has_device()) return no_device();
  const Lock lock(Machine::get().mutex);
  if (const cudaError_t code = known(call, event); code != cudaSuccess) return code;
  CUstream_st* found = find(stream);
  if (!found) return refuse(cudaErrorInvalidResourceHandle, call, "this stream was destroyed or never created");
  if (found->device != event->device)
    return refuse(cudaErrorInvalidResourceHandle, call,
                  "the event is of device " + std::to_string(event->device) + ", the stream of device " +
                      std::to_string(found->device));
  event->captured = found->capture != nullptr;
  event->capture = found->capture;
  event->seen = found->seen;
  if (event->captured) return cudaSuccess;
  auto record = std::make_shared<Record>();
  record->point = submit(found, [record] { record->time = Clock::now(); });
  event->record = std::move(record);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  std::shared_ptr<Record> record;
  if (const cudaError_t code = record_of("cudaEventQuery", event, record); code != cudaSuccess) return code;
  return !record || record->point.queue->reached(record->point.number) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  std::shared_ptr<Record> record;
  if (const cudaError_t code = record_of("cudaEventSynchronize", event, record); code != cudaSuccess) return code;
  if (record) record->point.queue->wait_for(record->point.number);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  std::shared_ptr<Record> from, to;
  for (const auto& [event, record] : {std::pair(start, &from), std::pair(end, &to)}) {
    if (const cudaError_t code = record_of("cudaEventElapsedTime", event, *record); code != cudaSuccess) return code;
    if (!*record || !event->timed)
      return refuse(cudaErrorInvalidResourceHandle, "cudaEventElapsedTime",
                    "the event was not recorded, or has no timing");
    if (!(*record)->point.queue->reached((*record)->point.number)) return cudaErrorNotReady;
  }
  *milliseconds = std::chrono::duration<float, std::milli>(to->time - from->time).count();
  return cudaSuccess;
}

// Graphs: recorded tasks of a stream, to be launched again

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const Lock lock(Machine::get().mutex);
  CUstream_st* found = find(stream);
  if (!found) return result(cudaErrorInvalidResourceHandle);
  if (is_default(found))
    return refuse(cudaErrorStreamCaptureUnsupported, "cudaStreamBeginCapture", "the default stream cannot be captured");
  if (found->capture) return refuse(cudaErrorIllegalState, "cudaStreamBeginCapture", "this stream is being captured");
  found->capture = std::make_shared<Capture>(Capture{found, std::this_thread::get_id(), {}, {found}});
  return cudaSuccess;
}
// Queries of another thread never disturb a capture here.
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const Lock lock(Machine::get().mutex);
  const CUstream_st* found = find(stream);
  if (!found) return result(cudaErrorInvalidResourceHandle);
  *status = found->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const char* call = "cudaStreamEndCapture";
  const Lock lock(Machine::get().mutex);
  CUstream_st* found = find(stream);
  if (!found) return result(cudaErrorInvalidResourceHandle);
  *graph = nullptr;
  const std::shared_ptr<Capture> capture = found->capture;
  if (!capture) return refuse(cudaErrorIllegalState, call, "this stream is not captured");
  if (capture->thread != std::this_thread::get_id())
    return refuse(cudaErrorStreamCaptureWrongThread, call, "another thread began the capture");
  if (capture->origin != found)
    return refuse(cudaErrorStreamCaptureUnmatched, call, "the capture began on another stream");
  bool joined = true;
  for (const cudaStream_t one : capture->streams) {
    if (Machine::get().streams.count(one) == 0) continue;
    joined = joined && found->seen[one] == one->seen[one];
    one->capture.reset();
    if (one != found) one->seen.clear();
  }
  found->seen.clear();
  if (!joined)
    return refuse(cudaErrorStreamCaptureUnjoined, call,
                  "another stream has tasks in the capture that this one does not wait for");
  Machine::get().graphs.insert(*graph = new CUgraph_st{std::move(capture->tasks)});
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  const Lock lock(Machine::get().mutex);
  if (!Machine::get().graphs.count(graph)) return result(cudaErrorInvalidValue);
  Machine::get().executables.insert(*executable = new CUgraphExec_st{graph->tasks});
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  const Lock lock(Machine::get().mutex);
  if (Machine::get().graphs.erase(graph) == 0) return result(cudaErrorInvalidValue);
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  const Lock lock(Machine::get().mutex);
  if (Machine::get().executables.erase(executable) == 0) return result(cudaErrorInvalidValue);
  delete executable;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  const Lock lock(Machine::get().mutex);
  CUstream_st* found = find(stream);
  if (!found || !Machine::get().executables.count(executable)) return result(cudaErrorInvalidResourceHandle);
  for (const Make& make : executable->tasks) submit(found, make());
  return cudaSuccess;
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
  if (!has_device()) return no_device();
  std::string name;
  {
    const Lock lock(Machine::get().mutex);
    name = Machine::get().kernels[function];
  }
  return refuse(cudaErrorNoDevice, "kernel " + name.substr(0, name.rfind('(')),
                "host-nccl cannot run kernels: use a GPU");
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
