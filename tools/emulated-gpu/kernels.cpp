// Kernels: the functions that nvcc's code calls, launches, functions' attributes and variables of devices.
#include "ptx/program.hpp"
#include "runtime.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

using namespace emulated_gpu;

namespace {

constexpr unsigned compute_capability = 90;
constexpr std::size_t shared_default = 48 << 10, shared_most = 227 << 10, shared_of_multiprocessor = 228 << 10,
                      most_stack = 512 << 10;

// A fat binary of the program, and what became of it on each device.
struct Binary {
  const void* wrapper = nullptr;
  std::mutex mutex;
  std::map<int, std::unique_ptr<ptx::Program>> programs;
  std::string why;  // there is none
};
struct Registered {  // a kernel or a variable; never destroyed
  Binary* binary;
  std::string name, title;
  std::atomic<int> dynamic_shared = -1;  // what cudaFuncSetAttribute allows; -1: it was not called

  Registered(void** of, const char* symbol)
      : binary(reinterpret_cast<Binary*>(of)), name(symbol), title(ptx::demangled(symbol)) {}
};
struct Registry {
  std::mutex mutex;
  std::map<const void*, Registered*> kernels, variables;
};

// The binary's program on the device; refuses if there is none.
ptx::Program& program_of(Binary& binary, int device) {
  const Lock lock(binary.mutex);
  std::unique_ptr<ptx::Program>& place = binary.programs[device];
  if (place) return *place;
  if (binary.why.empty()) {
    ptx::Images images = ptx::find_images(binary.wrapper, compute_capability);
    if (images.text.empty()) {
      binary.why = fmt::format("the program has no PTX for compute capability 9.0 or less ({}){}",
                               images.contents.empty() ? "nothing" : images.contents,
                               images.why.empty() ? ". Compile it with -arch=sm_90, not -rdc=true" : ": " + images.why);
      say(binary.why);
    } else {
      const auto allocate = [&](std::size_t bytes) {
        void* const memory = allocate_variable(bytes, device);
        if (!memory) refuse(cudaErrorMemoryAllocation, fmt::format("no {} bytes for the program's variables", bytes));
        return ptx::Program::Place{reinterpret_cast<std::uintptr_t>(memory), view(memory)};
      };
      try {
        place = std::make_unique<ptx::Program>(std::move(images.text), allocate, checks());
        return *place;
      } catch (const ptx::Refusal& refusal) {
        binary.why = refusal.what();
        say(binary.why);
      }
    }
  }
  refuse(cudaErrorNoKernelImageForDevice, binary.why);
}

Registered& registered(const std::map<const void*, Registered*>& all, const void* host, cudaError_t code,
                       const char* what) {
  const Lock lock(the<Registry>().mutex);
  const auto found = all.find(host);
  if (found == all.end()) refuse(code, fmt::format("{} is no {}", host, what));
  return *found->second;
}

struct Found {
  Registered& registration;
  const ptx::Kernel& kernel;
  const ptx::Attributes& attributes;

  std::size_t most_dynamic() const {
    const int set = registration.dynamic_shared;
    return set < 0 ? shared_default - std::min(shared_default, attributes.shared) : static_cast<std::size_t>(set);
  }
};
Found kernel_at(const void* function, int device) {
  Registered& registration = registered(the<Registry>().kernels, function, cudaErrorInvalidDeviceFunction, "kernel");
  try {
    const ptx::Kernel* const kernel = program_of(*registration.binary, device).kernel(registration.name);
    if (!kernel) refuse(cudaErrorInvalidDeviceFunction, fmt::format("the PTX has no kernel {}", registration.title));
    return {registration, *kernel, ptx::attributes(*kernel)};
  } catch (const ptx::Refusal& refusal) {
    say(refusal.what());
    refuse(cudaErrorNotSupported, refusal.what());
  }
}

// What a kernel on the device may use.
std::vector<ptx::Range> memory_of(int device) {
  const Lock lock(the<Machine>().mutex);
  std::vector<ptx::Range> ranges;
  for (const auto& [begin, one] : the<Machine>().memory)
    if (can_access(device, one)) ranges.push_back({begin, begin + one.bytes});
  return ranges;
}

// What is at an address that a kernel on the device must not use.
std::string describe(std::uintptr_t address, int device) {
  {
    const Lock lock(the<Machine>().mutex);
    const auto* const found = find_memory(reinterpret_cast<const void*>(address));
    if (found && !can_access(device, found->second))
      return fmt::format("memory of device {}, to which device {} has no access (cudaDeviceEnablePeerAccess)",
                         found->second.device, device);
  }
  if (address - device_addresses.begin >= device_addresses.bytes)
    return "which is no device memory: it is memory of the host, or nothing";
  return "";
}

void carry_out(const ptx::Kernel& kernel, const ptx::Launch& launch, int device) {
  if (failed(device)) return;  // as in CUDA, where nothing runs after a fault
  if (current_task) current_task->what = "kernel " + ptx::attributes(kernel).title;
  if (the<Machine>().ended)
    return report_once(current_task->what + " had not run when the program ended: nothing waited for it" +
                       place_of(current_task->by));
  const std::vector<ptx::Range> memory = memory_of(device);
  const auto what_is_at = [device](std::uintptr_t address) { return describe(address, device); };
  const ptx::Surroundings surroundings{
      {device_addresses.begin, device_addresses.bytes}, memory, report_once, say, deadline(), what_is_at,
      current_task ? &current_task->used : nullptr};
  try {
    ptx::run(kernel, launch, surroundings);
  } catch (const ptx::Fault& fault) {
    if (fault.kind != ptx::Fault::not_emulated) {
      report(fault.text);
      return set_sticky_error(device, static_cast<cudaError_t>(fault.kind), fault.text);
    }
    report_once(fault.text);
    set_error_once(device, cudaErrorNotSupported, fault.text);
  } catch (const std::bad_alloc&) {
    set_sticky_error(device, cudaErrorMemoryAllocation, "the host has no memory for a block");
  }
}

// Of each device. A stack of the default size is not limited here.
std::atomic<std::size_t>& stack_of(int device) {
  static auto& all = *new std::vector<std::atomic<std::size_t>>(static_cast<std::size_t>(device_count()));
  return all.at(static_cast<std::size_t>(device));
}

int blocks_of_multiprocessor(std::size_t threads, std::size_t shared) {
  const std::size_t used_by_block = shared + 1024;  // the system's share of a block
  return static_cast<int>(
      std::min({std::size_t{32}, 2048 / ((threads + 31) / 32 * 32), shared_of_multiprocessor / used_by_block}));
}

void launch(const void* function, dim3 grid, dim3 block, void** arguments, std::size_t shared, cudaStream_t stream,
            bool cooperative) {
  int device = 0;
  {
    const Lock lock(the<Machine>().mutex);
    device = valid(stream).device;
  }
  const Found found = kernel_at(function, device);
  const std::string& title = found.registration.title;
  if (device != current_device)
    refuse(cudaErrorInvalidResourceHandle,
           fmt::format("{}: the stream is of device {}, the current device is {}", title, device, current_device));
  const std::size_t threads = std::size_t{block.x} * block.y * block.z;
  const auto refuse_sizes = [&](const std::string& rule) {
    refuse(cudaErrorInvalidConfiguration, fmt::format("{}: a grid of ({},{},{}) blocks of ({},{},{}) threads; {}",
                                                      title, grid.x, grid.y, grid.z, block.x, block.y, block.z, rule));
  };
  if (threads == 0 || threads > 1024 || block.z > 64 || grid.x == 0 || grid.y == 0 || grid.z == 0 ||
      grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535)
    refuse_sizes("a block has 1 to 1024 threads, z at most 64; a grid has 1 to 2147483647, 65535 and 65535 blocks");
  if (const std::size_t most = found.attributes.max_threads; threads > most)
    refuse_sizes(fmt::format("its __launch_bounds__ allow {} threads", most));
  if (shared > found.most_dynamic())
    refuse(cudaErrorInvalidValue, fmt::format("{}: {} + {} bytes of static and dynamic shared memory. For more than {} "
                                              "bytes call cudaFuncSetAttribute with "
                                              "cudaFuncAttributeMaxDynamicSharedMemorySize; the most is {}",
                                              title, found.attributes.shared, shared, shared_default, shared_most));
  const std::size_t blocks = std::size_t{grid.x} * grid.y * grid.z;
  const auto most = static_cast<std::size_t>(blocks_of_multiprocessor(threads, found.attributes.shared + shared)) *
                    std::size_t{multiprocessors};
  if (cooperative && blocks > most)
    refuse(cudaErrorCooperativeLaunchTooLarge,
           fmt::format("{}: {} blocks, and at most {} run at the same time", title, blocks, most));
  static std::atomic<unsigned> launches{0};
  auto made = std::make_shared<ptx::Launch>();
  *made = {.grid = {grid.x, grid.y, grid.z},
           .block = {block.x, block.y, block.z},
           .shared = shared,
           .stack = stack_of(device),
           .parameters = std::vector<std::uint8_t>(found.attributes.parameter_bytes + 16),
           .resident = most,
           .cooperative = cooperative,
           .check = checks(),
           .seed = seed() + launches++};
  for (std::size_t n = 0; n < found.attributes.parameters.size(); ++n) {
    const auto [offset, size] = found.attributes.parameters[n];
    std::memcpy(made->parameters.data() + offset, arguments[n], size);
  }
  const auto point = put(stream, [=, kernel = &found.kernel] { return [=] { carry_out(*kernel, *made, device); }; });
  launch_site = nullptr;
  // So that the launch returns the error, if the kernel comes to what is not emulated.
  if (!found.attributes.complete && point) point->wait(std::chrono::seconds(1));
}

struct Configuration {
  dim3 grid, block;
  std::size_t shared;
  cudaStream_t stream;
};
thread_local std::vector<Configuration> configurations;

ptx::Range symbol_at(const void* host) {
  const Registered& variable =
      registered(the<Registry>().variables, host, cudaErrorInvalidSymbol, "variable of a device");
  const ptx::Range range = program_of(*variable.binary, current_device).variable(variable.name);
  if (range.begin == 0) refuse(cudaErrorInvalidSymbol, fmt::format("the PTX has no variable {}", variable.title));
  return range;
}
// The address of [offset, offset + bytes) of a variable.
char* part_of_symbol(const void* host, std::size_t bytes, std::size_t offset) {
  const ptx::Range range = symbol_at(host);
  const std::size_t size = range.end - range.begin;
  if (offset > size || bytes > size - offset)
    refuse(cudaErrorInvalidValue, fmt::format("{} bytes at {} of a variable of {} bytes", bytes, offset, size));
  return reinterpret_cast<char*>(range.begin + offset);
}

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void* wrapper) {
  auto* const binary = new Binary;  // never destroyed: a stream may still run its kernels
  binary->wrapper = wrapper;
  return reinterpret_cast<void**>(binary);
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterVar(void** binary, char* host, char*, const char* name, int, std::size_t, int, int) {
  const Lock lock(the<Registry>().mutex);
  the<Registry>().variables[host] = new Registered(binary, name);
}
void __cudaRegisterFunction(void** binary, const char* function, char*, const char* name, int, uint3*, uint3*, dim3*,
                            dim3*, int*) {
  const Lock lock(the<Registry>().mutex);
  the<Registry>().kernels[function] = new Registered(binary, name);
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared, cudaStream_t stream) {
  launch_site = __builtin_return_address(0);
  configurations.push_back({grid, block, shared, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
  if (configurations.empty()) return cudaErrorMissingConfiguration;
  const Configuration configuration = configurations.back();
  configurations.pop_back();
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  *static_cast<cudaStream_t*>(stream) = configuration.stream;
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                             cudaStream_t stream) {
  return guarded(__func__, [&] { launch(function, grid, block, arguments, shared, stream, false); });
}
cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                                        std::size_t shared, cudaStream_t stream) {
  return guarded(__func__, [&] { launch(function, grid, block, arguments, shared, stream, true); });
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  return guarded(__func__, [&] {
    bool cooperative = false;
    for (unsigned n = 0; n < config->numAttrs; ++n) {
      const cudaLaunchAttribute& one = config->attrs[n];
      if (one.id == cudaLaunchAttributeCooperative) cooperative = one.val.cooperative != 0;
      const auto& cluster = one.val.clusterDim;
      if (one.id == cudaLaunchAttributeClusterDimension && cluster.x * cluster.y * cluster.z > 1)
        refuse(cudaErrorNotSupported, "clusters of more than one block are not emulated");
    }
    launch(function, config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes, config->stream,
           cooperative);
  });
}
#if CUDART_VERSION >= 12010
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                               cudaStream_t stream) {
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, arguments, shared, stream);
}
#endif

// Attributes

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  return guarded(__func__, [&] {
    const Found found = kernel_at(function, current_device);
    *attributes = {};
    attributes->sharedSizeBytes = found.attributes.shared;
    attributes->localSizeBytes = found.attributes.local;
    attributes->maxThreadsPerBlock = static_cast<int>(found.attributes.max_threads);
    attributes->numRegs = static_cast<int>(std::min<std::size_t>(found.attributes.registers, 64));
    attributes->ptxVersion = attributes->binaryVersion = compute_capability;
    attributes->maxDynamicSharedSizeBytes = static_cast<int>(found.most_dynamic());
  });
}
// A hint, which has no effect here.
cudaError_t cudaFuncSetCacheConfig(const void* function, cudaFuncCache) {
  return guarded(__func__, [&] { kernel_at(function, current_device); });
}
cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  return guarded(__func__, [&] {
    const Found found = kernel_at(function, current_device);
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return;
    if (value < 0 || static_cast<std::size_t>(value) + found.attributes.shared > shared_most)
      refuse(cudaErrorInvalidValue, fmt::format("{}: {} + {} bytes of static and dynamic shared memory; the most is {}",
                                                found.registration.title, found.attributes.shared, value, shared_most));
    found.registration.dynamic_shared = value;
  });
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function, int threads,
                                                                   std::size_t shared, unsigned) {
  return guarded(__func__, [&] {
    const Found found = kernel_at(function, current_device);
    if (threads <= 0) refuse(cudaErrorInvalidValue, fmt::format("a block of {} threads", threads));
    const auto count = static_cast<std::size_t>(threads);
    *blocks =
        count > found.attributes.max_threads ? 0 : blocks_of_multiprocessor(count, found.attributes.shared + shared);
  });
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads,
                                                          std::size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared,
                                                                cudaOccupancyDefault);
}

// Printed text is not limited here, and no kernel can use malloc or start kernels.
cudaError_t cudaDeviceSetLimit(cudaLimit limit, std::size_t bytes) {
  return guarded(__func__, [&] {
    if (limit != cudaLimitStackSize) return;
    if (bytes > most_stack)
      refuse(cudaErrorInvalidValue, fmt::format("a stack of {} bytes; the most is {}", bytes, most_stack));
    stack_of(current_device) = bytes;
  });
}

// Variables

cudaError_t cudaGetSymbolAddress(void** address, const void* host) {
  return guarded(__func__, [&] { *address = reinterpret_cast<void*>(symbol_at(host).begin); });
}
cudaError_t cudaMemcpyToSymbol(const void* host, const void* from, std::size_t bytes, std::size_t offset,
                               cudaMemcpyKind kind) {
  return guarded(__func__, [&] { return cudaMemcpy(part_of_symbol(host, bytes, offset), from, bytes, kind); });
}
cudaError_t cudaMemcpyToSymbolAsync(const void* host, const void* from, std::size_t bytes, std::size_t offset,
                                    cudaMemcpyKind kind, cudaStream_t stream) {
  return guarded(__func__,
                 [&] { return cudaMemcpyAsync(part_of_symbol(host, bytes, offset), from, bytes, kind, stream); });
}
cudaError_t cudaMemcpyFromSymbolAsync(void* to, const void* host, std::size_t bytes, std::size_t offset,
                                      cudaMemcpyKind kind, cudaStream_t stream) {
  return guarded(__func__,
                 [&] { return cudaMemcpyAsync(to, part_of_symbol(host, bytes, offset), bytes, kind, stream); });
}
cudaError_t cudaMemcpyFromSymbol(void* to, const void* host, std::size_t bytes, std::size_t offset,
                                 cudaMemcpyKind kind) {
  return guarded(__func__, [&] { return cudaMemcpy(to, part_of_symbol(host, bytes, offset), bytes, kind); });
}

}  // extern "C"
