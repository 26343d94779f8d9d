#include "choice.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/text.hpp>

#include <arpa/inet.h>

#include <algorithm>
#include <bit>
#include <map>
#include <tuple>

namespace rdma {

using multinode::UsageError;

namespace {

std::optional<std::array<std::uint8_t, 16>> parse_address(const std::string& text) {
  std::array<std::uint8_t, 16> address{};
  if (inet_pton(AF_INET, text.c_str(), &address[12]) == 1)
    address[10] = address[11] = 0xff;
  else if (inet_pton(AF_INET6, text.c_str(), address.data()) != 1)
    return {};
  return address;
}

std::string name_of(const Device& device, const Port& port) {
  return device.name + " port " + std::to_string(port.number);
}

// Why this GID is not right, whatever the state of its port; "" if it is.
std::string objection(const System& system, const Gid& gid, const Wanted& wanted) {
  if (!gid.unreadable.empty()) return "of another network namespace? cannot read its " + gid.unreadable;
  if (gid.type == GidType::unknown) return "type not known";
  if (gid.is_link_local()) return "link-local (fe80)";
  if (gid.type == GidType::infiniband) return "InfiniBand";
  if (gid.type == GidType::roce_v1) return "RoCE v1";
  if (gid.is_ipv4() != (wanted.family == Family::ipv4)) return gid.is_ipv4() ? "IPv4" : "IPv6";
  if (gid.is_ipv4_link_local()) return "link-local (169.254)";
  if (wanted.subnet && !wanted.subnet->contains(gid.address)) return "not in " + wanted.subnet->text();
  if (gid.net_device.empty() || system.net_devices.empty()) return "";
  const NetDevice* const net = system.find_net_device(gid.net_device);
  if (!net) return "of another network namespace: no " + gid.net_device + " here";
  if (net->vlan && !wanted.subnet) return "VLAN" + (*net->vlan ? " " + std::to_string(*net->vlan) : "");
  const auto is_its = [&](const std::string& address) { return address.starts_with(gid.text() + "/"); };
  if (!net->addresses.empty() && std::ranges::none_of(net->addresses, is_its))
    return "of another network namespace: not an address of " + net->name + " here";
  return "";
}

std::string why_not(const Device& device, const Port& port, const Wanted& wanted) {
  if (!wanted.devices.empty() && std::ranges::find(wanted.devices, device.name) == wanted.devices.end())
    return "not asked for";
  if (device.is_efa()) return "Elastic Fabric Adapter: NCCL uses it by aws-ofi-nccl";
  if (!device.node_type.empty() && device.node_type != "CA")
    return "neither InfiniBand nor RoCE: node type " + device.node_type;
  if (port.link_layer == LinkLayer::unknown) return "link layer not known";
  if (port.state.empty()) return "port state not known";
  if (!port.is_active()) return "port is " + port.state;
  return "";
}

PortChoice choose_gid(const System& system, const Device& device, const Port& port, const Wanted& wanted) {
  PortChoice result{&device, &port, {}, -1, false, why_not(device, port, wanted)};
  const bool usable = result.reason.empty();
  for (const Gid& gid : port.gids) {
    GidVerdict verdict;
    if (port.link_layer == LinkLayer::infiniband)
      verdict.reason = usable ? "InfiniBand needs none" : result.reason;
    else
      verdict.reason = objection(system, gid, wanted);
    if (verdict.reason.empty() && !usable) verdict.reason = result.reason;
    if (verdict.reason.empty() && result.chosen >= 0)
      verdict.reason = "fits too, but " + std::to_string(result.chosen) + " comes first; see --subnet";
    if (verdict.reason.empty()) {
      verdict.chosen = true;
      verdict.reason = wanted.family == Family::ipv4 ? "RoCE v2, IPv4" : "RoCE v2, IPv6";
      result.chosen = gid.index;
    }
    result.gids.push_back(std::move(verdict));
  }
  result.usable = usable && (port.link_layer == LinkLayer::infiniband || result.chosen >= 0);
  if (usable && !result.usable) result.reason = port.gids.empty() ? "no GID in its table" : "no GID fits";
  return result;
}

// A RoCE port cannot reach an InfiniBand port: the slower link layer is left out.
void keep_one_link_layer(Choice& choice) {
  double ethernet = 0, infiniband = 0;
  for (const PortChoice& port : choice.ports)
    if (port.usable)
      (port.port->link_layer == LinkLayer::ethernet ? ethernet : infiniband) +=
          std::max(port.port->gbit_per_second, 0.001);
  if (ethernet == 0 || infiniband == 0) return;
  const bool drop_ethernet = infiniband >= ethernet;
  for (PortChoice& port : choice.ports) {
    if (!port.usable || (port.port->link_layer == LinkLayer::ethernet) != drop_ethernet) continue;
    port.usable = false;
    port.reason = drop_ethernet ? "RoCE beside InfiniBand, which has more bandwidth; see --device"
                                : "InfiniBand beside RoCE, which has more bandwidth; see --device";
    for (GidVerdict& gid : port.gids)
      if (gid.chosen) gid = {false, port.reason};
    port.chosen = -1;
  }
}

void warn(Choice& choice) {
  double fastest = 0;
  for (const PortChoice& port : choice.ports)
    if (port.usable) fastest = std::max(fastest, port.port->gbit_per_second);
  std::size_t usable = 0;
  for (const PortChoice& port : choice.ports) {
    const std::string name = name_of(*port.device, *port.port);
    const auto fit = std::ranges::count_if(
        port.gids, [](const GidVerdict& gid) { return gid.chosen || gid.reason.starts_with("fits too"); });
    if (fit > 1)
      choice.warnings.push_back(name + ": " + std::to_string(fit) + " GIDs fit, and the first is taken; --subnet " +
                                "says which network the other nodes are in");
    if (port.reason == "no GID fits") {
      std::string reasons;
      for (const GidVerdict& gid : port.gids)
        if (reasons.find(gid.reason) == reasons.npos)
          reasons += (reasons.empty() ? ": " : ", ") + gid.reason +
                     (gid.reason.starts_with("VLAN") ? " (--subnet with its network takes it)" : "");
      choice.warnings.push_back(name + ": no GID fits" + reasons);
    }
    if (!port.usable) continue;
    ++usable;
    if (port.port->gbit_per_second > 0 && port.port->gbit_per_second < fastest)
      choice.warnings.push_back(name + " is slower than others (" + port.port->rate +
                                "); --device chooses the ones to use");
  }
  if (usable > 32) choice.warnings.push_back("NCCL uses at most 32 ports, and this node has " + std::to_string(usable));
}

Choice choose_of_family(const System& system, const Wanted& wanted) {
  Choice choice;
  choice.wanted = wanted;
  for (const Device& device : system.devices)
    for (const Port& port : device.ports) choice.ports.push_back(choose_gid(system, device, port, wanted));
  return choice;
}

bool has_gid(const Choice& choice) {
  return std::ranges::any_of(choice.ports, [](const PortChoice& port) { return port.chosen >= 0; });
}

}  // namespace

int common_bits(const std::array<std::uint8_t, 16>& a, const std::array<std::uint8_t, 16>& b) {
  for (std::size_t i = 0; i < 16; ++i)
    if (const auto difference = static_cast<std::uint8_t>(a[i] ^ b[i]))
      return static_cast<int>(i) * 8 + std::countl_zero(difference);
  return 128;
}

Subnet Subnet::parse(const std::string& text) {
  const std::size_t slash = text.find('/');
  const auto address = parse_address(text.substr(0, slash));
  const int most = text.find(':') == text.npos ? 32 : 128;
  const auto bits = slash == text.npos ? most : multinode::parse_decimal<int>(std::string_view(text).substr(slash + 1));
  if (!address || !bits || *bits > most)
    throw UsageError("--subnet must be a network such as 10.0.0.0/16 or fd00::/8, not '" + text + "'");
  return {*address, 128 - most + *bits};
}

bool Subnet::contains(const std::array<std::uint8_t, 16>& other) const { return common_bits(address, other) >= bits; }

bool Subnet::is_ipv4() const { return Gid{.address = address}.is_ipv4(); }

void Subnet::clear_host_bits() {
  for (int bit = bits; bit < 128; ++bit)
    address[static_cast<std::size_t>(bit / 8)] &= static_cast<std::uint8_t>(~(0x80 >> (bit % 8)));
}

std::string Subnet::text() const {
  return Gid{.address = address}.text() + "/" + std::to_string(is_ipv4() ? bits - 96 : bits);
}

bool Choice::has_rdma() const { return std::ranges::any_of(ports, &PortChoice::usable); }

std::string Choice::without_rdma(const System& system) const {
  const auto efa = std::ranges::find_if(system.devices, &Device::is_efa);
  if (efa == system.devices.end()) return "no usable RDMA port here: these are settings for sockets";
  return efa->name +
         " is an Elastic Fabric Adapter (EFA): nothing to set. NCCL uses it only with the plug-in aws-ofi-nccl, and "
         "NCCL_DEBUG=INFO then prints NET/OFI";
}

Choice choose(const System& system, const Wanted& wanted) {
  for (const std::string& name : wanted.devices)
    if (!system.devices.empty() && std::ranges::find(system.devices, name, &Device::name) == system.devices.end())
      throw UsageError("--device: there is no " + name + ", but " +
                       multinode::join(system.devices, ", ", &Device::name));
  if (wanted.subnet && wanted.family != Family::automatic &&
      wanted.subnet->is_ipv4() != (wanted.family == Family::ipv4))
    throw UsageError("--subnet " + wanted.subnet->text() + " is not of the --family");

  Wanted of_family = wanted;
  if (wanted.family == Family::automatic)
    of_family.family = wanted.subnet && !wanted.subnet->is_ipv4() ? Family::ipv6 : Family::ipv4;
  Choice choice = choose_of_family(system, of_family);
  if (wanted.family == Family::automatic && !wanted.subnet && !has_gid(choice)) {
    of_family.family = Family::ipv6;
    if (Choice other = choose_of_family(system, of_family); has_gid(other)) {
      choice = std::move(other);
      choice.warnings.push_back("no IPv4 GID is usable: IPv6 GIDs are used");
    }
  }
  if (wanted.devices.empty()) keep_one_link_layer(choice);
  warn(choice);
  return choice;
}

}  // namespace rdma
