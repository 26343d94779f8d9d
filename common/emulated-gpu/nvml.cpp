// NVML for emulated GPUs: their identity, as CUDA gives it, and their memory. What needs hardware is "Not Supported".
// As in NVIDIA's library, CUDA_VISIBLE_DEVICES has no effect. It is declared here, because nvml.h is a package of its
// own.
#include "identity.hpp"

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstring>
#include <initializer_list>

using namespace emulated_gpu;

struct nvmlDevice_st {};

namespace {

enum Status {
  success = 0,
  uninitialized = 1,
  invalid_argument = 2,
  not_supported = 3,
  not_found = 6,
  insufficient_size = 7,
  driver_not_loaded = 9
};
using Device = nvmlDevice_st*;

std::atomic<int> users{0};
std::array<nvmlDevice_st, 64> devices;

int count() { return devices_of_machine().value_or(0); }

Status text(const std::string& from, char* to, unsigned bytes) {
  if (users == 0) return uninitialized;
  if (!to) return invalid_argument;
  if (from.size() >= bytes) return insufficient_size;
  std::memcpy(to, from.c_str(), from.size() + 1);
  return success;
}
// Runs body(number of the device).
template <class Function>
Status with(Device device, Function&& body) {
  if (users == 0) return uninitialized;
  const auto number = device - devices.data();
  if (number < 0 || number >= count()) return invalid_argument;
  return body(static_cast<int>(number));
}
// Sets *to to the value for the device.
template <class T>
Status value(Device device, T* to, T is) {
  return with(device, [&](int) { return to ? (*to = is, success) : invalid_argument; });
}
// The handle of the device whose name, as `naming` gives it, is `name`.
template <class Naming>
Status find(const char* name, Device* device, Naming&& naming) {
  if (users == 0) return uninitialized;
  if (!name || !device) return invalid_argument;
  for (int i = 0; i < count(); ++i)
    if (naming(i) == name) return *device = &devices[static_cast<std::size_t>(i)], success;
  return not_found;
}
std::string long_pci_id(int device) { return "0000" + pci_bus_id(device); }  // a domain of 8 digits

struct Pci {
  char legacy_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char id[32];
};
struct Memory {
  unsigned long long total, free, used;
};
struct MemoryV2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

}  // namespace

extern "C" {

Status nvmlInit_v2() { return count() == 0 ? driver_not_loaded : (++users, success); }
Status nvmlInit() { return nvmlInit_v2(); }
Status nvmlInitWithFlags(unsigned) { return nvmlInit_v2(); }
Status nvmlShutdown() { return users == 0 ? uninitialized : (--users, success); }
const char* nvmlErrorString(int status) {
  switch (status) {
    case success:
      return "Success";
    case uninitialized:
      return "Uninitialized";
    case invalid_argument:
      return "Invalid Argument";
    case not_supported:
      return "Not Supported";
    case not_found:
      return "Not Found";
    case insufficient_size:
      return "Insufficient Size";
    case driver_not_loaded:
      return "Driver Not Loaded";
    default:
      return "Unknown Error";
  }
}
Status nvmlSystemGetDriverVersion(char* to, unsigned bytes) { return text("emulated", to, bytes); }
Status nvmlSystemGetNVMLVersion(char* to, unsigned bytes) {
  return text(fmt::format("{}.emulated", CUDART_VERSION / 1000), to, bytes);
}
Status nvmlSystemGetCudaDriverVersion(int* version) {
  return users == 0 ? uninitialized : (*version = CUDART_VERSION, success);
}
Status nvmlSystemGetCudaDriverVersion_v2(int* version) { return nvmlSystemGetCudaDriverVersion(version); }

Status nvmlDeviceGetCount_v2(unsigned* number) {
  return users == 0 ? uninitialized : (*number = static_cast<unsigned>(count()), success);
}
Status nvmlDeviceGetCount(unsigned* number) { return nvmlDeviceGetCount_v2(number); }
Status nvmlDeviceGetHandleByIndex_v2(unsigned index, Device* device) {
  if (users == 0) return uninitialized;
  if (index >= static_cast<unsigned>(count()) || !device) return invalid_argument;
  return *device = &devices[index], success;
}
Status nvmlDeviceGetHandleByIndex(unsigned index, Device* device) {
  return nvmlDeviceGetHandleByIndex_v2(index, device);
}
Status nvmlDeviceGetHandleByUUID(const char* name, Device* device) { return find(name, device, uuid); }
Status nvmlDeviceGetHandleByPciBusId_v2(const char* name, Device* device) {
  const Status status = find(name, device, pci_bus_id);
  return status == not_found ? find(name, device, long_pci_id) : status;
}
Status nvmlDeviceGetHandleByPciBusId(const char* name, Device* device) {
  return nvmlDeviceGetHandleByPciBusId_v2(name, device);
}
Status nvmlDeviceGetIndex(Device device, unsigned* index) {
  return with(device, [&](int number) { return *index = static_cast<unsigned>(number), success; });
}
Status nvmlDeviceGetMinorNumber(Device device, unsigned* minor) { return nvmlDeviceGetIndex(device, minor); }
Status nvmlDeviceGetName(Device device, char* to, unsigned bytes) {
  return with(device, [&](int) { return text(device_name, to, bytes); });
}
Status nvmlDeviceGetUUID(Device device, char* to, unsigned bytes) {
  return with(device, [&](int number) { return text(uuid(number), to, bytes); });
}
Status nvmlDeviceGetPciInfo_v3(Device device, Pci* pci) {
  return with(device, [&](int number) {
    *pci = {};
    pci->device = static_cast<unsigned>(number);
    std::strcpy(pci->legacy_id, pci_bus_id(number).c_str());
    std::strcpy(pci->id, long_pci_id(number).c_str());
    return success;
  });
}
Status nvmlDeviceGetPciInfo_v2(Device device, Pci* pci) { return nvmlDeviceGetPciInfo_v3(device, pci); }
Status nvmlDeviceGetPciInfo(Device device, Pci* pci) { return nvmlDeviceGetPciInfo_v3(device, pci); }
Status nvmlDeviceGetCudaComputeCapability(Device device, int* major, int* minor) {
  return with(device, [&](int) { return *major = compute_major, *minor = compute_minor, success; });
}
Status nvmlDeviceGetMemoryInfo(Device device, Memory* memory) {
  return value(device, memory, {device_memory, device_memory, 0});  // that of other processes is not known
}
Status nvmlDeviceGetMemoryInfo_v2(Device device, MemoryV2* memory) {
  return value(device, memory, {memory->version, device_memory, 0, device_memory, 0});
}
Status nvmlDeviceGetComputeMode(Device device, int* mode) { return value(device, mode, 0); }  // processes may share it
Status nvmlDeviceGetP2PStatus(Device device, Device other, int, int* status) {
  return with(other, [&](int) { return value(device, status, 0); });
}
Status nvmlDeviceGetTopologyCommonAncestor(Device device, Device other, int* level) {
  return with(other, [&](int) { return value(device, level, 10); });  // one PCIe switch
}

// What an emulated GPU does not have. The further parameters do not matter.
#define NOT_SUPPORTED(name)                                 \
  Status nvmlDeviceGet##name(Device device) {               \
    return with(device, [](int) { return not_supported; }); \
  }
// clang-format off
NOT_SUPPORTED(BoardId) NOT_SUPPORTED(ClockInfo) NOT_SUPPORTED(ComputeRunningProcesses)
NOT_SUPPORTED(ComputeRunningProcesses_v2) NOT_SUPPORTED(ComputeRunningProcesses_v3) NOT_SUPPORTED(CpuAffinity)
NOT_SUPPORTED(CurrPcieLinkGeneration) NOT_SUPPORTED(CurrPcieLinkWidth) NOT_SUPPORTED(CurrentClocksEventReasons)
NOT_SUPPORTED(CurrentClocksThrottleReasons) NOT_SUPPORTED(EccMode) NOT_SUPPORTED(EnforcedPowerLimit)
NOT_SUPPORTED(FanSpeed) NOT_SUPPORTED(FieldValues) NOT_SUPPORTED(GpuFabricInfo) NOT_SUPPORTED(GpuFabricInfoV)
NOT_SUPPORTED(GraphicsRunningProcesses_v3) NOT_SUPPORTED(MaxClockInfo) NOT_SUPPORTED(MaxPcieLinkGeneration)
NOT_SUPPORTED(MaxPcieLinkWidth) NOT_SUPPORTED(MemoryErrorCounter) NOT_SUPPORTED(MigMode) NOT_SUPPORTED(NumaNodeId)
NOT_SUPPORTED(NvLinkCapability) NOT_SUPPORTED(NvLinkRemoteDeviceType) NOT_SUPPORTED(NvLinkRemotePciInfo_v2)
NOT_SUPPORTED(NvLinkState) NOT_SUPPORTED(NvLinkVersion) NOT_SUPPORTED(PcieThroughput) NOT_SUPPORTED(PerformanceState)
NOT_SUPPORTED(PersistenceMode) NOT_SUPPORTED(PowerManagementLimit) NOT_SUPPORTED(PowerUsage) NOT_SUPPORTED(RemappedRows)
NOT_SUPPORTED(RetiredPages) NOT_SUPPORTED(Serial) NOT_SUPPORTED(SupportedClocksThrottleReasons)
NOT_SUPPORTED(Temperature) NOT_SUPPORTED(TotalEccErrors) NOT_SUPPORTED(TotalEnergyConsumption)
NOT_SUPPORTED(UtilizationRates) NOT_SUPPORTED(VbiosVersion)
// clang-format on

}  // extern "C"
