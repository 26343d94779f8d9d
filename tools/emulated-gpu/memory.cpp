// Memory: allocations, copies and fills. Each is checked against its kind and against the allocations.
#include "runtime.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

using namespace emulated_gpu;

namespace {

constexpr std::size_t page = 4096, red_zone = 256, most_staged = std::size_t{1} << 20;
constexpr std::size_t before_block = 16;  // where malloc() keeps the size of a block

std::size_t up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }
std::uintptr_t number(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }

struct sigaction next_handler;

// One line for code of the host that touches device memory. Then the signal has the effect that it would have had.
void report_access(int, siginfo_t* info, void*) {
  const std::uintptr_t address = number(info->si_addr);
  if (address + before_block - device_addresses.begin < device_addresses.bytes) {
    std::string what = "memory that is not allocated";
    if (Machine& machine = the<Machine>(); machine.mutex.try_lock()) {
      const auto place = [&](const auto& found) {
        return fmt::format("an allocation of {} bytes on device {}", found.second.bytes, found.second.device);
      };
      if (const auto* const found = find_memory(info->si_addr))
        what = fmt::format("byte {} of {}", address - found->first, place(*found));
      else if (const auto* const behind = find_memory(static_cast<const char*>(info->si_addr) + before_block))
        what = "just before " + place(*behind) + ", as free() and delete do: free it with cudaFree";
      machine.mutex.unlock();
    }
    report(
        fmt::format("the host accessed device memory at {}: {}. Copy it with cudaMemcpy; MPI takes host memory here{}",
                    info->si_addr, what, place_of(frames())));
  }
  if (address - device_addresses.begin - device_addresses.bytes < device_addresses.bytes)  // its second mapping
    report(
        fmt::format("work of a stream used device memory at {:#x} after cudaFreeAsync had freed it on another stream",
                    address - device_addresses.bytes));
  sigaction(SIGSEGV, &next_handler, nullptr);  // and the access is repeated
}

void catch_accesses() {
  struct sigaction now {};
  sigaction(SIGSEGV, nullptr, &now);
  if (now.sa_flags & SA_SIGINFO && now.sa_sigaction == &report_access) return;
  next_handler = now;
  now = {};
  now.sa_sigaction = &report_access;
  now.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &now, nullptr);
}

// The addresses of device memory. Those of freed memory are not given out again before all others were.
class Arena {
 public:
  // With the machine's mutex held. Null, if it cannot.
  void* place(std::size_t bytes) {
    if (addresses.bytes == 0 && !reserve()) return nullptr;
    const std::size_t size = up(bytes + red_zone, page);
    const std::uintptr_t end = addresses.begin + addresses.bytes;
    bool wrapped = false;
    std::uintptr_t at = next_;
    for (const auto& memory = the<Machine>().memory;;) {  // the first gap after the last allocation
      if (end - at < size) {
        if (wrapped) return nullptr;
        wrapped = true;
        at = addresses.begin;
      }
      const auto behind = memory.lower_bound(at);
      if (behind == memory.end() || behind->first >= at + size) break;
      at = behind->first + up(behind->second.bytes + red_zone, page);
    }
    auto* const memory = reinterpret_cast<void*>(at);
    if (mprotect(view(memory), size, PROT_READ | PROT_WRITE) != 0) return nullptr;
    poison(static_cast<char*>(view(memory)), bytes);
    next_ = at + size;
    catch_accesses();
    return memory;
  }
  void* place_in_host(std::size_t bytes) {
    void* const got = mmap(nullptr, up(bytes + red_zone, page), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (got == MAP_FAILED) return nullptr;
    poison(static_cast<char*>(got), bytes);
    return got;
  }
  // A late access of the emulation itself to freed memory ends the process.
  void release(void* memory, std::size_t bytes) {
    mmap(view(memory), up(bytes + red_zone, page), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
         -1, 0);
  }
  inline static Addresses& addresses = *new Addresses;

 private:
  bool reserve() {
    // Less where ulimit -v allows no more.
    for (std::size_t bytes = 2 * device_memory * the<Machine>().devices.size(); bytes >= page; bytes /= 2) {
      void* const got = mmap(nullptr, 2 * bytes + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (got == MAP_FAILED) continue;
      addresses.begin = number(got) + page;  // so that what is before the first block is ours, too
      addresses.bytes = bytes;
      next_ = addresses.begin;
      return true;
    }
    return false;
  }

  // Large buffers are mapped from one file, copied when written, so that what a program never touches costs nothing.
  void poison(char* memory, std::size_t bytes) {
    static const int file = [] {
      const int made = memfd_create("emulated-gpu", MFD_CLOEXEC);
      const std::vector<std::uint32_t> pattern(poison_bytes / 4, ptx::fresh_word);
      return made >= 0 && write(made, pattern.data(), poison_bytes) == static_cast<ssize_t>(poison_bytes) ? made : -1;
    }();
    for (; file >= 0 && bytes >= poison_bytes; memory += poison_bytes, bytes -= poison_bytes)
      if (mmap(memory, poison_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, 0) == MAP_FAILED) break;
    ptx::make_fresh(memory, bytes);
  }

  static constexpr std::size_t poison_bytes = std::size_t{8} << 20;
  std::uintptr_t next_ = 0;
};
Arena& arena() { return emulated_gpu::the<Arena>(); }

// Why a copy cannot use [data, data + bytes) as memory of a device or of the host; "" if it can.
std::string range_refusal(const void* data, std::size_t bytes, bool of_device, const char* what) {
  const std::string name = fmt::format("{} ({} bytes at {}) ", what, bytes, data);
  const Lock lock(the<Machine>().mutex);
  const auto* const where = find_memory(data);
  if (of_device && !where) return name + "is not device memory";  // memory of cudaMallocHost is, for copies
  if (!of_device && where && !where->second.of_host())
    return fmt::format("{}is memory of device {}", name, where->second.device);
  if (!of_device && data == nullptr) return name + "is null";
  if (!of_device && !where && number(data) - device_addresses.begin < device_addresses.bytes)
    return name + "is device memory that was freed or never allocated";
  if (where && number(data) + bytes > where->first + where->second.bytes)
    return fmt::format("{}extends beyond its allocation of {} bytes", name, where->second.bytes);
  return "";
}

void require_range(const void* data, std::size_t bytes, bool of_device, const char* what) {
  if (const std::string why = range_refusal(data, bytes, of_device, what); !why.empty())
    refuse(cudaErrorInvalidValue, why);
}

// What CUDA knows of this memory: nothing, if it is pageable.
std::optional<Allocation> allocation_of(const void* data) {
  const Lock lock(the<Machine>().mutex);
  const auto* const where = find_memory(data);
  return where ? std::optional(where->second) : std::nullopt;
}

// Rows of `width` bytes; a plain copy has one.
struct Area {
  void* to;
  std::size_t to_pitch;
  const void* from;
  std::size_t from_pitch, width, height;

  void copy() const {
    for (std::size_t row = 0; row < height; ++row) {
      char* const into = view(static_cast<char*>(to)) + row * to_pitch;
      const char* const out = view(static_cast<const char*>(from)) + row * from_pitch;
      std::memmove(into, out, width);
      touch(into, width, Touch::write, "a copy");
      touch(out, width, Touch::read, "a copy");
    }
  }
};
// With --check: does not look at the paddings of rows.
void require_written(const Area& area) {
  for (std::size_t row = 0; row < area.height; ++row)
    for (std::size_t at = -(number(area.from) + row * area.from_pitch) % 4; at + 4 <= area.width; at += 4)
      if (std::memcmp(view(static_cast<const char*>(area.from)) + row * area.from_pitch + at, &ptx::fresh_word, 4) == 0)
        return report_once(fmt::format("a copy to the host takes memory that was never written: byte {} of {}{}",
                                       row * area.width + at, area.width * area.height, place_of(current_task->by)));
}
struct Direction {
  bool into_device = false, from_device = false, from_pageable = false;  // managed memory is the host's
};
// Carries out a copy of the program.
Task copying(const Area& area, Direction direction) {
  return [=, to_host = !direction.into_device && direction.from_device] {
    if (to_host && checks()) require_written(area);
    area.copy();
  };
}
Direction checked(const Area& area, cudaMemcpyKind kind) {
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault)
    refuse(cudaErrorInvalidValue, "no such cudaMemcpyKind: " + std::to_string(static_cast<int>(kind)));
  if (area.height > 1 && (area.to_pitch < area.width || area.from_pitch < area.width))
    refuse(cudaErrorInvalidPitchValue, fmt::format("rows of {} bytes do not fit into a pitch of {}", area.width,
                                                   std::min(area.to_pitch, area.from_pitch)));
  const bool any = kind == cudaMemcpyDefault;
  const std::optional<Allocation> to = allocation_of(area.to), from = allocation_of(area.from);
  const bool to_device =
                 any ? to && to->of_device() : kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice,
             from_device =
                 any ? from && from->of_device() : kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  require_range(area.to, (area.height - 1) * area.to_pitch + area.width, to_device, "the destination");
  require_range(area.from, (area.height - 1) * area.from_pitch + area.width, from_device, "the source");
  return {to && !to->of_host(), from && !from->of_host(), !from};
}

void copy_async(const Area& area, cudaMemcpyKind kind, cudaStream_t stream) {
  if (area.width == 0 || area.height == 0) return;
  const Direction direction = checked(area, kind);
  const auto point = put(stream, [=, task = copying(area, direction)] { return task; });
  if (point && !direction.into_device && !direction.from_device) point->wait();  // as in CUDA
}

// On the default stream. From pageable memory to a device it returns when the last bytes are staged, and other streams
// can see them later. Between devices it does not wait at all. ("API synchronization behavior" of CUDA's documentation)
void copy_now(const Area& area, cudaMemcpyKind kind) {
  if (area.width == 0 || area.height == 0) return;
  const Direction direction = checked(area, kind);
  if (direction.into_device && direction.from_pageable) {
    Area first = area, last = area;
    std::size_t Area::*const length = area.height > 1 ? &Area::height : &Area::width;  // rows, or bytes of the only one
    const std::size_t unit = area.height > 1 ? area.width : 1;
    last.*length = std::clamp(most_staged / unit, std::size_t{1}, area.*length);
    if (first.*length -= last.*length; first.*length > 0) {
      put(nullptr, [=] { return [=] { first.copy(); }; });
      last.to = static_cast<char*>(area.to) + first.*length * (area.height > 1 ? area.to_pitch : 1);
      last.from = static_cast<const char*>(area.from) + first.*length * (area.height > 1 ? area.from_pitch : 1);
    }
    end_of(cudaStream_t{}).wait();
    const auto staged = std::make_shared<std::vector<char>>(last.width * last.height);
    Area{staged->data(), last.width, last.from, last.from_pitch, last.width, last.height}.copy();
    last.from = staged->data(), last.from_pitch = last.width;
    const Lock lock(the<Machine>().mutex);
    submit(
        &valid(cudaStream_t{}), [last, staged] { last.copy(); }, true);
    return;
  }
  put(nullptr, [=, task = copying(area, direction)] { return task; });
  if (direction.into_device && direction.from_device) return;
  end_of(cudaStream_t{}).wait();
  require_success_of_all();
}

Area plain(void* to, const void* from, std::size_t bytes) { return {to, bytes, from, bytes, bytes, 1}; }

void set(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return;
  require_range(memory, bytes, true, "the memory");
  put(stream, [=] { return [=] { touch(std::memset(view(memory), value, bytes), bytes, Touch::write, "a fill"); }; });
}

cudaError_t allocate(const char* call, void** memory, std::size_t bytes, int device,
                     Allocation::Kind kind = Allocation::allocated) {
  return locked(call, [&](Machine& machine) {
    if (!memory) refuse(cudaErrorInvalidValue, "the output pointer is null");
    *memory = nullptr;
    if (bytes == 0) return;
    if (kind != Allocation::variable) require_no_capture();
    const Allocation made{bytes, device, kind, checks() && kind < Allocation::registered ? frames() : Frames{}};
    const std::size_t used = used_memory(device);
    if (!made.of_host() && (bytes > device_memory || used > device_memory - bytes))
      refuse(cudaErrorMemoryAllocation,
             fmt::format("out of memory: {} bytes requested, {} of {} in use", bytes, used, device_memory));
    void* const got = made.of_host() ? arena().place_in_host(bytes) : arena().place(bytes);
    if (!got) refuse(cudaErrorMemoryAllocation, fmt::format("the system gave no {} bytes", bytes));
    machine.memory[number(*memory = got)] = made;
  });
}

// With the machine's mutex held.
std::map<std::uintptr_t, Allocation>::iterator owned(void* memory, bool pinned) {
  auto& all = the<Machine>().memory;
  const auto found = all.find(number(memory));
  if (found == all.end() || (found->second.device < 0) != pinned || found->second.kind == Allocation::registered ||
      found->second.kind == Allocation::variable)
    refuse(cudaErrorInvalidValue,
           fmt::format("{} was already freed, or not allocated by the matching function", memory));
  return found;
}
void give_back(std::map<std::uintptr_t, Allocation>::iterator found) {
  auto* const memory = reinterpret_cast<void*>(found->first);
  if (found->second.of_host())
    munmap(memory, up(found->second.bytes + red_zone, page));
  else
    arena().release(memory, found->second.bytes);
  the<Machine>().memory.erase(found);
}

// With the machine's mutex held: a stream for cudaMallocAsync and cudaFreeAsync, which CUDA makes a part of its
// capture.
CUstream_st& uncaptured(cudaStream_t stream) {
  CUstream_st& found = valid(stream);
  if (found.capture) {
    const std::string why = "memory that a graph allocates or frees is not emulated: do it before the capture";
    say(why);
    found.capture->invalid = true;
    refuse(cudaErrorNotSupported, why);
  }
  return found;
}

cudaError_t release(const char* call, void* memory, bool pinned) {
  if (!memory) return cudaSuccess;
  int device = 0;
  const cudaError_t code = locked(call, [&](Machine&) {
    require_no_capture();
    device = owned(memory, pinned)->second.device;
  });
  if (code != cudaSuccess) return code;
  for (int one = 0; one < device_count(); ++one)  // like CUDA, waits for all work, including that of destroyed streams
    if (pinned || one == device) wait_for_device(one);
  const Lock lock(the<Machine>().mutex);
  give_back(owned(memory, pinned));
  return cudaSuccess;
}

// For calls that say where managed memory should be, which has no effect here.
void require_managed(const void* memory, std::size_t bytes) {
  const Lock lock(the<Machine>().mutex);
  const auto* const found = find_memory(memory);
  if (!found || found->second.kind != Allocation::managed ||
      number(memory) + bytes > found->first + found->second.bytes)
    refuse(cudaErrorInvalidValue, fmt::format("{} bytes at {} are not managed memory", bytes, memory));
}

// A copy of one device's memory to another's.
void require_of_device(const void* memory, int device, const char* what) {
  require_device(device);
  if (const auto found = allocation_of(memory); found && found->of_device() && found->device != device)
    refuse(cudaErrorInvalidValue, fmt::format("the {} is memory of device {}, not {}", what, found->device, device));
}
cudaError_t copy_of_peer(const char* call, void* to, int to_device, const void* from, int from_device,
                         std::size_t bytes, cudaStream_t stream) {
  return guarded(call, [&] {
    require_of_device(to, to_device, "destination");
    require_of_device(from, from_device, "source");
    copy_async(plain(to, from, bytes), cudaMemcpyDeviceToDevice, stream);
  });
}

}  // namespace

namespace emulated_gpu {

const Addresses& device_addresses = Arena::addresses;

const std::pair<const std::uintptr_t, Allocation>* find_memory(const void* data) {
  const auto& memory = the<Machine>().memory;
  const auto behind = memory.upper_bound(number(data));
  if (behind == memory.begin()) return nullptr;
  const auto& found = *std::prev(behind);
  return number(data) < found.first + found.second.bytes ? &found : nullptr;
}

void require_no_capture() {  // because allocating and freeing would be no part of the graph
  for (const cudaStream_t stream : the<Machine>().streams)
    if (stream->capture && stream->capture->thread == std::this_thread::get_id())
      refuse(cudaErrorStreamCaptureUnsupported, "this thread is capturing a stream");
}

std::size_t used_memory(int device) {
  std::size_t used = 0;
  for (const auto& [begin, allocation] : the<Machine>().memory)
    if (allocation.device == device && !allocation.of_host()) used += allocation.bytes;
  return used;
}

bool can_access(int device, const Allocation& memory) {
  return memory.device == device || memory.of_host() || the<Machine>().peers.count({device, memory.device}) > 0;
}

std::string refusal(const void* data, std::size_t bytes, int device) {
  if (bytes == 0) return "";
  bool of_device = true;  // pinned host memory is also valid
  {
    const Lock lock(the<Machine>().mutex);
    if (const auto* const where = find_memory(data)) {
      of_device = where->second.of_device();
      if (!can_access(device, where->second))
        return fmt::format("it is memory of device {}, and the call is of device {}", where->second.device, device);
    }
  }
  return range_refusal(data, bytes, of_device, "it");
}

void* allocate_variable(std::size_t bytes, int device) {
  void* memory = nullptr;
  return allocate("__device__ variable", &memory, std::max(bytes, std::size_t{1}), device, Allocation::variable) ==
                 cudaSuccess
             ? memory
             : nullptr;
}

}  // namespace emulated_gpu

extern "C" {

cudaError_t cudaMalloc(void** memory, std::size_t bytes) { return allocate(__func__, memory, bytes, current_device); }
cudaError_t cudaMallocManaged(void** memory, std::size_t bytes, unsigned) {
  return allocate(__func__, memory, bytes, current_device, Allocation::managed);
}
cudaError_t cudaMallocPitch(void** memory, std::size_t* pitch, std::size_t width, std::size_t height) {
  *pitch = up(width, 512);
  return allocate(__func__, memory, *pitch * height, current_device);
}
cudaError_t cudaFree(void* memory) { return release(__func__, memory, false); }
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) { return allocate(__func__, memory, bytes, -1); }
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) { return allocate(__func__, memory, bytes, -1); }
cudaError_t cudaFreeHost(void* memory) { return release(__func__, memory, true); }
cudaError_t cudaHostGetDevicePointer(void** memory, void* host, unsigned) {
  return locked(__func__, [&](Machine&) {
    const auto* const found = find_memory(host);
    if (!found || !found->second.of_host()) refuse(cudaErrorInvalidValue, fmt::format("{} is not pinned memory", host));
    *memory = host;
  });
}
cudaError_t cudaHostRegister(void* memory, std::size_t bytes, unsigned) {
  return locked(__func__, [&](Machine& machine) {
    if (!memory || bytes == 0) refuse(cudaErrorInvalidValue, "null, or 0 bytes");
    const auto behind = machine.memory.lower_bound(number(memory));
    if (find_memory(memory) || (behind != machine.memory.end() && behind->first < number(memory) + bytes))
      refuse(cudaErrorHostMemoryAlreadyRegistered,
             fmt::format("{} is already registered or allocated by CUDA", memory));
    machine.memory[number(memory)] = {bytes, -1, Allocation::registered};
  });
}
cudaError_t cudaHostUnregister(void* memory) {
  return locked(__func__, [&](Machine& machine) {
    const auto found = machine.memory.find(number(memory));
    if (found == machine.memory.end() || found->second.kind != Allocation::registered)
      refuse(cudaErrorHostMemoryNotRegistered, fmt::format("{} was not registered", memory));
    machine.memory.erase(found);
  });
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return locked(__func__, [&](Machine&) {
    *total = device_memory;
    *free = device_memory - used_memory(current_device);
  });
}

// Memory in stream order. It is taken when the call is made, because that is when the address must be known, and given
// back when the stream comes to it.

cudaError_t cudaMallocAsync(void** memory, std::size_t bytes, cudaStream_t stream) {
  int device = 0;
  const cudaError_t code = locked(__func__, [&](Machine&) { device = uncaptured(stream).device; });
  return code == cudaSuccess ? allocate(__func__, memory, bytes, device) : code;
}
// Each device has its default pool only; that a pool keeps memory has no effect here.
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  return guarded(__func__, [&] {
    static char pools[64];
    require_device(device);
    *pool = reinterpret_cast<cudaMemPool_t>(&pools[device]);
  });
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return hint(__func__); }
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  return guarded(__func__, [&] {
    {
      const Lock lock(the<Machine>().mutex);
      uncaptured(stream);
      owned(memory, false);
    }
    put(stream, [=] {
      return [=] {
        const Lock lock(the<Machine>().mutex);
        if (const auto found = the<Machine>().memory.find(number(memory)); found != the<Machine>().memory.end())
          give_back(found);
      };
    });
  });
}
#if CUDART_VERSION >= 13000
using Location = cudaMemLocation;
cudaError_t cudaMemPrefetchAsync(const void* memory, std::size_t bytes, Location, unsigned, cudaStream_t stream) {
#else
using Location = int;
cudaError_t cudaMemPrefetchAsync(const void* memory, std::size_t bytes, Location, cudaStream_t stream) {
#endif
  return guarded(__func__, [&] {
    require_managed(memory, bytes);
    const Lock lock(the<Machine>().mutex);
    valid(stream);
  });
}
cudaError_t cudaMemAdvise(const void* memory, std::size_t bytes, cudaMemoryAdvise, Location) {
  return guarded(__func__, [&] { require_managed(memory, bytes); });
}
// Arrays and textures are not emulated, but no error can tell so here.
cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w, cudaChannelFormatKind kind) {
  return {x, y, z, w, kind};
}

// Copies and fills

cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  return guarded(__func__, [&] {
    set(memory, value, bytes, nullptr);
    if (const auto found = allocation_of(memory); found && found->of_host()) end_of(cudaStream_t{}).wait();
  });
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  return guarded(__func__, [&] { set(memory, value, bytes, stream); });
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return guarded(__func__, [&] { copy_now(plain(to, from, bytes), kind); });
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return guarded(__func__, [&] { copy_async(plain(to, from, bytes), kind, stream); });
}
cudaError_t cudaMemcpyPeer(void* to, int to_device, const void* from, int from_device, std::size_t bytes) {
  return copy_of_peer(__func__, to, to_device, from, from_device, bytes, nullptr);
}
cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, std::size_t bytes,
                                cudaStream_t stream) {
  return copy_of_peer(__func__, to, to_device, from, from_device, bytes, stream);
}
cudaError_t cudaMemcpy2D(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
                         std::size_t height, cudaMemcpyKind kind) {
  return guarded(__func__, [&] { copy_now({to, to_pitch, from, from_pitch, width, height}, kind); });
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width, std::size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  return guarded(__func__, [&] { copy_async({to, to_pitch, from, from_pitch, width, height}, kind, stream); });
}
}  // extern "C"
