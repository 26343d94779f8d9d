// NVML for emulated GPUs: their identity, as CUDA gives it. The functions that need hardware are not there. As in
// NVIDIA's library, CUDA_VISIBLE_DEVICES has no effect. This file declares NVML itself, because nvml.h is in
// another package than CUDA.
#include "identity.hpp"

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstring>

using namespace emulated_gpu;

struct nvmlDevice_st {};

namespace {

enum Status {
  success = 0,
  uninitialized = 1,
  invalid_argument = 2,
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
std::string long_pci_id(int device) { return "0000" + pci_bus_id(device); }  // a domain of 8 digits

struct Pci {
  char legacy_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char id[32];
};

}  // namespace

extern "C" {

Status nvmlInit_v2() { return count() == 0 ? driver_not_loaded : (++users, success); }
Status nvmlShutdown() { return users == 0 ? uninitialized : (--users, success); }
Status nvmlSystemGetDriverVersion(char* to, unsigned bytes) { return text("emulated", to, bytes); }
Status nvmlDeviceGetCount_v2(unsigned* number) {
  return users == 0 ? uninitialized : (*number = static_cast<unsigned>(count()), success);
}
Status nvmlDeviceGetHandleByIndex_v2(unsigned index, Device* device) {
  if (users == 0) return uninitialized;
  if (index >= static_cast<unsigned>(count()) || !device) return invalid_argument;
  return *device = &devices[index], success;
}
Status nvmlDeviceGetHandleByPciBusId_v2(const char* name, Device* device) {
  if (users == 0) return uninitialized;
  if (!name || !device) return invalid_argument;
  for (int i = 0; i < count(); ++i)
    if (pci_bus_id(i) == name || long_pci_id(i) == name)
      return *device = &devices[static_cast<std::size_t>(i)], success;
  return not_found;
}
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
// All are peers behind one PCIe switch.
Status nvmlDeviceGetP2PStatus(Device device, Device other, int, int* status) {
  return with(device, [&](int) { return with(other, [&](int) { return *status = 0, success; }); });
}
Status nvmlDeviceGetTopologyCommonAncestor(Device device, Device other, int* level) {
  return with(device, [&](int) { return with(other, [&](int) { return *level = 10, success; }); });
}

}  // extern "C"
