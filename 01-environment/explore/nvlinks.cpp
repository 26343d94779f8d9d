#include "explore/probes.hpp"

#include <nlohmann/json.hpp>

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <tuple>
#include <vector>

namespace explore {
namespace {

// The parts of nvml.h that are used here, so that no CUDA Toolkit is needed.
struct nvmlPciInfo_t {
  char busIdLegacy[16];
  unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
  char busId[32];
};
using nvmlDevice_t = struct nvmlDevice_st*;
constexpr int NVML_SUCCESS = 0, NVML_NVLINK_DEVICE_TYPE_SWITCH = 2;

using Place = std::tuple<unsigned, unsigned, unsigned>;  // domain, bus, device

Place place_of(const std::string& pci) {
  unsigned domain = 0, bus = 0, device = 0;
  std::sscanf(pci.c_str(), "%x:%x:%x", &domain, &bus, &device);
  return {domain, bus, device};
}

struct Links {
  int to_switches = 0;
  std::vector<Place> to_devices;
};

class Nvml {
 public:
  explicit Nvml(const std::string& library) : library_(dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL)) {
    const bool complete = load(init_, "nvmlInit_v2") && load(shutdown_, "nvmlShutdown") &&
                          load(handle, "nvmlDeviceGetHandleByPciBusId_v2") && load(state, "nvmlDeviceGetNvLinkState") &&
                          load(type, "nvmlDeviceGetNvLinkRemoteDeviceType") &&
                          load(remote, "nvmlDeviceGetNvLinkRemotePciInfo_v2");
    ready = complete && init_() == NVML_SUCCESS;
  }
  ~Nvml() {
    if (ready) shutdown_();
    if (library_) dlclose(library_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  bool ready = false;
  int (*handle)(const char* pci, nvmlDevice_t*) = nullptr;
  int (*state)(nvmlDevice_t, unsigned link, int* active) = nullptr;
  int (*type)(nvmlDevice_t, unsigned link, int* type) = nullptr;
  int (*remote)(nvmlDevice_t, unsigned link, nvmlPciInfo_t*) = nullptr;

 private:
  template <class Function>
  bool load(Function& function, const char* name) {
    function = library_ ? reinterpret_cast<Function>(dlsym(library_, name)) : nullptr;
    return function != nullptr;
  }

  void* library_;
  int (*init_)() = nullptr;
  int (*shutdown_)() = nullptr;
};

}  // namespace

nlohmann::json nvlinks(std::span<const std::string> pci, const std::string& library) {
  const Nvml nvml(library);
  if (!nvml.ready) return nullptr;

  std::vector<Links> links;
  for (const std::string& address : pci) {
    nvmlDevice_t device{};
    if (nvml.handle(address.c_str(), &device) != NVML_SUCCESS) return nullptr;
    Links& found = links.emplace_back();
    int active = 0, type = 0;
    for (unsigned link = 0; nvml.state(device, link, &active) == NVML_SUCCESS; ++link) {  // ends after the last link
      nvmlPciInfo_t remote{};
      if (active == 0 || nvml.type(device, link, &type) != NVML_SUCCESS) continue;
      if (type == NVML_NVLINK_DEVICE_TYPE_SWITCH)
        ++found.to_switches;
      else if (nvml.remote(device, link, &remote) == NVML_SUCCESS)
        found.to_devices.push_back({remote.domain, remote.bus, remote.device});
    }
  }

  nlohmann::json rows = nlohmann::json::array();
  for (std::size_t from = 0; from < pci.size(); ++from) {
    nlohmann::json row = nlohmann::json::array();
    for (std::size_t to = 0; to < pci.size(); ++to) {
      const auto& direct = links[from].to_devices;
      const auto count = std::count(direct.begin(), direct.end(), place_of(pci[to])) +
                         std::min(links[from].to_switches, links[to].to_switches);
      row.push_back(from == to ? nlohmann::json() : nlohmann::json(count));
    }
    rows.push_back(row);
  }
  return rows;
}

}  // namespace explore
