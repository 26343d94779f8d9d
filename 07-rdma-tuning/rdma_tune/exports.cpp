#include "exports.hpp"

#include <multinode/base/text.hpp>

#include <algorithm>
#include <map>
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

std::vector<Export> socket_exports(const System& system, const Choice& choice) {
  std::vector<Export> all{{"NCCL_IB_DISABLE", "1"}};
  const NetDevice* const net = socket_interface(system, choice);
  if (net) all.push_back({"NCCL_SOCKET_IFNAME", "=" + net->name});  // = asks for this name exactly
  all.push_back({"NCCL_SOCKET_NTHREADS", "4"});
  all.push_back({"NCCL_NSOCKS_PERTHREAD", "8"});  // threads times sockets must not exceed 64
  if (net) all.push_back({"UCX_NET_DEVICES", net->name});
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
  if (ports.empty() && std::ranges::any_of(system.devices, &Device::is_efa)) return {};
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
  const bool has_rule = version >= NcclVersion{2, 21, 0};
  bool wants_index = roce && one_index && (by_index || !has_rule) && (by_index || !is_right());
  if (roce && !wants_index && has_rule && (choice.wanted.subnet || !is_right())) {
    const std::vector<Export> before = all;
    add("NCCL_IB_ADDR_FAMILY", choice.wanted.family == Family::ipv4 ? "AF_INET" : "AF_INET6");
    add("NCCL_IB_ROCE_VERSION_NUM", "2");
    if (choice.wanted.subnet || !is_right())
      add("NCCL_IB_ADDR_RANGE", (choice.wanted.subnet ? *choice.wanted.subnet : covering(system, ports)).text());
    if (!is_right() && one_index) {
      all = before;
      wants_index = true;
    } else if (!is_right()) {
      std::string wrong;
      for (const PortChoice* port : where_nccl_differs(system, used, version, set)) wrong += " " + port->device->name;
      all.back().remark = "and still NCCL takes another GID on" + wrong + ": leave it out with --device";
    }
  }
  if (wants_index) add("NCCL_IB_GID_INDEX", index);
  add("UCX_NET_DEVICES", names);  // no TCP in this list: UCX fails instead of using TCP
  if (one_index) add("UCX_IB_GID_INDEX", index);
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
  const auto is_right = [&](const Environment& all) {
    return where_nccl_differs(system, choice, version, all).empty();
  };
  if (is_right(variables)) return "";
  std::vector<std::string> set, guilty;
  Environment without = variables;
  for (const char* name :
       {"NCCL_IB_DISABLE", "NCCL_NET", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX",
        "NCCL_IB_ROCE_VERSION_NUM", "NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE", "NCCL_IB_ROUTABLE_FLID_GID_INDEX"}) {
    if (!without.erase(name)) continue;
    Environment but_one = variables;
    but_one.erase(name);
    set.push_back(name + ("=" + variables.at(name)));
    if (is_right(but_one)) guilty.push_back(set.back());
  }
  if (guilty.empty() && is_right(without)) guilty = set;
  if (guilty.empty()) return "";
  return multinode::join(guilty, ", ") + (guilty.size() > 1 ? " make" : " makes") + " NCCL " + version.text() +
         " use other ports or GIDs than rdma_tune: unset " + (guilty.size() > 1 ? "them" : "it");
}

}  // namespace rdma
