// network.hpp: network interfaces and RDMA devices.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace explore {

using Addresses = std::map<std::string, std::vector<std::string>>;  // of each interface, as "10.0.0.3/24"
Addresses current_addresses();

// ROOT/sys/class/net: an array of {name, state, speed_mbit, mtu, addresses}; null if the kernel does not provide a
// value.
nlohmann::json read_interfaces(const std::filesystem::path& root, const Addresses& addresses);

// ROOT/sys/class/infiniband: an array with one element per port, {device, port, state, rate, link_layer, interface,
// firmware}. interface: the network interface of a RoCE port.
nlohmann::json read_rdma(const std::filesystem::path& root);

}  // namespace explore
