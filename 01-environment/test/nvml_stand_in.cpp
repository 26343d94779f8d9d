// A stand-in of NVML with three GPUs: 0 and 1 have two links to each other, and all have links to a switch: 0 one, 1
// and 2 three, of which one of 2's is not active. GPU 9 is not known.
#include <cstdio>
#include <cstring>

namespace {

struct Pci {
  char legacy_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char id[32];
};
struct Link {
  int active, type;  // 0: GPU, 2: switch
  unsigned to;
};
constexpr Link links[3][6] = {{{1, 0, 1}, {1, 2, 7}, {1, 0, 1}},
                              {{1, 0, 0}, {1, 0, 0}, {1, 2, 7}, {1, 2, 7}, {1, 2, 7}},
                              {{1, 2, 7}, {0, 2, 7}, {1, 2, 7}}};
constexpr unsigned counts[3] = {3, 5, 3};

std::size_t index(const void* device) { return reinterpret_cast<std::size_t>(device) - 1; }

}  // namespace

extern "C" {
int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* text, void** device) {
  unsigned bus = 0;
  if (std::sscanf(text, "0001:%x:00.0", &bus) != 1 || bus > 2) return 6;
  *device = reinterpret_cast<void*>(std::size_t{bus} + 1);
  return 0;
}
int nvmlDeviceGetNvLinkState(void* device, unsigned link, int* active) {
  if (link >= counts[index(device)]) return 2;
  *active = links[index(device)][link].active;
  return 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void* device, unsigned link, int* type) {
  *type = links[index(device)][link].type;
  return 0;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void* device, unsigned link, Pci* pci) {
  std::memset(pci, 0x55, sizeof *pci);
  pci->domain = 1;
  pci->bus = links[index(device)][link].to;
  pci->device = 0;
  return 0;
}
}
