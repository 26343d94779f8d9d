// program.hpp: the PTX of a program on one device, and its kernels carried out on the host's memory.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>

#include "module.hpp"

namespace emulated_gpu::ptx {

// Memory that was never written is full of these words. Their bytes differ, because data has runs of one byte.
inline constexpr std::uint32_t fresh_word = 0xa596c3e1;
inline void make_fresh(void* memory, std::size_t bytes) {  // up to 4 more
  std::fill_n(static_cast<std::uint32_t*>(memory), bytes / 4 + 1, fresh_word);
}

struct Range {
  std::uintptr_t begin = 0, end = 0;
};

// Why a kernel failed; `text` is one line with kernel, block, thread and instruction.
struct [[gnu::visibility("default")]] Fault {
  enum Kind {  // with the numbers of CUDA's errors
    illegal_address = 700,
    deadlock = 702,  // cudaErrorLaunchTimeout
    assertion = 710,
    stack_overflow = 714,
    misaligned_address = 716,
    invalid_pc = 718,
    trap = 719,         // cudaErrorLaunchFailure
    not_emulated = 801  // cudaErrorNotSupported
  } kind;
  std::string text;
};

// Where the emulation finds what is at a device's addresses, as view() of device.hpp. Other addresses are the host's.
struct DeviceMemory {
  std::uintptr_t begin = 0, bytes = 0;
  std::uintptr_t view(std::uintptr_t address) const { return address - begin < bytes ? address + bytes : address; }
};

struct Launch {
  unsigned grid[3], block[3];
  std::size_t shared = 0;                // dynamic, in bytes
  std::size_t stack = 0;                 // bytes for the calls of a thread, if more than the default
  std::vector<std::uint8_t> parameters;  // as the kernel's parameters lie in memory
  std::size_t resident = 64;             // the most blocks that run at the same time
  bool cooperative = false;              // all blocks run at the same time
  bool check = false;                    // also find races and reads of memory that was never written
  unsigned seed = 1;                     // of the order of blocks and warps, with `check`
};

// The memory that a task uses.
struct Used {
  std::vector<Range> ranges[3];  // read, written, changed by atomic functions
  bool signals = false;          // it may tell the host what is done before its end: it has a fence for the system
  void add(int how, std::uintptr_t begin, std::size_t bytes) {
    std::vector<Range>& all = ranges[how];
    if (!all.empty() && begin >= all.back().begin && begin <= all.back().end)
      all.back().end = std::max(all.back().end, begin + bytes);
    else if (all.size() < 1 << 20) all.push_back({begin, begin + bytes});
  }
};

// The device at the time when a kernel starts.
struct Surroundings {
  DeviceMemory device_memory;
  const std::vector<Range>& memory;              // what the kernel may use, sorted
  std::function<void(const std::string&)> note;  // reports what does not end the kernel
  std::function<void(const std::string&)> say;   // after `deadline` and again after twice the time
  std::chrono::seconds deadline;
  std::function<std::string(std::uintptr_t)> describe;  // what is at an address outside `memory`, for messages
  Used* used;                                           // with `check`
};

struct Attributes {
  std::string title;                                 // the demangled name
  std::size_t shared = 0, local = 0, registers = 0;  // bytes of a block, bytes and 32-bit registers of a thread
  unsigned max_threads = 1024;                       // or as __launch_bounds__ say
  bool complete = true;                              // all its instructions are emulated
  std::size_t parameter_bytes = 0;
  std::vector<std::pair<std::size_t, std::size_t>> parameters;  // offset and size
};

// The PTX in the fat binary that nvcc puts into a program
struct Images {
  std::string text;      // the PTX; empty if none is usable
  std::string contents;  // what there is: "machine code for sm_80, PTX for compute_100"
  std::string why;       // why some of it is unusable
};
// The best PTX for compute capability `wanted`, given the wrapper that __cudaRegisterFatBinary gets.
[[gnu::visibility("default")]] Images find_images(const void* wrapper, unsigned wanted);

struct Kernel;

class [[gnu::visibility("default")]] Program {
 public:
  struct Place {
    std::uintptr_t address;
    void* view;  // where the emulation finds it
  };
  // `allocate` returns device memory for a variable. With `check`, shared variables have gaps between them. Throws
  // Refusal.
  Program(std::string text, const std::function<Place(std::size_t)>& allocate, bool check);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Null if there is none. A kernel that comes to an instruction that is not emulated fails there.
  const Kernel* kernel(const std::string& name);
  Range variable(const std::string& name);  // empty if there is none

  struct Parts;

 private:
  std::unique_ptr<Parts> parts_;
};

[[gnu::visibility("default")]] const Attributes& attributes(const Kernel& kernel);
[[gnu::visibility("default")]] void run(const Kernel& kernel, const Launch& launch,
                                        const Surroundings& surroundings);  // throws Fault

}  // namespace emulated_gpu::ptx
