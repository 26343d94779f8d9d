#include "explore/probes.hpp"

#include <multinode/base/files.hpp>

#include <nlohmann/json.hpp>

namespace explore {

using multinode::names_in;
using multinode::read_text;

namespace {

template <class T>
nlohmann::json known(const std::optional<T>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

// "4: ACTIVE" -> "ACTIVE"
nlohmann::json after_colon(const std::optional<std::string>& text) {
  if (!text) return nullptr;
  const std::size_t colon = text->find(": ");
  return colon == std::string::npos ? *text : text->substr(colon + 2);
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
    const auto own = addresses.find(name);
    interfaces.push_back({{"name", name},
                          {"state", known(read_text(folder / name / "operstate"))},
                          {"speed_mbit", speed},
                          {"mtu", known(multinode::read_number<long long>(folder / name / "mtu"))},
                          {"addresses", own == addresses.end() ? std::vector<std::string>{} : own->second}});
  }
  return interfaces;
}

nlohmann::json read_rdma(const std::filesystem::path& root) {
  nlohmann::json all = nlohmann::json::array();
  const std::filesystem::path folder = root / "sys/class/infiniband";
  for (const std::string& device : names_in(folder))
    for (const std::string& port : names_in(folder / device / "ports")) {
      const std::filesystem::path at = folder / device / "ports" / port;
      all.push_back({{"device", device},
                     {"port", port},
                     {"state", after_colon(read_text(at / "state"))},
                     {"rate", known(read_text(at / "rate"))},
                     {"link_layer", known(read_text(at / "link_layer"))},
                     {"interface", known(read_text(at / "gid_attrs/ndevs/0"))},
                     {"firmware", known(read_text(folder / device / "fw_ver"))}});
    }
  return all;
}

}  // namespace explore
