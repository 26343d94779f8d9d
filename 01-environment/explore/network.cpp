#include "explore/probes.hpp"

#include <multinode/check.hpp>
#include <multinode/files.hpp>

#include <nlohmann/json.hpp>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <bit>
#include <cstring>
#include <memory>

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

int prefix_length(const void* mask, std::size_t bytes) {
  int bits = 0;
  for (std::size_t i = 0; i < bytes; ++i) bits += std::popcount(static_cast<const unsigned char*>(mask)[i]);
  return bits;
}

}  // namespace

Addresses current_addresses() {
  ifaddrs* first = nullptr;
  multinode::check_errno(getifaddrs(&first), "getifaddrs");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> guard(first, &freeifaddrs);
  Addresses addresses;
  for (const ifaddrs* a = first; a != nullptr; a = a->ifa_next) {
    if (a->ifa_addr == nullptr || a->ifa_netmask == nullptr) continue;
    char text[INET6_ADDRSTRLEN] = {};
    int length = 0;
    if (a->ifa_addr->sa_family == AF_INET) {
      inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(a->ifa_addr)->sin_addr, text, sizeof text);
      length = prefix_length(&reinterpret_cast<const sockaddr_in*>(a->ifa_netmask)->sin_addr, sizeof(in_addr));
    } else if (a->ifa_addr->sa_family == AF_INET6) {
      inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(a->ifa_addr)->sin6_addr, text, sizeof text);
      length = prefix_length(&reinterpret_cast<const sockaddr_in6*>(a->ifa_netmask)->sin6_addr, sizeof(in6_addr));
    } else {
      continue;
    }
    addresses[a->ifa_name].push_back(std::string(text) + "/" + std::to_string(length));
  }
  return addresses;
}

nlohmann::json read_interfaces(const std::filesystem::path& root, const Addresses& addresses) {
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
