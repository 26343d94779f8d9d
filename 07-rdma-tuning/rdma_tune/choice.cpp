#include "choice.hpp"

#include "simulate.hpp"

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

int common_bits(const std::array<std::uint8_t, 16>& a, const std::array<std::uint8_t, 16>& b) {
  for (std::size_t i = 0; i < 16; ++i)
    if (const auto difference = static_cast<std::uint8_t>(a[i] ^ b[i]))
      return static_cast<int>(i) * 8 + std::countl_zero(difference);
  return 128;
}

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
  if (net->vlan && !wanted.vlan) return "VLAN" + (*net->vlan ? " " + std::to_string(*net->vlan) : "");
  const auto is_its = [&](const std::string& address) { return address.starts_with(gid.text() + "/"); };
  if (!net->addresses.empty() && std::ranges::none_of(net->addresses, is_its))
    return "of another network namespace: not an address of " + net->name + " here";
  return "";
}

std::string why_not(const Device& device, const Port& port, const Wanted& wanted) {
  if (!wanted.devices.empty() && std::ranges::find(wanted.devices, device.name) == wanted.devices.end())
    return "not asked for";
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
                     (gid.reason.starts_with("VLAN") ? " (--vlan takes it)" : "");
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

// The interface for NCCL's bootstrap and sockets: that of the chosen GIDs if they share one, else preferably that of
// the default route.
const NetDevice* socket_interface(const System& system, const Choice& choice) {
  const NetDevice* of_gids = nullptr;
  bool several = false;
  for (const PortChoice& port : choice.ports) {
    if (!port.usable || port.chosen < 0) continue;
    const auto gid = std::ranges::find(port.port->gids, port.chosen, &Gid::index);
    const NetDevice* const net = system.find_net_device(gid->net_device);
    several |= of_gids && net != of_gids;
    of_gids = net;
  }
  if (of_gids && !several && of_gids->is_up) return of_gids;
  const auto rank = [&](const NetDevice& net) {
    return std::tuple(net.has_default_route, !net.is_infiniband, !net.is_virtual || net.is_bond, !net.vlan,
                      !net.addresses.empty());
  };
  const NetDevice* best = nullptr;
  for (const NetDevice& net : system.net_devices)
    if (net.is_up && !net.is_loopback && !net.has_master && (!best || rank(net) > rank(*best))) best = &net;
  return best;
}

// The smallest network that holds the networks of all chosen addresses, and so the other nodes' addresses. A network
// has its interface's prefix; if that is unknown, /24 or /64.
Subnet covering(const System& system, const std::vector<const PortChoice*>& ports) {
  std::optional<Subnet> all;
  for (const PortChoice* port : ports) {
    const auto gid = std::ranges::find(port->port->gids, port->chosen, &Gid::index);
    int bits = gid->is_ipv4() ? 96 + 24 : 64;
    if (const NetDevice* const net = system.find_net_device(gid->net_device))
      for (const std::string& address : net->addresses)
        if (address.starts_with(gid->text() + "/")) bits = Subnet::parse(address).bits;
    if (!all)
      all = {gid->address, bits};
    else
      all->bits = std::min({all->bits, bits, common_bits(all->address, gid->address)});
  }
  all->clear_host_bits();
  return *all;
}

}  // namespace

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

std::vector<Export> socket_exports(const System& system, const Choice& choice) {
  std::vector<Export> all{{"NCCL_IB_DISABLE", "1", "no RDMA here: sockets"}};
  const NetDevice* const net = socket_interface(system, choice);
  if (net)
    all.push_back({"NCCL_SOCKET_IFNAME", "=" + net->name, "this name exactly; for the bootstrap, and for sockets"});
  all.push_back({"NCCL_SOCKET_NTHREADS", "4", "for sockets only, not for RDMA"});
  all.push_back({"NCCL_NSOCKS_PERTHREAD", "8", "likewise; threads times sockets must not exceed 64"});
  if (net) all.push_back({"UCX_NET_DEVICES", net->name, ""});
  return all;
}

std::vector<Export> exports(const System& system, const Choice& choice, NcclVersion version, bool by_index) {
  Choice used = choice;
  std::string left_out;
  if (version < NcclVersion{2, 21, 0}) {  // it takes one index for all: that of most ports
    std::map<int, int> count;
    for (const PortChoice& port : used.ports)
      if (port.usable) ++count[port.chosen];
    for (PortChoice& port : used.ports) {
      if (!port.usable) continue;
      port.usable =
          port.chosen == std::ranges::max_element(count, {}, [](const auto& entry) { return entry.second; })->first;
      if (!port.usable) left_out += " " + port.device->name;
    }
  }
  std::vector<const PortChoice*> ports;
  for (const PortChoice& port : used.ports)
    if (port.usable) ports.push_back(&port);
  if (ports.empty()) return socket_exports(system, choice);

  const bool roce = ports.front()->chosen >= 0;
  bool one_index = roce, soft = false;
  std::string names;
  for (const PortChoice* port : ports) {
    names += (names.empty() ? "" : ",") + port->device->name + ":" + std::to_string(port->port->number);
    one_index &= port->chosen == ports.front()->chosen;
    soft |= roce && port->device->pci.empty();
  }
  const std::string index = roce ? std::to_string(ports.front()->chosen) : "";

  std::vector<Export> all;
  multinode::Environment set;
  const auto add = [&](const std::string& name, const std::string& value, const std::string& remark = "") {
    all.push_back({name, value, remark});
    set[name] = value;
  };
  const auto is_right = [&] { return compare_with_nccl(system, used, version, set).same; };
  const NcclNode by_itself = nccl_node(system, version, {});
  // NCCL may use a port whose state or link layer sysfs does not show.
  const auto differs = [&](const PortChoice& port) {
    const bool known = !port.port->state.empty() && port.port->link_layer != LinkLayer::unknown;
    return !known || port.usable != (by_itself.find(port.port) != nullptr);
  };
  if (std::ranges::any_of(used.ports, differs))
    add("NCCL_IB_HCA", "=" + names,
        left_out.empty() ? "these names exactly, each with its port"
                         : "without" + left_out + ": NCCL before 2.21 takes one index for all");
  const bool has_rule = version >= NcclVersion{2, 21, 0};
  bool wants_index = roce && one_index && (by_index || !has_rule) && (by_index || !is_right());
  if (roce && !wants_index && has_rule && (choice.wanted.subnet || !is_right())) {
    const std::vector<Export> before = all;
    add("NCCL_IB_ADDR_FAMILY", choice.wanted.family == Family::ipv4 ? "AF_INET" : "AF_INET6",
        "NCCL finds the GID of each port by these");
    add("NCCL_IB_ROCE_VERSION_NUM", "2");
    if (choice.wanted.subnet || !is_right())
      add("NCCL_IB_ADDR_RANGE", (choice.wanted.subnet ? *choice.wanted.subnet : covering(system, ports)).text(),
          "NCCL would take other GIDs without it");
    if (!is_right() && one_index) {
      all = before;
      wants_index = true;
    } else if (!is_right()) {
      std::string wrong;
      for (const auto& row : compare_with_nccl(system, used, version, set).rows)
        if (!row.same) wrong += " " + row.port->device->name;
      all.back().remark = "and still NCCL takes another GID on" + wrong + ": leave it out with --device";
    }
  }
  if (wants_index) add("NCCL_IB_GID_INDEX", index, "the same on all of these ports");
  add("UCX_NET_DEVICES", names, "no TCP in this list: UCX fails instead of using TCP");
  if (one_index) add("UCX_IB_GID_INDEX", index);
  if (soft) add("UCX_UD_VERBS_ETH_DGID_CHECK", "n", "soft RoCE needs it");
  return all;
}

std::string perftest_arguments(const Choice& choice) {
  const auto port = std::ranges::find_if(choice.ports, &PortChoice::usable);
  if (port == choice.ports.end()) return "";
  return "-d " + port->device->name + " -i " + std::to_string(port->port->number) +
         (port->chosen >= 0 ? " -x " + std::to_string(port->chosen) : "");
}

}  // namespace rdma
