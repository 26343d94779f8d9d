#include "explore/probes.hpp"

#include <multinode/base/files.hpp>
#include <multinode/node/devices.hpp>

#include <nlohmann/json.hpp>

namespace explore {

using multinode::names_in;
using multinode::read_text;

namespace {

template <class T>
nlohmann::json known(const std::optional<T>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

}  // namespace

nlohmann::json read_interfaces(const std::filesystem::path& root,
                               const std::map<std::string, std::vector<std::string>>& addresses) {
  nlohmann::json interfaces = nlohmann::json::array();
  const std::filesystem::path folder = root / "sys/class/net";
  for (const std::string& name : names_in(folder)) {
    if (!std::filesystem::exists(folder / name / "mtu")) continue;  // bonding_masters is a file
    nlohmann::json speed = known(multinode::read_number<long long>(folder / name / "speed"));
    if (speed.is_number() && speed < 0) speed = nullptr;  // -1: the driver does not know
    const auto found = addresses.find(name);
    interfaces.push_back({{"name", name},
                          {"state", known(read_text(folder / name / "operstate"))},
                          {"speed_mbit", speed},
                          {"mtu", known(multinode::read_number<long long>(folder / name / "mtu"))},
                          {"addresses", found == addresses.end() ? std::vector<std::string>{} : found->second}});
  }
  return interfaces;
}

nlohmann::json read_rdma(const std::filesystem::path& root) {
  nlohmann::json all = nlohmann::json::array();
  const std::filesystem::path sysfs = root / "sys";
  for (const multinode::RdmaPort& port : multinode::rdma_ports(sysfs))
    all.push_back({{"device", port.device},
                   {"port", port.number},
                   {"state", known(port.state)},
                   {"rate", known(port.rate)},
                   {"link_layer", known(port.link_layer)},
                   {"interface", known(read_text(port.folder / "gid_attrs/ndevs/0"))},
                   {"firmware", known(read_text(sysfs / "class/infiniband" / port.device / "fw_ver"))}});
  return all;
}

}  // namespace explore
