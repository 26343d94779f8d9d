// Devices, their properties and errors.
#include "runtime.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>

using namespace emulated_gpu;

namespace {

std::array<unsigned char, 16> uuid_of(int device) {
  std::array<unsigned char, 16> bytes{};
  const std::size_t hash = std::hash<std::string>{}(host_name());
  std::memcpy(bytes.data(), &hash, sizeof hash);
  bytes[15] = static_cast<unsigned char>(device);
  return bytes;
}

// The properties that CUDA has as an attribute and as a member of cudaDeviceProp. The compute capability is 9.0. There
// are few multiprocessors, because programs start blocks for each.
#define BOTH(X)                                                              \
  X(PciDeviceId, pciDeviceID, physical_device(device))                       \
  X(ComputeCapabilityMajor, major, 9)                                        \
  X(ComputeCapabilityMinor, minor, 0)                                        \
  X(TotalConstantMemory, totalConstMem, 65536)                               \
  X(MaxSharedMemoryPerBlock, sharedMemPerBlock, 48 << 10)                    \
  X(MaxSharedMemoryPerBlockOptin, sharedMemPerBlockOptin, 227 << 10)         \
  X(MaxSharedMemoryPerMultiprocessor, sharedMemPerMultiprocessor, 228 << 10) \
  X(ReservedSharedMemoryPerBlock, reservedSharedMemPerBlock, 1 << 10)        \
  X(MaxRegistersPerBlock, regsPerBlock, 65536)                               \
  X(MaxRegistersPerMultiprocessor, regsPerMultiprocessor, 65536)             \
  X(WarpSize, warpSize, 32)                                                  \
  X(MultiProcessorCount, multiProcessorCount, multiprocessors)               \
  X(MaxThreadsPerBlock, maxThreadsPerBlock, 1024)                            \
  X(MaxThreadsPerMultiProcessor, maxThreadsPerMultiProcessor, 2048)          \
  X(MaxBlocksPerMultiprocessor, maxBlocksPerMultiProcessor, 32)              \
  X(MaxBlockDimX, maxThreadsDim[0], 1024)                                    \
  X(MaxBlockDimY, maxThreadsDim[1], 1024)                                    \
  X(MaxBlockDimZ, maxThreadsDim[2], 64)                                      \
  X(MaxGridDimX, maxGridSize[0], 0x7fffffff)                                 \
  X(MaxGridDimY, maxGridSize[1], 65535)                                      \
  X(MaxGridDimZ, maxGridSize[2], 65535)                                      \
  X(MaxPitch, memPitch, 0x7fffffff)                                          \
  X(TextureAlignment, textureAlignment, 512)                                 \
  X(SurfaceAlignment, surfaceAlignment, 512)                                 \
  X(TexturePitchAlignment, texturePitchAlignment, 32)                        \
  X(L2CacheSize, l2CacheSize, 50 << 20)                                      \
  X(GlobalMemoryBusWidth, memoryBusWidth, 5120)                              \
  X(AsyncEngineCount, asyncEngineCount, 3)                                   \
  X(ConcurrentKernels, concurrentKernels, 1)                                 \
  X(CanMapHostMemory, canMapHostMemory, 1)                                   \
  X(UnifiedAddressing, unifiedAddressing, 1)                                 \
  X(ManagedMemory, managedMemory, 1)                                         \
  X(ConcurrentManagedAccess, concurrentManagedAccess, 1)                     \
  X(CooperativeLaunch, cooperativeLaunch, 1)                                 \
  X(HostRegisterSupported, hostRegisterSupported, 1)                         \
  X(StreamPrioritiesSupported, streamPrioritiesSupported, 1)                 \
  X(MemoryPoolsSupported, memoryPoolsSupported, 1)                           \
  X(ComputePreemptionSupported, computePreemptionSupported, 1)               \
  X(CanUseHostPointerForRegisteredMem, canUseHostPointerForRegisteredMem, 1) \
  X(GlobalL1CacheSupported, globalL1CacheSupported, 1)                       \
  X(LocalL1CacheSupported, localL1CacheSupported, 1)                         \
  X(EccEnabled, ECCEnabled, 1)

cudaDeviceProp properties_of(int device) {
  require_device(device);
  cudaDeviceProp properties{};
  std::strcpy(properties.name, "Emulated GPU");
  std::ranges::copy(uuid_of(physical_device(device)), reinterpret_cast<unsigned char*>(properties.uuid.bytes));
  properties.totalGlobalMem = device_memory;
  properties.unifiedFunctionPointers = 1;
#define MEMBER(attribute, member, value) properties.member = value;
  BOTH(MEMBER)
  return properties;
}

int attribute_of(int device, cudaDeviceAttr attribute) {
  require_device(device);
#define VALUE(attribute, member, value) \
  case cudaDevAttr##attribute:          \
    return value;
  switch (attribute) {
    BOTH(VALUE)
    case cudaDevAttrClockRate:
    case cudaDevAttrMemoryClockRate:
      return 1'000'000;
    case cudaDevAttrSingleToDoublePrecisionPerfRatio:
      return 2;
    case cudaDevAttrHostNumaId:
    case cudaDevAttrNumaId:
      return -1;
    default:
      return 0;
  }
}

}  // namespace

extern "C" {

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
// Hints, which have no effect here.
cudaError_t cudaSetDeviceFlags(unsigned) { return hint(__func__); }
cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) { return hint(__func__); }
cudaError_t cudaDeviceSetSharedMemConfig(cudaSharedMemConfig) { return hint(__func__); }
cudaError_t cudaDeviceGetSharedMemConfig(cudaSharedMemConfig* config) {
  return guarded(__func__, [&] { *config = cudaSharedMemBankSizeFourByte; });
}
cudaError_t cudaDeviceSynchronize() {
  return guarded(__func__, [] {
    wait_for_device(current_device);
    require_success_of_all();
  });
}
// Ends all streams, events and memory of the device. Variables of programs stay.
cudaError_t cudaDeviceReset() {
  return guarded(__func__, [] {
    wait_for_device(current_device);
    std::vector<void*> memory;
    {
      Machine& machine = the<Machine>();
      const Lock lock(machine.mutex);
      std::erase_if(machine.events, [](cudaEvent_t event) { return event->device == current_device; });
      std::erase_if(machine.streams, [](cudaStream_t stream) {
        const bool ends = stream->device == current_device && !stream->is_default;
        if (ends) stream->queue->close();
        return ends;
      });
      for (const auto& [begin, one] : machine.memory)
        if (one.device == current_device && one.kind != Allocation::variable)
          memory.push_back(reinterpret_cast<void*>(begin));
    }
    for (void* const one : memory) cudaFree(one);
  });
}
// Of cuda_profiler_api.h, which is in no package of PyPI.
CUDARTAPI cudaError_t cudaProfilerStart() { return cudaSuccess; }
CUDARTAPI cudaError_t cudaProfilerStop() { return cudaSuccess; }

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = has_device() ? CUDART_VERSION : 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return guarded(__func__, [&] { *properties = properties_of(device); });
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return guarded(__func__, [&] { *value = attribute_of(device, attribute); });
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  return guarded(__func__, [&] {
    require_device(device);
    std::snprintf(text, static_cast<std::size_t>(bytes), "0000:00:%02x.0", physical_device(device));
  });
}

// Peer access

cudaError_t cudaDeviceCanAccessPeer(int* access, int device, int peer) {
  return guarded(__func__, [&] {
    require_device(device);
    require_device(peer);
    *access = device != peer;
  });
}
cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute, int device, int peer) {
  return guarded(__func__, [&] {
    require_device(device);
    require_device(peer);
    if (device == peer) refuse(cudaErrorInvalidDevice, "the two devices are the same");
    *value = attribute == cudaDevP2PAttrAccessSupported || attribute == cudaDevP2PAttrNativeAtomicSupported;
  });
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  return locked(__func__, [&](Machine& machine) {
    require_device(peer);
    if (peer == current_device) refuse(cudaErrorInvalidDevice, "a device is not its own peer");
    if (flags) refuse(cudaErrorInvalidValue, "the flags must be 0");
    if (!machine.peers.insert({current_device, peer}).second)
      refuse(cudaErrorPeerAccessAlreadyEnabled,
             fmt::format("device {} already has access to device {}", current_device, peer));
  });
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  return locked(__func__, [&](Machine& machine) {
    require_device(peer);
    if (machine.peers.erase({current_device, peer}) == 0)
      refuse(cudaErrorPeerAccessNotEnabled, fmt::format("device {} has no access to device {}", current_device, peer));
  });
}

// Errors

cudaError_t cudaGetLastError() {
  cudaPeekAtLastError();
  return std::exchange(last_error, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
  if (has_device() && !in_host_function) guarded(__func__, [] {});
  seen(last_error);
  return last_error;
}
const char* cudaGetErrorName(cudaError_t error) {
  seen(error);
  static constexpr std::pair<cudaError_t, const char*> names[] = {
      {cudaSuccess, "cudaSuccess"},
#include <error_names.inc>  // of the header, made by CMake
  };
  const auto* const found = std::ranges::find(names, error, &std::pair<cudaError_t, const char*>::first);
  return found == std::end(names) ? "unrecognized error code" : found->second;
}
const char* cudaGetErrorString(cudaError_t error) {
  seen(error);
  if (explained.first == error && error != cudaSuccess) return explained.second.c_str();
  if (error == cudaErrorNoDevice) return "no GPU; set EMULATED_GPUS=N to use N emulated GPUs";
  return error == cudaSuccess ? "no error" : cudaGetErrorName(error);
}

}  // extern "C"
