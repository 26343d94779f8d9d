#include "table.hpp"

#include "commands.hpp"
#include "options.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/text.hpp>
#include <multinode/net/address.hpp>
#include <multinode/world/report.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <iostream>
#include <ranges>

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

}  // namespace

void print_tables(std::ostream& out, const System& system, const Choice& choice, NcclVersion version,
                  const multinode::Environment& variables) {
  if (system.devices.empty()) {
    if (!system.is_incomplete) out << "no RDMA device in " << (system.root / "class/infiniband").string() << '\n';
    return;
  }
  Table devices({"device", "firmware", "board", "PCI", "NUMA node", "net devices", "kind"});
  for (const Device& device : system.devices) {
    devices.add({device.name, or_dash(device.firmware), or_dash(device.board), or_dash(device.pci),
                 device.numa_node < 0 ? "-" : std::to_string(device.numa_node),
                 or_dash(multinode::join(device.net_devices, ",")),
                 device.pci.empty()           ? "software"
                 : device.is_virtual_function ? "virtual function"
                                              : "hardware"});
  }
  devices.print(out);

  out << '\n';
  Table ports({"device", "port", "link layer", "state", "physical", "rate", "MTU", "NCCL " + version.text(), "use"});
  const std::vector<NcclPort> nccl = nccl_ports(system, version, variables);
  for (const PortChoice& port : choice.ports) {
    const std::optional<int> mtu = rdma_mtu(system, *port.device, *port.port);
    const auto used = std::ranges::find(nccl, port.port, &NcclPort::port);
    std::string use = "no: " + port.reason;
    if (port.usable) use = port.chosen < 0 ? "yes" : "yes, GID " + std::to_string(port.chosen);
    ports.add({port.device->name, std::to_string(port.port->number), or_dash(name_of(port.port->link_layer)),
               or_dash(port.port->state), or_dash(port.port->phys_state), or_dash(port.port->rate),
               mtu ? std::to_string(*mtu) : "-", used == nccl.end() ? "not used" : used->takes, use});
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
  if (const Site& site = choice.wanted.site; !site.file.empty()) out << site.line() << '\n';
  out << note_of_nvlink(system.root);
  for (const std::string& warning : choice.warnings) out << "warning: " << warning << '\n';
}

json to_json(const System& system, const Choice& choice) {
  json result{{"node", multinode::host_name()}, {"root", system.root.string()}, {"rdma", choice.has_rdma()},
              {"ports", json::array()},         {"warnings", choice.warnings},  {"problems", system.problems}};
  if (const Site& site = choice.wanted.site; !site.file.empty()) result["site"] = site.text();
  for (const PortChoice& port : choice.ports) {
    const std::optional<int> mtu = rdma_mtu(system, *port.device, *port.port);
    json row{{"device", port.device->name},
             {"port", port.port->number},
             {"link_layer", name_of(port.port->link_layer)},
             {"state", port.port->state},
             {"rate", port.port->rate},
             {"gbit_per_second", port.port->gbit_per_second},
             {"mtu", mtu ? json(*mtu) : json(nullptr)},
             {"usable", port.usable},
             {"reason", port.reason},
             {"gid_index", port.chosen}};
    if (port.usable && port.is_infiniband()) {
      row["subnet_prefix"] = port.network;
      if (!port.port->pkeys.empty())
        row["pkeys"] = multinode::join(
            port.port->pkeys, " ", [](const auto& entry) { return std::to_string(entry.first) + ":" + entry.second; });
    } else if (const Gid* const gid = port.gid(); gid && port.usable) {
      row.update({{"gid", gid->text()}, {"net_device", gid->net_device}, {"network", port.network}});
      const NetDevice* const net = system.find_net_device(gid->net_device);
      row["assumed"] = !net || net->addresses.empty();
      row["routes"] = net ? net->routes : std::vector<std::string>{};
    }
    result["ports"].push_back(row);
  }
  return result;
}

int run_table(int argc, const char* const* argv) {
  std::string sysfs = "/sys", json_file;
  Wanted wanted;
  NcclVersion version;
  po::options_description known(
      "rdma_tune [table], or rdma_tune COMMAND, each with --help: exec, verify, check, compare");
  const auto set_version = [&](const std::string& text) { version = parse_nccl_version(text); };
  known.add_options()("nccl", po::value<std::string>()->notifier(set_version),
                      "2.20 to 2.29, the version of NCCL whose choice the table shows (default: 2.28)")(
      "json", po::value(&json_file), "file to write a JSON object to, for rdma_tune compare");
  known.add(wanted_options(wanted)).add(sysfs_option(sysfs));
  if (!multinode::parse_command_line(argc, argv, known, true)) return multinode::exit_right;
  wanted.site = read_site(sysfs);
  const System system = read_system(sysfs);
  const Choice choice = choose(system, wanted);
  multinode::JsonLines json_lines(json_file);
  for (const std::string& problem : system.problems) std::cerr << "rdma_tune: " + problem + "\n";
  print_tables(std::cout, system, choice, version, nccl_environment(sysfs));
  json_lines.write(to_json(system, choice));
  return system.is_incomplete ? multinode::exit_untestable : multinode::exit_right;
}

}  // namespace rdma
