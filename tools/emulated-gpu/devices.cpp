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

// Of compute capability 9.0, with few multiprocessors, because programs start blocks for each.
cudaDeviceProp properties_of(int device) {
  require_device(device);
  const int physical = physical_device(device);
  cudaDeviceProp properties{};
  std::strcpy(properties.name, "Emulated GPU");
  std::ranges::copy(uuid_of(physical), reinterpret_cast<unsigned char*>(properties.uuid.bytes));
  properties.pciDeviceID = physical;
  properties.major = 9;
  properties.totalGlobalMem = device_memory;
  properties.totalConstMem = 65536;
  properties.sharedMemPerBlock = 48 << 10;
  properties.sharedMemPerBlockOptin = 227 << 10;
  properties.sharedMemPerMultiprocessor = 228 << 10;
  properties.reservedSharedMemPerBlock = 1 << 10;
  properties.regsPerBlock = properties.regsPerMultiprocessor = 65536;
  properties.warpSize = 32;
  properties.multiProcessorCount = multiprocessors;
  properties.maxThreadsPerBlock = 1024;
  properties.maxThreadsPerMultiProcessor = 2048;
  properties.maxBlocksPerMultiProcessor = 32;
  std::ranges::copy(std::array{1024, 1024, 64}, properties.maxThreadsDim);
  std::ranges::copy(std::array{0x7fffffff, 65535, 65535}, properties.maxGridSize);
  properties.memPitch = 0x7fffffff;
  properties.textureAlignment = properties.surfaceAlignment = 512;
  properties.texturePitchAlignment = 32;
  properties.l2CacheSize = 50 << 20;
  properties.memoryBusWidth = 5120;
  properties.asyncEngineCount = 3;
  properties.concurrentKernels = properties.canMapHostMemory = properties.unifiedAddressing = 1;
  properties.managedMemory = properties.concurrentManagedAccess = properties.cooperativeLaunch =
      properties.hostRegisterSupported = 1;
  properties.streamPrioritiesSupported = properties.memoryPoolsSupported = properties.computePreemptionSupported =
      properties.canUseHostPointerForRegisteredMem = 1;
  properties.globalL1CacheSupported = properties.localL1CacheSupported = properties.unifiedFunctionPointers =
      properties.ECCEnabled = 1;
  return properties;
}

int attribute_of(int device, cudaDeviceAttr attribute) {
  const cudaDeviceProp properties = properties_of(device);
  const auto number = [](auto value) { return static_cast<int>(value); };
  const std::pair<cudaDeviceAttr, int> values[] = {
      {cudaDevAttrMaxThreadsPerBlock, properties.maxThreadsPerBlock},
      {cudaDevAttrMaxBlockDimX, properties.maxThreadsDim[0]},
      {cudaDevAttrMaxBlockDimY, properties.maxThreadsDim[1]},
      {cudaDevAttrMaxBlockDimZ, properties.maxThreadsDim[2]},
      {cudaDevAttrMaxGridDimX, properties.maxGridSize[0]},
      {cudaDevAttrMaxGridDimY, properties.maxGridSize[1]},
      {cudaDevAttrMaxGridDimZ, properties.maxGridSize[2]},
      {cudaDevAttrMaxSharedMemoryPerBlock, number(properties.sharedMemPerBlock)},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, number(properties.sharedMemPerBlockOptin)},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, number(properties.sharedMemPerMultiprocessor)},
      {cudaDevAttrReservedSharedMemoryPerBlock, number(properties.reservedSharedMemPerBlock)},
      {cudaDevAttrTotalConstantMemory, number(properties.totalConstMem)},
      {cudaDevAttrWarpSize, properties.warpSize},
      {cudaDevAttrMaxRegistersPerBlock, properties.regsPerBlock},
      {cudaDevAttrMaxRegistersPerMultiprocessor, properties.regsPerBlock},
      {cudaDevAttrClockRate, 1'000'000},
      {cudaDevAttrMemoryClockRate, 1'000'000},
      {cudaDevAttrMultiProcessorCount, properties.multiProcessorCount},
      {cudaDevAttrMaxThreadsPerMultiProcessor, properties.maxThreadsPerMultiProcessor},
      {cudaDevAttrMaxBlocksPerMultiprocessor, properties.maxBlocksPerMultiProcessor},
      {cudaDevAttrGlobalMemoryBusWidth, properties.memoryBusWidth},
      {cudaDevAttrL2CacheSize, properties.l2CacheSize},
      {cudaDevAttrAsyncEngineCount, properties.asyncEngineCount},
      {cudaDevAttrPciDeviceId, properties.pciDeviceID},
      {cudaDevAttrComputeCapabilityMajor, properties.major},
      {cudaDevAttrComputeCapabilityMinor, properties.minor},
      {cudaDevAttrSingleToDoublePrecisionPerfRatio, 2},
      {cudaDevAttrHostNumaId, -1},
      {cudaDevAttrNumaId, -1},
  };
  static constexpr cudaDeviceAttr had[] = {cudaDevAttrConcurrentKernels,         cudaDevAttrCanMapHostMemory,
                                           cudaDevAttrUnifiedAddressing,         cudaDevAttrManagedMemory,
                                           cudaDevAttrConcurrentManagedAccess,   cudaDevAttrCooperativeLaunch,
                                           cudaDevAttrHostRegisterSupported,     cudaDevAttrMemoryPoolsSupported,
                                           cudaDevAttrStreamPrioritiesSupported, cudaDevAttrEccEnabled};
  if (const auto* const found = std::ranges::find(values, attribute, &std::pair<cudaDeviceAttr, int>::first);
      found != std::end(values))
    return found->second;
  return std::ranges::count(had, attribute) > 0;
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
