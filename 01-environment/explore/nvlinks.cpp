#include "explore/probes.hpp"

#include <multinode/node/nvml.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <tuple>
#include <vector>

namespace explore {
namespace {

using multinode::Nvml;
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

constexpr int switch_type = 2;
constexpr const char *state = "nvmlDeviceGetNvLinkState", *type_of_remote = "nvmlDeviceGetNvLinkRemoteDeviceType",
                     *remote_pci = "nvmlDeviceGetNvLinkRemotePciInfo_v2";

}  // namespace

nlohmann::json nvlinks(std::span<const std::string> pci, const std::string& library) {
  const Nvml nvml(library);
  if (!nvml.ready || !nvml.has(state) || !nvml.has(type_of_remote) || !nvml.has(remote_pci)) return nullptr;

  std::vector<Links> links;
  for (const std::string& address : pci) {
    const auto device = nvml.get<Nvml::Device>("nvmlDeviceGetHandleByPciBusId_v2", address.c_str());
    if (!device) return nullptr;
    Links& found = links.emplace_back();
    for (unsigned link = 0;; ++link) {
      const auto active = nvml.get<int>(state, *device, link);
      if (!active) break;  // after the last link
      const auto type = nvml.get<int>(type_of_remote, *device, link);
      if (*active == 0 || !type) continue;
      if (*type == switch_type)
        ++found.to_switches;
      else if (const auto remote = nvml.get<Nvml::PciInfo>(remote_pci, *device, link))
        found.to_devices.push_back({remote->domain, remote->bus, remote->device});
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
