#include "table.hpp"

#include "options.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/text.hpp>
#include <multinode/net/address.hpp>
#include <multinode/world/report.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <iostream>

namespace rdma {

namespace po = boost::program_options;
using multinode::Table, nlohmann::json;

namespace {

std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }

std::string name_of(LinkLayer layer) {
  return layer == LinkLayer::ethernet ? "Ethernet" : layer == LinkLayer::infiniband ? "InfiniBand" : "";
}

std::string name_of(GidType type) {
  static constexpr const char* names[] = {"IB", "RoCE v1", "RoCE v2", ""};
  return names[static_cast<std::size_t>(type)];
}

Nearest nearest_gpus(const System& system, const Device& device) {
  std::vector<Candidate> gpus;
  for (const Gpu& gpu : system.gpus) gpus.push_back({gpu.pci, gpu.pci});
  return nearest(system, device.pci, gpus);
}

std::string subnet_of(const System& system, const Gid& gid) {
  const NetDevice* const net = system.find_net_device(gid.net_device);
  if (!net) return "";
  for (const std::string& address : net->addresses)
    if (address.starts_with(gid.text() + "/")) {
      Subnet subnet = Subnet::parse(address);
      subnet.clear_host_bits();
      return subnet.text();
    }
  return "";
}

}  // namespace

void print_tables(std::ostream& out, const System& system, const Choice& choice) {
  if (system.devices.empty()) {
    out << "no RDMA device in " << (system.root / "class/infiniband").string() << '\n';
    return;
  }
  Table devices({"device", "firmware", "board", "PCI", "NUMA node", "nearest GPUs", "net devices", "kind"});
  for (const Device& device : system.devices) {
    const Nearest near = nearest_gpus(system, device);
    constexpr const char* how[] = {" (PCI switch)", " (NUMA node)", " (another NUMA node)"};
    devices.add({device.name, or_dash(device.firmware), or_dash(device.board), or_dash(device.pci),
                 device.numa_node < 0 ? "-" : std::to_string(device.numa_node),
                 near.names.empty() ? "-" : multinode::join(near.names, ",") + how[near.distance],
                 or_dash(multinode::join(device.net_devices, ",")),
                 device.pci.empty()           ? "software"
                 : device.is_virtual_function ? "virtual function"
                                              : "hardware"});
  }
  devices.print(out);

  out << '\n';
  Table ports({"device", "port", "link layer", "state", "physical", "rate", "MTU", "largest", "use"});
  for (const PortChoice& port : choice.ports) {
    const auto bytes = [](const std::optional<int>& mtu) { return mtu ? std::to_string(*mtu) : "-"; };
    std::string use = "no: " + port.reason;
    if (port.usable) use = port.chosen < 0 ? "yes" : "yes, GID " + std::to_string(port.chosen);
    ports.add({port.device->name, std::to_string(port.port->number), or_dash(name_of(port.port->link_layer)),
               or_dash(port.port->state), or_dash(port.port->phys_state), or_dash(port.port->rate),
               bytes(port.port->active_mtu), bytes(port.port->max_mtu), use});
  }
  ports.print(out);

  out << '\n';
  Table gids({"device", "port", "index", "address", "type", "net device", "chosen, or why not"});
  for (const PortChoice& port : choice.ports)
    for (std::size_t i = 0; i < port.gids.size(); ++i) {
      const Gid& gid = port.port->gids[i];
      gids.add({port.device->name, std::to_string(port.port->number), std::to_string(gid.index), gid.text(),
                or_dash(name_of(gid.type)), or_dash(gid.net_device),
                port.gids[i].chosen ? "chosen" : port.gids[i].reason});
    }
  gids.print(out);
  for (const std::string& warning : choice.warnings) out << "warning: " << warning << '\n';
}

json to_json(const System& system, const Choice& choice, NcclVersion version) {
  json result{{"node", multinode::host_name()}, {"root", system.root.string()},           {"rdma", choice.has_rdma()},
              {"devices", json::array()},       {"net_devices", json::array()},           {"gpus", json::array()},
              {"exports", json::array()},       {"perftest", perftest_arguments(choice)}, {"warnings", choice.warnings},
              {"problems", system.problems}};
  const auto bytes = [](const std::optional<int>& mtu) { return mtu ? json(*mtu) : json(nullptr); };
  for (const Device& device : system.devices) {
    json ports = json::array();
    for (const PortChoice& port : choice.ports) {
      if (port.device != &device) continue;
      json gids = json::array();
      for (std::size_t i = 0; i < port.gids.size(); ++i) {
        const Gid& gid = port.port->gids[i];
        gids.push_back({{"index", gid.index},
                        {"address", gid.text()},
                        {"subnet", subnet_of(system, gid)},
                        {"type", name_of(gid.type)},
                        {"net_device", gid.net_device},
                        {"chosen", port.gids[i].chosen},
                        {"reason", port.gids[i].reason}});
      }
      ports.push_back({{"port", port.port->number},
                       {"link_layer", name_of(port.port->link_layer)},
                       {"state", port.port->state},
                       {"phys_state", port.port->phys_state},
                       {"rate", port.port->rate},
                       {"gbit_per_second", port.port->gbit_per_second},
                       {"active_mtu", bytes(port.port->active_mtu)},
                       {"max_mtu", bytes(port.port->max_mtu)},
                       {"slots", port.port->slots},
                       {"usable", port.usable},
                       {"reason", port.reason},
                       {"chosen", port.chosen},
                       {"gids", gids}});
    }
    result["devices"].push_back({{"name", device.name},
                                 {"firmware", device.firmware},
                                 {"board", device.board},
                                 {"node_type", device.node_type},
                                 {"pci", device.pci},
                                 {"numa_node", device.numa_node},
                                 {"virtual_function", device.is_virtual_function},
                                 {"net_devices", device.net_devices},
                                 {"gpus", nearest_gpus(system, device).names},
                                 {"ports", ports}});
  }
  for (const NetDevice& net : system.net_devices)
    result["net_devices"].push_back({{"name", net.name},
                                     {"state", net.state},
                                     {"mtu", net.mtu},
                                     {"vlan", net.vlan ? json(*net.vlan) : json(nullptr)},
                                     {"virtual", net.is_virtual},
                                     {"pci", net.pci},
                                     {"addresses", net.addresses}});
  for (const Gpu& gpu : system.gpus) result["gpus"].push_back({{"pci", gpu.pci}, {"numa_node", gpu.numa_node}});
  for (const Export& one : exports(system, choice, version))
    result["exports"].push_back({{"name", one.name}, {"value", one.value}, {"remark", one.remark}});
  return result;
}

std::string shell_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

void print_exports(std::ostream& out, const std::vector<Export>& exports) {
  for (const Export& one : exports)
    out << "export " << one.name << '=' << shell_quoted(one.value) << (one.remark.empty() ? "" : "  # " + one.remark)
        << '\n';
}

int run_table(int argc, const char* const* argv) {
  std::string sysfs = "/sys", json_file;
  Wanted wanted;
  NcclVersion version;
  bool wants_exports = false, by_index = false;
  po::options_description known(
      "rdma_tune [table], or rdma_tune COMMAND, each with --help: exec, simulate, check, advise, compare, verify");
  known.add_options()(
      "export", po::bool_switch(&wants_exports),
      "print this node's variables for NCCL and UCX. To use them on all nodes: rdma_tune exec -- COMMAND")(
      "index", po::bool_switch(&by_index),
      "export NCCL_IB_GID_INDEX even where NCCL finds the GID without settings, or by family, version and range")(
      "nccl", nccl_version(version), "version of NCCL that --export and --json are for (default: 2.28)");
  known.add(wanted_options(wanted)).add(system_options(sysfs, json_file));
  if (!multinode::parse_command_line(argc, argv, known, true)) return multinode::exit_right;
  const System system = read_system(sysfs);
  const Choice choice = choose(system, wanted);
  multinode::JsonLines json_lines(json_file);
  for (const std::string& problem : system.problems) std::cerr << "rdma_tune: " + problem + "\n";
  if (!wants_exports) {
    print_tables(std::cout, system, choice);
  } else {
    for (const std::string& warning : choice.warnings) std::cerr << "rdma_tune: " + warning + "\n";
    if (!choice.has_rdma()) std::cerr << "rdma_tune: " + choice.without_rdma(system) + "\n";
    const std::vector<Export> all = exports(system, choice, version, by_index);
    print_exports(std::cout, all);
    if (std::ranges::none_of(all, [](const Export& one) { return one.name.starts_with("NCCL"); }))
      std::cout << "# NCCL " + version.text() + ": nothing to set, it finds these ports and GIDs by itself\n";
    if (const std::string perftest = perftest_arguments(choice); !perftest.empty())
      std::cout << "# perftest: ib_write_bw " << perftest << '\n';
  }
  json_lines.write(to_json(system, choice, version));
  return multinode::exit_right;
}

}  // namespace rdma
