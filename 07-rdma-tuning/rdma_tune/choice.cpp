#include "choice.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/text.hpp>

#include <fmt/core.h>

#include <arpa/inet.h>
#include <fnmatch.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cstdlib>
#include <map>
#include <ranges>
#include <set>
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

constexpr const char* is_efa = "Elastic Fabric Adapter: NCCL uses it by aws-ofi-nccl";
constexpr const char* beside_card = "software beside a card; see --device";

// Why this GID is not right, whatever the state of its port; "" if it is.
std::string objection(const System& system, const std::string& device, const Gid& gid, const Wanted& wanted) {
  if (!gid.unreadable.empty()) return "of another network namespace? cannot read its " + gid.unreadable;
  if (gid.type == GidType::unknown) return "type not known";
  if (gid.is_link_local()) return "link-local (fe80)";
  if (gid.type == GidType::infiniband) return "InfiniBand";
  if ((gid.type == GidType::roce_v1) != wanted.roce_v1) return wanted.roce_v1 ? "RoCE v2" : "RoCE v1";
  if (gid.is_ipv4() == wanted.ipv6) return gid.is_ipv4() ? "IPv4" : "IPv6";
  const auto& subnet = wanted.subnet;
  if (gid.is_ipv4_link_local() && !wanted.link_local &&
      !(subnet && Gid{.address = subnet->address}.is_ipv4_link_local()))
    return "link-local (169.254)";
  if (subnet && !subnet->contains(gid.address)) return "not in " + subnet->text();
  if (const std::string by_site = wanted.site.objection(device, gid.address); !by_site.empty()) return by_site;
  if (gid.net_device.empty() || system.net_devices.empty()) return "";
  const NetDevice* const net = system.find_net_device(gid.net_device);
  if (!net) return "of another network namespace: no " + gid.net_device + " here";
  if (net->vlan && !subnet && !wanted.vlan && !wanted.site.wants(gid.address))
    return "VLAN" + (*net->vlan ? " " + std::to_string(*net->vlan) : "");
  const auto is_its = [&](const std::string& address) { return address.starts_with(gid.text() + "/"); };
  if (!net->addresses.empty() && std::ranges::none_of(net->addresses, is_its))
    return "of another network namespace: not an address of " + net->name + " here";
  return "";
}

// Why the site file leaves out the whole port: the device, or all addresses that count.
std::string objection_of_site(const Device& device, const Port& port, const Site& site) {
  std::string reason = site.objection(device.name, {});
  for (const Gid& gid : port.gids) {
    const bool is_infiniband = port.link_layer == LinkLayer::infiniband;
    if (gid.is_link_local() && !is_infiniband) continue;
    reason = site.objection(device.name, gid.address);
    if (reason.empty() || is_infiniband) break;
  }
  return reason;
}

std::string why_not(const Device& device, const Port& port, const Wanted& wanted) {
  if (!wanted.devices.empty() && std::ranges::find(wanted.devices, device.name) == wanted.devices.end())
    return "not asked for";
  if (device.is_efa()) return is_efa;
  if (!device.node_type.empty() && device.node_type != "CA")
    return "neither InfiniBand nor RoCE: node type " + device.node_type;
  if (port.link_layer == LinkLayer::unknown) return "link layer not known";
  if (!device.missing_node.empty()) return "no " + device.missing_node + " here, as in a pod with other devices";
  if (port.state.empty()) return "port state not known";
  if (!port.is_active()) return "port is " + port.state;
  if (!wanted.software && device.pci.empty()) return beside_card;
  return "";
}

PortChoice choose_gid(const System& system, const Device& device, const Port& port, const Wanted& wanted) {
  PortChoice result{&device, &port, {}, -1, false, objection_of_site(device, port, wanted.site)};
  result.by_site = !result.reason.empty();
  if (!result.by_site) result.reason = why_not(device, port, wanted);
  const bool usable = result.reason.empty();
  for (const Gid& gid : port.gids) {
    GidVerdict verdict;
    if (result.is_infiniband())
      verdict.reason = usable ? "InfiniBand needs none" : result.reason;
    else
      verdict.reason = objection(system, device.name, gid, wanted);
    if (verdict.reason.empty() && !usable) verdict.reason = result.reason;
    if (verdict.reason.empty() && result.chosen >= 0)
      verdict.reason = "fits too, but " + std::to_string(result.chosen) + " comes first; see --subnet";
    if (verdict.reason.empty()) {
      verdict.chosen = true;
      verdict.reason = std::string(wanted.roce_v1 ? "RoCE v1" : "RoCE v2") + (wanted.ipv6 ? ", IPv6" : ", IPv4");
      result.chosen = gid.index;
      result.network = network_of(system, gid).text();
    }
    result.gids.push_back(std::move(verdict));
  }
  result.usable = usable && (result.is_infiniband() || result.chosen >= 0);
  if (result.usable && result.is_infiniband() && result.gid()) {
    Subnet prefix{result.gid()->address, 64};
    prefix.clear_host_bits();
    result.network = prefix.text();
  }
  if (const auto& pkey = wanted.site.pkey;
      result.usable && result.is_infiniband() && pkey && result.pkey_index(*pkey) < 0) {
    result.usable = false;
    result.reason = fmt::format("P_Key {:#x} of the site file is not in its table", *pkey);
  }
  if (!usable || result.usable || result.is_infiniband()) return result;
  for (const GidVerdict& gid : result.gids)
    if (result.reason.find(gid.reason) == std::string::npos)
      result.reason += (result.reason.empty() ? "no GID fits: " : ", ") + gid.reason;
  if (port.gids.empty()) result.reason = "no GID in its table";
  return result;
}

// Leaves out the usable ports that `goes` is true of, with a warning.
template <class Predicate>
void leave_out(Choice& choice, const Predicate& goes, const std::string& reason) {
  std::string names;
  for (PortChoice& port : choice.ports) {
    if (!port.usable || !goes(port)) continue;
    names += port.name() + " (" + port.port->rate + "), ";
    port.usable = false;
    port.reason = reason + "; see --device";
    for (GidVerdict& gid : port.gids)
      if (gid.chosen) gid = {false, port.reason};
    port.chosen = -1;
  }
  if (!names.empty())
    choice.warnings.push_back("left out: " + names + reason + "; --device or a site file chooses the ones to use");
}

// Beside GPUs, Elastic Fabric Adapters carry the data, and what else is there manages the node.
void keep_efa(const System& system, Choice& choice) {
  if (!system.gpus.empty() && std::ranges::count(choice.ports, is_efa, &PortChoice::reason))
    leave_out(
        choice, [](const PortChoice&) { return true; }, "beside Elastic Fabric Adapters (EFA) and GPUs");
}

// A RoCE port cannot reach an InfiniBand port. InfiniBand is kept unless one network of RoCE ports is faster.
void keep_one_link_layer(Choice& choice) {
  std::map<std::string, double> speeds;  // by network; "": InfiniBand
  for (const PortChoice& port : choice.ports)
    if (port.usable) speeds[port.is_infiniband() ? "" : port.network] += std::max(port.port->gbit_per_second, 0.001);
  if (!speeds.contains("") || speeds.size() < 2) return;
  const bool keeps_infiniband = std::ranges::max(speeds | std::views::values) <= speeds.at("");
  leave_out(
      choice, [&](const PortChoice& port) { return port.is_infiniband() != keeps_infiniband; },
      keeps_infiniband ? "RoCE beside InfiniBand, which is as fast as any network of it"
                       : "InfiniBand beside a network of RoCE, which is faster");
}

// Whether a's network or routes lead to b. Links of two addresses, /31 and /127, are of a routed fabric, whose routes
// may be in tables of their own; so is IPv6 without a known prefix. A default route says nothing of a fabric.
bool leads_to(const System& system, const PortChoice& a, const PortChoice& b) {
  if (a.is_infiniband() || a.network == b.network || b.network.empty()) return a.network == b.network;
  const Subnet from = Subnet::parse(a.network), to = Subnet::parse(b.network);
  const NetDevice* const net = system.find_net_device(a.gid()->net_device);
  if (!net || from.is_ipv4() != to.is_ipv4()) return false;
  return (from.bits == 127 && to.bits == 127) || (!from.is_ipv4() && net->addresses.empty()) ||
         std::ranges::any_of(net->routes, [&](const std::string& route) {
           return !route.ends_with("/0") && Subnet::parse(route).contains(to.address);
         });
}

// 2: a GPU is below the same bridge or switch as the device; 1: below the same host bridge; 0: none is.
int nearness(const System& system, const Device& device) {
  std::ptrdiff_t shared = 0;
  for (const auto& gpu : system.gpus)
    shared = std::max(shared, std::distance(gpu.begin(), std::ranges::mismatch(gpu, device.place).in1));
  return static_cast<int>(std::min(shared, std::ptrdiff_t{2}));
}

// The options for the ports that all evidence is for, and why; of networks that cannot reach each other. "": it is for
// none, or against itself.
std::string recommended(const System& system, const Choice& choice) {
  auto ports = choice.ports | std::views::filter([](const PortChoice& p) { return p.usable && !p.network.empty(); });
  std::map<std::string, int> ports_in;
  for (const PortChoice& port : ports) ++ports_in[port.network];
  const auto likeness = [&](const PortChoice& port) {
    const NetDevice* const net = system.find_net_device(port.gid()->net_device);
    std::string naming = net ? net->name : port.device->name;
    std::erase_if(naming, [](unsigned char c) { return std::isdigit(c); });
    const auto depth = std::distance(port.device->place.begin(), port.device->place.end());
    return std::tuple(port.port->gbit_per_second, !net || !net->has_default_route, Subnet::parse(port.network).bits,
                      ports_in.at(port.network), port.device->board, naming, depth);
  };
  using Kind = std::tuple<double, int, bool, int, int>;  // the first three are merits
  std::map<Kind, std::vector<const PortChoice*>> kinds;  // of alike ports
  for (const PortChoice& port : ports) {
    const auto like = likeness(port);
    int near = nearness(system, *port.device), near_rails = 0;
    std::vector<const PortChoice*> rails;
    for (const PortChoice& rail : ports)
      if (const int its = nearness(system, *rail.device); its > 0 && likeness(rail) == like)
        rails.push_back(&rail), near_rails = std::max(near_rails, its);
    // One whose GPU is missing is alike the others, and its network is near theirs.
    if (!rails.empty() &&
        common_bits(covering(rails).address, Subnet::parse(port.network).address) >= covering(rails).bits - 2)
      near = near_rails;
    kinds[{std::get<0>(like), near, std::get<1>(like), std::get<2>(like), std::get<3>(like)}].push_back(&port);
  }
  for (const auto& kind : kinds) {
    const auto& one = kind.second;
    std::set<std::string> reasons;
    const auto is_better = [&](const auto& other) {
      const auto& [speed, near, data, bits, in_network] = kind.first;
      const auto& [other_speed, other_near, other_data, other_bits, in_other] = other.first;
      if (speed > other_speed) reasons.insert("faster");
      if (near > other_near) reasons.insert("nearer to GPUs");
      if (data > other_data) reasons.insert("without the default route");
      if (std::tie(speed, near, data) != std::tie(other_speed, other_near, other_data))
        return speed >= other_speed && near >= other_near && data >= other_data;
      reasons.insert("more alike ports");
      return one.size() > other.second.size();
    };
    if (kinds.size() < 2 ||
        !std::ranges::all_of(kinds, [&](const auto& other) { return &other == &kind || is_better(other); }))
      continue;
    const std::string why = " (" + multinode::join(reasons) + ")", network = one.front()->network;
    if (ports_in.at(network) == std::ssize(one) && one.back()->network == network && !one.front()->is_infiniband())
      return "--subnet " + network + why;
    return multinode::join(one, " ", [](const PortChoice* port) { return "--device " + port->device->name; }) + why;
  }
  return "";
}

void warn(const System& system, Choice& choice) {
  double fastest = 0;
  for (const PortChoice& port : choice.ports)
    if (port.usable) fastest = std::max(fastest, port.port->gbit_per_second);
  std::size_t usable = 0;
  std::map<std::string, std::string> networks;  // and the ports that meet there
  for (const PortChoice& port : choice.ports) {
    const auto fit = std::ranges::count_if(
        port.gids, [](const GidVerdict& gid) { return gid.chosen || gid.reason.starts_with("fits too"); });
    if (fit > 1)
      choice.warnings.push_back(port.name() + ": " + std::to_string(fit) + " GIDs fit, and the first is taken; " +
                                "--subnet says which network the other nodes are in");
    if (port.reason == beside_card)
      choice.warnings.push_back("left out: " + port.name() + " (" + port.port->rate + "), " + port.reason);
    if (port.reason.starts_with("no GID fits")) choice.warnings.push_back(port.name() + ": " + port.reason);
    if (port.port->state == "INIT" || port.port->state == "ARMED")
      choice.warnings.push_back(port.name() + " is left out, " + port.port->state +
                                ": has no subnet manager configured it?");
    if (!port.usable) continue;
    ++usable;
    for (std::size_t i = 0; i < port.gids.size() && port.chosen >= 0; ++i)
      if (const Gid& gid = port.port->gids[i]; port.gids[i].reason.starts_with("VLAN") && !choice.wanted.subnet)
        choice.warnings.push_back(port.name() + ": " + port.gid()->text() + " of " + port.gid()->net_device +
                                  " is taken, and not " + gid.text() + " of " + port.gids[i].reason +
                                  "; --subnet says which network the other nodes are in");
    if (const auto& pkeys = port.port->pkeys; pkeys.size() > 1 && !choice.wanted.site.pkey)
      choice.warnings.push_back(
          port.name() + ": P_Keys " + multinode::join(pkeys | std::views::values) + "; NCCL takes the first" +
          (pkeys.begin()->second < "0x8000" ? ", a limited member, which reaches full members only" : "") +
          "; a line pkey in a site file chooses another");
    if (!port.network.empty()) {
      const auto meets = [&](const PortChoice& other) {
        return other.usable && leads_to(system, port, other) && leads_to(system, other, port);
      };
      std::string& devices = networks[std::ranges::find_if(choice.ports, meets)->network];
      devices += (devices.empty() ? "" : ", ") + port.device->name;
    }
    if (port.port->gbit_per_second > 0 && port.port->gbit_per_second < fastest)
      choice.warnings.push_back(port.name() + " is slower than others (" + port.port->rate +
                                "); --device chooses the ones to use");
  }
  if (networks.size() > 1 && !choice.wanted.subnet && choice.wanted.devices.empty()) {
    std::string list;
    for (const auto& [network, devices] : networks) list += (list.empty() ? "" : ", ") + network + " (" + devices + ")";
    const std::string best = recommended(system, choice);
    choice.warnings.push_back(std::to_string(networks.size()) + " networks fit, and all are taken: " + list +
                              "; if they cannot reach each other, choose " +
                              (best.empty() ? "by --subnet or --device: nothing here says which is right" : best));
  }
  if (usable > 32) choice.warnings.push_back("NCCL uses at most 32 ports, and this node has " + std::to_string(usable));
}

Choice choose_once(const System& system, const Wanted& wanted) {
  Choice choice;
  choice.wanted = wanted;
  for (const Device& device : system.devices)
    for (const Port& port : device.ports) choice.ports.push_back(choose_gid(system, device, port, wanted));
  return choice;
}

}  // namespace

std::string Site::objection(const std::string& device, const std::array<std::uint8_t, 16>& address) const {
  bool is_used = false, names_use = false;
  for (const Rule& rule : rules) {
    names_use |= rule.is_use;
    if (rule.network ? !rule.network->contains(address) : fnmatch(rule.name.c_str(), device.c_str(), 0) != 0) continue;
    if (!rule.is_use) return "left out by " + file.string() + ":" + std::to_string(rule.line);
    is_used = true;
  }
  return is_used || !names_use ? "" : "not among those to use in " + file.string();
}

bool Site::wants(const std::array<std::uint8_t, 16>& address) const {
  return std::ranges::any_of(
      rules, [&](const Rule& rule) { return rule.is_use && rule.network && rule.network->contains(address); });
}

std::string Site::text() const {
  const std::string key = pkey ? fmt::format("pkey {:#x}", *pkey) : "";
  if (rules.empty()) return pkey ? key : "no rules, or --subnet or --device in place of them";
  return multinode::join(rules, ", ", [](const Rule& rule) { return (rule.is_use ? "use " : "leave ") + rule.name; }) +
         (pkey ? ", " + key : "");
}

int PortChoice::pkey_index(unsigned pkey) const {
  const auto number = [](const std::string& text) { return std::strtoul(text.c_str(), nullptr, 16) & 0x7fff; };
  for (const auto& [index, text] : port->pkeys)
    if (number(text) == (pkey & 0x7fff)) return index;
  return -1;
}

const Gid* PortChoice::gid() const {
  const auto found = is_infiniband() ? port->gids.begin() : std::ranges::find(port->gids, chosen, &Gid::index);
  return found == port->gids.end() ? nullptr : &*found;
}

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

Subnet covering(const std::vector<const PortChoice*>& ports) {
  Subnet all = Subnet::parse(ports.front()->network);
  for (const PortChoice* port : ports) {
    if (port->is_infiniband()) continue;
    const Subnet other = Subnet::parse(port->network);
    all.bits = std::min({all.bits, other.bits, common_bits(all.address, other.address)});
  }
  all.clear_host_bits();
  return all;
}

Subnet network_of(const System& system, const Gid& gid) {
  Subnet network{gid.address, 0};
  const auto narrow = [&](const std::string& text) {
    if (const Subnet other = Subnet::parse(text); other.bits > 96 && other.contains(gid.address))
      network.bits = std::max(network.bits, other.bits);
  };
  if (const NetDevice* const net = system.find_net_device(gid.net_device)) {
    for (const std::string& address : net->addresses)
      if (address.starts_with(gid.text() + "/")) network.bits = Subnet::parse(address).bits;
    if (!network.bits && gid.is_ipv4()) std::ranges::for_each(net->routes, narrow);
  }
  if (!network.bits) network.bits = !gid.is_ipv4() ? 64 : gid.is_ipv4_link_local() ? 96 + 16 : 96 + 24;
  network.clear_host_bits();
  return network;
}

bool Choice::has_rdma() const { return std::ranges::any_of(ports, &PortChoice::usable); }

std::string Choice::why_no_rdma(const System& system) const {
  if (const auto efa = std::ranges::find_if(system.devices, &Device::is_efa); efa != system.devices.end())
    return efa->name +
           " is an Elastic Fabric Adapter (EFA): nothing to set. NCCL uses it only with the plug-in aws-ofi-nccl, and "
           "NCCL_DEBUG=INFO then prints NET/OFI";
  if (const auto hsn = std::ranges::find_if(system.net_devices, &NetDevice::is_slingshot);
      hsn != system.net_devices.end() && system.devices.empty())
    return hsn->name + " is of Slingshot: NCCL uses its RDMA only with the plug-in aws-ofi-nccl. Variables for " +
           "sockets are set, and no others";
  std::string why =
      system.devices.empty() && !system.is_incomplete ? "no RDMA device here" : "no usable RDMA port here";
  for (const PortChoice& port : ports) why += "; " + port.name() + ": " + port.reason;
  if (system.is_incomplete) why += "; cannot read " + multinode::join(system.problems, "; ");
  return why + (system.may_have_rdma() ? ". Nothing is set" : ". Variables for sockets are set, and no others");
}

Choice choose(const System& system, const Wanted& wanted) {
  for (const std::string& name : wanted.devices)
    if (std::ranges::find(system.devices, name, &Device::name) == system.devices.end())
      throw UsageError("--device: there is no " + name + ", but " +
                       (system.devices.empty() ? "no device" : multinode::join(system.devices, ", ", &Device::name)));
  // What is left where no port has anything better.
  const struct {
    bool ipv6, vlan, link_local, roce_v1;
    const char* warning;
  } attempts[] = {{false, false, false, false, ""},
                  {false, true, false, false, "the addresses of a VLAN are used, as there is no other IPv4 address"},
                  {true, false, false, false, "no IPv4 GID is usable: IPv6 GIDs are used"},
                  {true, true, false, false, "IPv6 addresses of a VLAN are used, as there is no other address"},
                  {false, false, true, false,
                   "link-local addresses (169.254) are used, as there are no others: no router forwards them"},
                  {false, false, false, true, "RoCE v1 is used, as no port has v2: no router forwards it"}};
  Choice choice;
  for (const bool software : {!wanted.devices.empty(), true})
    for (const auto& [ipv6, vlan, link_local, roce_v1, warning] : attempts) {
      if (choice.has_rdma() || (wanted.subnet && wanted.subnet->is_ipv4() == ipv6)) continue;
      Wanted attempt = wanted;
      if (wanted.subnet || !wanted.devices.empty()) attempt.site.rules.clear();
      attempt.ipv6 = ipv6, attempt.vlan = vlan, attempt.link_local = link_local, attempt.roce_v1 = roce_v1,
      attempt.software = software;
      Choice other = choose_once(system, attempt);
      const bool has_rdma = other.has_rdma();
      if (has_rdma && *warning && (vlan || link_local || roce_v1 || !wanted.subnet))
        other.warnings.emplace_back(warning);
      if (has_rdma || (software && choice.ports.empty())) choice = std::move(other);
    }
  const auto& rules = choice.wanted.site.rules;
  if (wanted.devices.empty() && !wanted.subnet && std::ranges::none_of(rules, &Site::Rule::is_use))
    keep_efa(system, choice);
  if (wanted.devices.empty()) keep_one_link_layer(choice);
  warn(system, choice);
  return choice;
}

}  // namespace rdma
