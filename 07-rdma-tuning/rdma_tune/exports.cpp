#include "exports.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/text.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace rdma {

using multinode::Environment;

namespace {

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

// For the sockets: that of --subnet, if it is given.
const NetDevice* add_interface(const System& system, const Choice& choice, std::vector<Export>& all) {
  const auto& subnet = choice.wanted.subnet;
  const NetDevice* const net = subnet ? interface_in(system, *subnet) : socket_interface(system, choice);
  if (net) all.push_back({"NCCL_SOCKET_IFNAME", "=" + net->name});  // = asks for this name exactly
  if (net && subnet) all.push_back({"GLOO_SOCKET_IFNAME", net->name});
  return net;
}

// The smallest network that holds the networks of all chosen addresses, and so the other nodes' addresses.
Subnet covering(const std::vector<const PortChoice*>& ports) {
  Subnet all = Subnet::parse(ports.front()->network);
  for (const PortChoice* port : ports) {
    const Subnet other = Subnet::parse(port->network);
    all.bits = std::min({all.bits, other.bits, common_bits(all.address, other.address)});
  }
  all.clear_host_bits();
  return all;
}

std::vector<Export> variables_for_sockets(const System& system, const Choice& choice) {
  std::vector<Export> all;
  const NetDevice* const net = add_interface(system, choice, all);
  all.push_back({"NCCL_SOCKET_NTHREADS", "4"});
  all.push_back({"NCCL_NSOCKS_PERTHREAD", "8"});  // threads times sockets must not exceed 64
  if (net) all.push_back({"UCX_NET_DEVICES", net->name});
  return all;
}

}  // namespace

bool shares_index(const Choice& choice) {
  std::set<int> indices;
  for (const PortChoice& port : choice.ports)
    if (port.usable) indices.insert(port.chosen);
  return indices.size() == 1 && *indices.begin() >= 0;
}

bool may_hide_gids(const PortChoice& port) {
  const auto& gids = port.port->gids;
  const auto before = std::ranges::count_if(gids, [&](const Gid& gid) { return gid.index < port.chosen; });
  return port.chosen > before;
}

std::vector<Export> socket_exports(const System& system, const Choice& choice) {
  std::vector<Export> all = variables_for_sockets(system, choice);
  all.insert(all.begin(), {"NCCL_IB_DISABLE", "1"});
  return all;
}

std::vector<Export> exports(const System& system, const Choice& choice, NcclVersion version) {
  if (!choice.has_rdma()) return system.may_have_rdma() ? std::vector<Export>{} : variables_for_sockets(system, choice);
  const bool has_rule = version >= NcclVersion{2, 21, 0};
  Choice used = choice;
  std::string left_out;
  if (!has_rule) {  // it takes one index for all: that of most ports
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

  const bool roce = ports.front()->chosen >= 0;
  const bool soft =
      roce && std::ranges::any_of(ports, [](const PortChoice* port) { return port->device->pci.empty(); });
  const std::string names = multinode::join(
      ports, ",", [](const PortChoice* port) { return port->device->name + ":" + std::to_string(port->port->number); });

  std::vector<Export> all;
  Environment set;
  const auto add = [&](const std::string& name, const std::string& value, const std::string& remark = "") {
    all.push_back({name, value, remark});
    set[name] = value;
  };
  const auto is_right = [&] { return where_nccl_differs(system, used, version, set).empty(); };
  const std::vector<NcclPort> by_itself = nccl_ports(system, version, {});
  // NCCL may use a port whose state or link layer sysfs does not show.
  const auto differs = [&](const PortChoice& port) {
    const bool known = !port.port->state.empty() && port.port->link_layer != LinkLayer::unknown;
    return !known || port.usable != (find_gid(by_itself, port.port) != nullptr);
  };
  if (std::ranges::any_of(used.ports, differs))
    add("NCCL_IB_HCA", "=" + names,
        left_out.empty() ? "" : "without" + left_out + ": NCCL before 2.21 takes one index for all");
  const std::string index = shares_index(used) ? std::to_string(ports.front()->chosen) : "";
  const auto& subnet = choice.wanted.subnet;
  const bool needs_range = subnet || std::ranges::any_of(used.ports, [](const PortChoice& port) {
                             return port.usable && may_hide_gids(port);
                           });
  if (!index.empty()) {
    add("NCCL_IB_GID_INDEX", index);
  } else if (roce && (needs_range || !is_right())) {
    add("NCCL_IB_ADDR_FAMILY", choice.wanted.family == Family::ipv4 ? "AF_INET" : "AF_INET6");
    add("NCCL_IB_ROCE_VERSION_NUM", "2");
    if (needs_range || !is_right()) add("NCCL_IB_ADDR_RANGE", (subnet ? *subnet : covering(ports)).text());
    std::string wrong;
    for (const PortChoice* port : where_nccl_differs(system, used, version, set)) wrong += " " + port->device->name;
    if (!wrong.empty())
      all.back().remark = "and still NCCL takes another GID on" + wrong + ": leave it out with --device";
  }
  if (subnet) add_interface(system, choice, all);
  add("UCX_NET_DEVICES", names);  // no TCP in this list: UCX fails instead of using TCP
  if (!index.empty()) add("UCX_IB_GID_INDEX", index);
  if (soft) add("UCX_UD_VERBS_ETH_DGID_CHECK", "n");
  return all;
}

std::vector<const PortChoice*> where_nccl_differs(const System& system, const Choice& choice, NcclVersion version,
                                                  const Environment& variables) {
  const std::vector<NcclPort> used = nccl_ports(system, version, variables);
  std::vector<const PortChoice*> different;
  for (const PortChoice& port : choice.ports) {
    const NcclGid* const gid = find_gid(used, port.port);
    const bool same = port.usable && gid ? gid->failure.empty() && (port.chosen < 0 || gid->index == port.chosen)
                                         : !port.usable && !gid;
    if (!same) different.push_back(&port);
  }
  return different;
}

std::string conflicting_variables(const System& system, const Choice& choice, NcclVersion version,
                                  const Environment& variables) {
  const auto wrong = [&](const Environment& all) { return where_nccl_differs(system, choice, version, all).size(); };
  if (!wrong(variables)) return "";
  Environment ours;
  for (const Export& one : exports(system, choice, version)) ours[one.name] = one.value;
  std::vector<std::string> set, guilty;
  Environment completed = variables;
  completed.insert(ours.begin(), ours.end());
  Environment replaced = completed;
  for (const char* name :
       {"NCCL_IB_DISABLE", "NCCL_NET", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX",
        "NCCL_IB_ROCE_VERSION_NUM", "NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE", "NCCL_IB_ROUTABLE_FLID_GID_INDEX"}) {
    const auto own = variables.find(name);
    const auto our = ours.find(name);
    if (own == variables.end() || (our != ours.end() && our->second == own->second)) continue;
    Environment but_one = completed;
    for (Environment* const all : {&but_one, &replaced}) {
      all->erase(name);
      if (our != ours.end()) all->insert(*our);
    }
    set.push_back(name + ("=" + own->second) + (our != ours.end() ? " (rdma_tune: " + our->second + ")" : ""));
    if (!wrong(but_one)) guilty.push_back(set.back());
  }
  if (guilty.empty() && wrong(replaced) < wrong(variables)) guilty = set;
  if (guilty.empty()) return "";
  return multinode::join(guilty, ", ") + (guilty.size() > 1 ? " make" : " makes") + " NCCL " + version.text() +
         " use other ports or GIDs than rdma_tune: unset " + (guilty.size() > 1 ? "them" : "it");
}

}  // namespace rdma
