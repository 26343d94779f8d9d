#include "exports.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/text.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <ranges>
#include <set>
#include <tuple>

namespace rdma {

namespace {

// The interface for NCCL's bootstrap and sockets: that of the chosen GIDs if they share one, else preferably that of
// the default route.
const NetDevice* socket_interface(const System& system, const Choice& choice) {
  const NetDevice* of_gids = nullptr;
  bool several = false;
  for (const PortChoice& port : choice.ports) {
    if (!port.usable || port.chosen < 0) continue;
    const NetDevice* const net = system.find_net_device(port.gid()->net_device);
    several |= of_gids && net != of_gids;
    of_gids = net;
  }
  if (of_gids && !several && of_gids->is_up) return of_gids;
  const auto rank = [&](const NetDevice& net) {
    return std::tuple(net.is_slingshot(), net.has_default_route, !net.is_infiniband, !net.is_virtual || net.is_bond,
                      !net.vlan, !net.addresses.empty());
  };
  const NetDevice* best = nullptr;
  for (const NetDevice& net : system.net_devices)
    if (net.is_up && !net.is_loopback && !net.has_master && (!best || rank(net) > rank(*best))) best = &net;
  return best;
}

// The interface in --subnet, by its addresses or by the GIDs that are made of them.
const NetDevice* interface_in(const System& system, const Subnet& subnet) {
  bool is_known = !system.devices.empty();
  for (const NetDevice& net : system.net_devices)
    for (const std::string& address : net.addresses)
      if (is_known = true; subnet.contains(Subnet::parse(address).address) && !net.is_loopback) return &net;
  for (const Device& device : system.devices)
    for (const Port& port : device.ports)
      for (const Gid& gid : port.gids)
        if (const NetDevice* const net = system.find_net_device(gid.net_device); net && subnet.contains(gid.address))
          return net;
  if (is_known) throw multinode::UsageError("--subnet " + subnet.text() + ": no interface here has an address in it");
  return nullptr;
}

// For the sockets: that of --subnet, if it is given. A node of Slingshot has several, which are one network.
std::string add_interface(const System& system, const Choice& choice, std::vector<Export>& all) {
  const auto& subnet = choice.wanted.subnet;
  const NetDevice* const one = subnet ? interface_in(system, *subnet) : socket_interface(system, choice);
  if (!one) return "";
  auto alike = system.net_devices | std::views::filter([&](const NetDevice& net) {
                 return &net == one || (one->is_slingshot() && net.is_slingshot() && net.is_up && !net.has_master);
               });
  const std::string names = multinode::join(alike, ",", &NetDevice::name);
  all.push_back({"NCCL_SOCKET_IFNAME", "=" + names});  // = asks for these names exactly
  if (subnet) all.push_back({"GLOO_SOCKET_IFNAME", names});
  return names;
}

std::vector<Export> variables_for_sockets(const System& system, const Choice& choice) {
  std::vector<Export> all;
  const std::string names = add_interface(system, choice, all);
  all.push_back({"NCCL_SOCKET_NTHREADS", "4"});
  all.push_back({"NCCL_NSOCKS_PERTHREAD", "8"});  // threads times sockets must not exceed 64
  if (!names.empty()) all.push_back({"UCX_NET_DEVICES", names});
  return all;
}

}  // namespace

bool shares_index(const Choice& choice) {
  std::set<int> indices;
  for (const PortChoice& port : choice.ports)
    if (port.usable) indices.insert(port.chosen);
  return indices.size() == 1 && *indices.begin() >= 0;
}

std::vector<Export> socket_exports(const System& system, const Choice& choice) {
  std::vector<Export> all = variables_for_sockets(system, choice);
  all.insert(all.begin(), {"NCCL_IB_DISABLE", "1"});
  return all;
}

std::vector<Export> exports(const System& system, const Choice& choice, NcclVersion version) {
  if (!choice.has_rdma()) return system.may_have_rdma() ? std::vector<Export>{} : variables_for_sockets(system, choice);
  const auto& pkey = choice.wanted.site.pkey;
  const auto index_of = [&](const PortChoice& port) {  // of its GID or of its P_Key
    return pkey && port.is_infiniband() ? port.pkey_index(*pkey) : port.chosen;
  };
  std::map<int, int> count;
  for (const PortChoice& port : choice.ports)
    if (port.usable) ++count[index_of(port)];
  const int most = std::ranges::max_element(count, {}, [](const auto& entry) { return entry.second; })->first;
  const bool by_pkey = pkey && std::ranges::find(choice.ports, true, &PortChoice::usable)->is_infiniband();
  const bool has_rule = !by_pkey && version >= NcclVersion{2, 21, 0};  // else it takes one index for all, as here
  std::vector<const PortChoice*> ports;
  std::string left_out;
  bool may_use_others = false;  // NCCL may use a port whose state sysfs does not show
  for (const PortChoice& port : choice.ports) {
    const bool is_used = port.usable && (has_rule || index_of(port) == most);
    if (is_used) ports.push_back(&port);
    may_use_others |= !is_used && (port.port->is_active() || port.port->state.empty());
    if (port.usable && !is_used) left_out += " " + port.name();
  }

  const bool roce = ports.front()->chosen >= 0;
  const bool soft =
      roce && std::ranges::any_of(ports, [](const PortChoice* port) { return port->device->pci.empty(); });
  const std::string names = multinode::join(
      ports, ",", [](const PortChoice* port) { return port->device->name + ":" + std::to_string(port->port->number); });

  std::vector<Export> all;
  if (may_use_others)
    all.push_back({"NCCL_IB_HCA", "=" + names,
                   left_out.empty() ? ""
                                    : "without" + left_out + ": NCCL" + (by_pkey ? "" : " before 2.21") +
                                          " takes one index for all"});
  const std::string index = roce && (count.size() == 1 || !has_rule) ? std::to_string(most) : "";
  const auto& subnet = choice.wanted.subnet;
  if (!index.empty()) {
    all.push_back({"NCCL_IB_GID_INDEX", index});
  } else if (roce) {
    all.push_back({"NCCL_IB_ADDR_FAMILY", choice.wanted.ipv6 ? "AF_INET6" : "AF_INET"});
    all.push_back({"NCCL_IB_ROCE_VERSION_NUM", choice.wanted.roce_v1 ? "1" : "2"});
    all.push_back({"NCCL_IB_ADDR_RANGE", (subnet ? *subnet : covering(ports)).text()});
  }
  if (subnet) add_interface(system, choice, all);
  all.push_back({"UCX_NET_DEVICES", names});  // no TCP in this list: UCX fails instead of using TCP
  if (!index.empty()) all.push_back({"UCX_IB_GID_INDEX", index});
  if (by_pkey) {
    all.push_back({"NCCL_IB_PKEY", std::to_string(most)});
    all.push_back({"UCX_IB_PKEY", fmt::format("{:#x}", *pkey & 0x7fff)});
  }
  if (soft) all.push_back({"UCX_UD_VERBS_ETH_DGID_CHECK", "n"});
  return all;
}

}  // namespace rdma
