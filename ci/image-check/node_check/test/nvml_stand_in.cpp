// A stand-in of NVML with two GPUs, for tests and the self-test. Each line of the file that NVML_STAND_IN names is a
// fault of GPU 1: "ecc 3", "remap_failure 1", "remap_pending 1", "throttled 64", "width 8", "nvlinks 17", "lost 1",
// "ecc_later 0", "power 200000", "replays 500", "nvlink_errors 7", "processes 1", "no_p2p 1", "topology 50".
// It shows how node_check reads NVML's answers, and nothing about GPUs.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

namespace {
unsigned long long fault(const void* device, const std::string& name, unsigned long long usual) {
  const char* path = std::getenv("NVML_STAND_IN");
  if (!path || device != reinterpret_cast<void*>(2)) return usual;
  std::ifstream file(path);
  unsigned long long value = 0;
  for (std::string word; file >> word >> value;)
    if (word == name) return value;
  return usual;
}
int text(char* to, unsigned size, const char* from) { return std::snprintf(to, size, "%s", from), 0; }
int number(unsigned* to, unsigned long long from) { return *to = static_cast<unsigned>(from), 0; }
}  // namespace

extern "C" {
struct Pci {
  char legacy_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char id[32];
};
int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) { return number(count, 2); }
int nvmlSystemGetDriverVersion(char* to, unsigned size) { return text(to, size, "550.1"); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = reinterpret_cast<void*>(std::size_t{index} + 1);
  return fault(*device, "lost", 0) ? 15 : 0;
}
int nvmlDeviceGetName(void*, char* to, unsigned size) { return text(to, size, "stand-in of a GPU"); }
int nvmlDeviceGetVbiosVersion(void*, char* to, unsigned size) { return text(to, size, "96.1"); }
int nvmlDeviceGetPciInfo_v3(void* device, Pci* pci) {
  std::memset(pci, 0, sizeof *pci);
  return text(pci->id, sizeof pci->id, device == reinterpret_cast<void*>(2) ? "0000:65:00.0" : "00010000:17:00.0");
}
int nvmlDeviceGetP2PStatus(void*, void* other, int access, int* status) {
  return *status = access == 1 ? static_cast<int>(fault(other, "no_p2p", 0)) : 0, 0;
}
int nvmlDeviceGetTopologyCommonAncestor(void*, void* other, unsigned* level) {
  return number(level, fault(other, "topology", 40));
}
int nvmlDeviceGetPersistenceMode(void*, int* on) { return *on = 1, 0; }
int nvmlDeviceGetEccMode(void* device, int* current, int* pending) {
  *current = 1, *pending = static_cast<int>(fault(device, "ecc_later", 1));
  return 0;
}
int nvmlDeviceGetEnforcedPowerLimit(void* device, unsigned* power) {
  return number(power, fault(device, "power", 700000));
}
int nvmlDeviceGetPowerManagementDefaultLimit(void*, unsigned* power) { return number(power, 700000); }
int nvmlDeviceGetPcieReplayCounter(void* device, unsigned* count) { return number(count, fault(device, "replays", 0)); }
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, void*) {
  number(count, fault(device, "processes", 0));
  return *count > 0 ? 7 : 0;
}
int nvmlDeviceGetNvLinkErrorCounter(void* device, unsigned link, int, unsigned long long* errors) {
  return *errors = link == 5 ? fault(device, "nvlink_errors", 0) : 0, 0;
}
int nvmlDeviceGetTotalEccErrors(void* device, int kind, int, unsigned long long* errors) {
  return *errors = kind == 1 ? fault(device, "ecc", 0) : 0, 0;
}
int nvmlDeviceGetRemappedRows(void* device, unsigned* correctable, unsigned* rows, unsigned* pending,
                              unsigned* failed) {
  *correctable = *rows = 0;
  number(pending, fault(device, "remap_pending", 0));
  return number(failed, fault(device, "remap_failure", 0));
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
  return *reasons = fault(device, "throttled", 1), 0;  // 1: idle
}
int nvmlDeviceGetClockInfo(void*, int, unsigned* clock) { return number(clock, 345); }
int nvmlDeviceGetMaxClockInfo(void*, int, unsigned* clock) { return number(clock, 1980); }
int nvmlDeviceGetTemperature(void*, int, unsigned* degrees) { return number(degrees, 91); }
int nvmlDeviceGetCurrPcieLinkWidth(void* device, unsigned* width) { return number(width, fault(device, "width", 16)); }
int nvmlDeviceGetMaxPcieLinkWidth(void*, unsigned* width) { return number(width, 16); }
int nvmlDeviceGetNvLinkState(void* device, unsigned link, int* active) {
  if (link >= 18) return 2;
  return *active = link < fault(device, "nvlinks", 18), 0;
}
}
