#include "inventory.hpp"

#include <multinode/base/files.hpp>
#include <multinode/base/text.hpp>
#include <multinode/node/devices.hpp>
#include <multinode/node/limits.hpp>
#include <multinode/node/nvml.hpp>

#include <fmt/core.h>

#include <sys/timex.h>
#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <map>
#include <regex>
#include <set>

namespace node_check {

using multinode::Nvml;
using nlohmann::json;

namespace {

// The NUMA node of a device; null: unknown; a text: this process may use no CPU there.
json numa_of(const std::filesystem::path& device) {
  const auto node = multinode::read_number<int>(device / "numa_node");
  if (!node || *node < 0) return {};
  const auto allowed = multinode::allowed_cpus();
  const auto near = multinode::cpus_in(multinode::read_text(device / "local_cpulist").value_or(""));
  const bool usable =
      near.empty() || std::ranges::any_of(near, [&](int cpu) { return std::ranges::binary_search(allowed, cpu); });
  return usable ? json(*node) : json(fmt::format("{}, whose CPUs this process may not use", *node));
}

// What the node has, by the names of what is wanted. Of several devices the least, so that one that is bad shows.
json facts(const HealthOptions& options) {
  json has{{"gpus", 0}, {"rdma_ports", 0}, {"gpu", json::array()}, {"numa", json::object()}};
  const auto least = [&has](const char* name, const json& value) {
    json& known = has[name];
    if (known.is_null() || value < known) known = value;
  };
  const std::filesystem::path sysfs = options.sysfs;
  const Nvml nvml(options.nvml);
  const unsigned count = nvml.ready ? nvml.get<unsigned>("nvmlDeviceGetCount_v2").value_or(0) : 0;
  std::vector<std::string> ways;  // between GPUs
  std::map<unsigned, Nvml::Device> gpus;
  for (unsigned index = 0; index < count; ++index) {
    const auto gpu = nvml.get<Nvml::Device>("nvmlDeviceGetHandleByIndex_v2", index);
    if (!gpu) continue;
    for (const auto& [other, device] : gpus) {
      for (const int access : {0, 1})  // to read and to write; 0: it can
        least("p2p", nvml.get<int>("nvmlDeviceGetP2PStatus", device, *gpu, access) == 0);
      static constexpr std::array levels{"board", "PIX", "PXB", "PHB", "NODE", "SYS"};  // as nvidia-smi topo -m
      const auto level = nvml.get<unsigned>("nvmlDeviceGetTopologyCommonAncestor", device, *gpu).value_or(-1U) / 10;
      ways.push_back(fmt::format("{}-{} {}", other, index, level < levels.size() ? levels[level] : "unknown"));
    }
    gpus.emplace(index, *gpu);
    if (auto pci = nvml.get<Nvml::PciInfo>("nvmlDeviceGetPciInfo_v3", *gpu)) {
      std::string address = pci->id;  // with a domain of 8 digits; sysfs has the 4 last ones, and those that are not 0
      std::ranges::transform(address, address.begin(), [](unsigned char c) { return std::tolower(c); });
      while (address.size() > 12 && address.starts_with('0')) address.erase(0, 1);
      has["numa"]["gpu" + std::to_string(index)] = numa_of(sysfs / "bus/pci/devices" / address);
    }
    has["gpus"] = has["gpus"].get<int>() + 1;
    has["gpu"].push_back(nvml.text("nvmlDeviceGetName", *gpu));
    has["driver"] = nvml.text("nvmlSystemGetDriverVersion");
    int links = 0, ecc = 0, pending = 0;
    for (unsigned link = 0; const auto up = nvml.get<int>("nvmlDeviceGetNvLinkState", *gpu, link); ++link) links += *up;
    least("nvlinks", links);
    nvml.call("nvmlDeviceGetEccMode", *gpu, &ecc, &pending);
    least("ecc", ecc != 0);
    unsigned processes = 0;  // with no room for them, NVML answers how many there are
    nvml.call("nvmlDeviceGetComputeRunningProcesses_v3", *gpu, &processes, static_cast<void*>(nullptr));
    least("gpus_idle", processes == 0);
    least("persistence", nvml.get<int>("nvmlDeviceGetPersistenceMode", *gpu).value_or(0) != 0);
  }
  has["gpu_topology"] = multinode::join(ways);
  for (const auto& port : multinode::rdma_ports(options.sysfs)) {
    has["numa"][port.device] = numa_of(sysfs / "class/infiniband" / port.device / "device");
    if (!port.is_active()) continue;
    has["rdma_ports"] = has["rdma_ports"].get<int>() + 1;
    least("rdma_gbit_per_s", std::atof(port.rate.value_or("0").c_str()));
  }
  has["cpus"] = multinode::usable_cpus();
  has["memory_gib"] = memory_bytes() / 0x1p30;
  timex clock{};
  has["clock_synchronized"] = adjtimex(&clock) != TIME_ERROR && !(clock.status & STA_UNSYNC);
  utsname system{};
  uname(&system);
  has["kernel"] = system.release;
  return has;
}

// A pattern for all of the text, or of each text.
bool matches(const json& text, const std::string& pattern) {
  if (text.is_array())
    return !text.empty() && std::ranges::all_of(text, [&](const json& one) { return matches(one, pattern); });
  return text.is_string() && std::regex_match(text.get<std::string>(), std::regex(pattern));
}

}  // namespace

void check_inventory(const json& wanted) {
  static const std::set<std::string> counts{"gpus", "nvlinks", "rdma_ports", "rdma_gbit_per_s", "cpus", "memory_gib"},
      switches{"ecc", "persistence", "gpus_idle", "clock_synchronized", "p2p"},
      patterns{"gpu", "driver", "kernel", "gpu_topology"};
  for (const auto& [name, value] : wanted.items()) {
    const bool count = counts.contains(name) && value.is_number() && value >= 0,
               pattern = patterns.contains(name) && value.is_string();
    if (pattern) std::regex{value.get<std::string>()};
    if (name == "mounts")
      (void)value.get<std::vector<std::string>>();
    else if (name == "numa")
      (void)value.get<std::map<std::string, int>>();
    else if (name == "files")
      for (const auto& [path, file] : value.get<std::map<std::string, std::string>>()) std::regex{file};
    else if (!counts.contains(name) && !switches.contains(name) && !patterns.contains(name))
      throw std::runtime_error("inventory: unknown member '" + name + "'");
    else if (!count && !pattern && !(switches.contains(name) && value.is_boolean()))
      throw std::runtime_error("inventory: '" + name + "' cannot be " + value.dump());
  }
}

Finding look_at_inventory(const json& wanted, const HealthOptions& options, const std::filesystem::path& root) {
  std::string wrong;
  const json has = facts(options);
  std::set<std::string> mounted;
  for (const auto& [folder, kind] : mounts_in(root / "proc/self/mounts")) mounted.insert(folder);
  for (const auto& [name, value] : wanted.items()) {
    const json found = has.value(name, json());
    if (name == "mounts") {
      for (const std::string folder : value)
        if (!mounted.contains(folder)) add(wrong, folder + " is not mounted");
    } else if (name == "numa") {
      for (const auto& [device, node] : value.items())
        if (const json& is = found.value(device, json()); is != node)
          add(wrong, fmt::format("{} is on NUMA node {}, and {} is wanted", device,
                                 is.is_null()     ? "unknown"
                                 : is.is_string() ? is.get<std::string>()
                                                  : is.dump(),
                                 node.dump()));
    } else if (name == "files") {
      for (const auto& [path, pattern] : value.items()) {
        std::error_code error;
        const auto target = std::filesystem::canonical(root / std::filesystem::path(path).relative_path(), error);
        if (error)
          add(wrong, path + " is not there");
        else if (!matches(target.filename().string(), pattern))
          add(wrong, fmt::format("{} is {}, and not {}", path, target.filename().string(), pattern.get<std::string>()));
      }
    } else if (value.is_string() ? !matches(found, value) : value.is_boolean() ? found != value : found < value) {
      add(wrong, fmt::format("{} is {}, and {}{} is wanted", name, found.is_null() ? "unknown" : found.dump(),
                             value.is_number() ? "at least " : "", value.dump()));
    }
  }
  if (!wrong.empty()) wrong += ": the site file lists this as this node's; repair the node or correct the file";
  return {"inventory", wanted.size(), "members", "equal", wrong.empty(), wrong};
}

}  // namespace node_check
