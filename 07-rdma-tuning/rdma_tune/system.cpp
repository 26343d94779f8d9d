#include "system.hpp"

#include "choice.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/descriptor.hpp>
#include <multinode/base/files.hpp>
#include <multinode/base/text.hpp>
#include <multinode/net/address.hpp>

#include <nlohmann/json.hpp>

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <net/if.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <memory>
#include <sstream>
#include <string_view>

namespace rdma {

using multinode::Descriptor;
namespace fs = std::filesystem;

namespace {

constexpr int most_slots = 65'536;  // a GID table has 1024 at most today

struct Text {
  std::string value;  // without the white space at its end
  int error = 0;      // errno
};

Text read_at(int folder, const char* name) {
  char buffer[4096];  // all that a file of sysfs can hold
  const Descriptor file(openat(folder, name, O_RDONLY | O_CLOEXEC));
  const ssize_t count = file.get() < 0 ? -1 : read(file.get(), buffer, sizeof buffer);
  if (count < 0) return {"", errno};
  const std::string_view text(buffer, static_cast<std::size_t>(count));
  return {std::string(text.substr(0, text.find_last_not_of(" \t\r\n") + 1)), 0};
}

bool is_plain(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

// A name that NCCL_IB_HCA and a row of a table can hold.
bool is_name(std::string_view text) {
  return !text.empty() && text.size() < 64 && is_plain(text) && text.find_first_of(" ,:=^/'\"\\") == text.npos;
}

template <class Number>
bool parse_number(std::string_view text, Number& number, int base = 10) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  return error == std::errc() && end == text.data() + text.size();
}

// "0000:3b:00.0"; the domain of a device behind Intel's VMD has five digits
bool is_pci_address(std::string_view text) {
  std::string_view form = "xxxxxxxx:xx:xx.x";
  if (text.size() < 12 || text.size() > form.size()) return false;
  form.remove_prefix(form.size() - text.size());
  return std::ranges::equal(text, form, [](unsigned char c, char f) { return f == 'x' ? std::isxdigit(c) : c == f; });
}

// The device that a path of sysfs/devices belongs to: its last PCI address. "": none.
std::string pci_of(const fs::path& path) {
  std::string found;
  for (const fs::path& part : path)
    if (is_pci_address(part.native())) found = part.native();
  return found;
}

// All eight groups of four digits, as sysfs writes it.
bool parse_gid(std::string_view text, std::array<std::uint8_t, 16>& address) {
  return text.size() == 39 && inet_pton(AF_INET6, std::string(text).c_str(), address.data()) == 1;
}

// What iproute2 answers, which pods may lack.
nlohmann::json asked_of_ip(const std::string& words) {
  const auto all = nlohmann::json::parse(output_of("ip -j -4 " + words), nullptr, false);
  return all.is_array() ? all : nlohmann::json::array();
}

// IPv4 routes of the tables to which rules send what comes from an interface's address; /proc has the main table alone.
void add_policy_routes(System& system) {
  const auto rules = asked_of_ip("rule");
  for (const auto& route : asked_of_ip("route show table all"))
    for (NetDevice& net : system.net_devices) {
      const auto takes = [&](const nlohmann::json& rule) {
        const std::string from = rule.value("src", "all"), bits = std::to_string(rule.value("srclen", 32));
        return from != "all" && rule.value("table", "") == route.value("table", "") &&
               std::ranges::any_of(net.addresses, [&](const std::string& address) {
                 return Subnet::parse(from + "/" + bits).contains(Subnet::parse(address).address);
               });
      };
      if (route.value("dev", "") != net.name || route.contains("type") || std::ranges::none_of(rules, takes)) continue;
      const std::string to = route.value("dst", "");
      // A default route of a card's own is evidence, unlike that of the main table.
      for (const auto& part : to == "default" ? std::vector<std::string>{"0.0.0.0/1", "128.0.0.0/1"} : std::vector{to})
        net.routes.push_back(part);
    }
}

class Reader {
 public:
  explicit Reader(System& system) : system_(system) {}

  void devices() {
    for (const std::string& name : names("class/infiniband"))
      if (is_name(name)) device(name);
  }

  void net_devices() {
    for (const std::string& name : names("class/net")) {
      const fs::path folder = fs::path("class/net") / name;
      std::error_code error;
      if (!fs::is_directory(system_.root / folder, error)) {
        if (error) problem(folder, error.message());
        continue;  // bonding_masters is a file
      }
      if (!is_name(name)) continue;
      NetDevice net;
      net.name = name;
      net.mtu = number(folder / "mtu", 0);
      unsigned flags = 0;
      if (const std::string text = word(folder / "flags"); text.starts_with("0x"))
        parse_number(std::string_view(text).substr(2), flags, 16);
      const std::string state = word(folder / "operstate");
      net.is_up = state == "up" || ((state.empty() || state == "unknown") && (flags & IFF_UP));
      net.is_loopback = flags & IFF_LOOPBACK;
      const int type = number(folder / "type", 1);
      net.is_infiniband = type == 32;
      net.is_loopback |= type == 772;
      net.has_master = exists(folder / "master");
      net.is_bond = exists(folder / "bonding");
      const fs::path real = canonical(folder);
      net.is_virtual = real.native().find("/devices/virtual/") != std::string::npos;
      net.vlan = vlan(name, folder);
      system_.net_devices.push_back(std::move(net));
    }
    routes();
  }

  void gpus() {
    for (const std::string& pci : names("bus/pci/devices")) {
      if (!is_pci_address(pci)) continue;
      const fs::path folder = fs::path("bus/pci/devices") / pci;
      const std::string vendor = word(folder / "vendor"), type = word(folder / "class").substr(0, 6);
      const bool display = type == "0x0300" || type == "0x0302";  // also a 3D controller
      system_.has_gpu |= display && vendor == "0x10de";
      // Not the displays of other vendors, which are on mainboards, but their accelerators.
      if ((display && vendor == "0x10de") || ((type == "0x0302" || type == "0x0380" || type == "0x1200") &&
                                              (vendor == "0x1002" || vendor == "0x8086" || vendor == "0x1da3")))
        system_.gpus.push_back(place_of(folder));
    }
  }

 private:
  void problem(const fs::path& file, const std::string& why) {
    system_.problems.push_back(shown_path(system_.root / file) + ": " + why);
  }

  void unreadable(const fs::path& folder, const std::string& why) {
    problem(folder, why);
    system_.is_incomplete |= folder.native().starts_with("class/infiniband");
  }

  bool exists(const fs::path& file) const {
    return faccessat(AT_FDCWD, (system_.root / file).c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0;
  }

  fs::path place_of(const fs::path& folder) const { return canonical(folder).lexically_relative(canonical("devices")); }

  fs::path canonical(const fs::path& file) const {
    std::error_code error;
    return fs::canonical(system_.root / file, error);
  }

  // In natural order; empty if there is no such folder.
  std::vector<std::string> names(const fs::path& folder) {
    std::vector<std::string> found;
    const std::unique_ptr<DIR, int (*)(DIR*)> stream(opendir((system_.root / folder).c_str()), closedir);
    if (!stream) {
      if (errno != ENOENT) unreadable(folder, std::strerror(errno));
      return found;
    }
    while (const dirent* entry = readdir(stream.get())) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") found.emplace_back(name);
    }
    std::ranges::sort(found, [](const auto& a, const auto& b) { return strverscmp(a.c_str(), b.c_str()) < 0; });
    return found;
  }

  // One line of printable text; "" if there is no such file, or if it holds anything else.
  std::string word(const fs::path& file) {
    const Text text = read_at(AT_FDCWD, (system_.root / file).c_str());
    if (text.error && text.error != ENOENT && text.error != ENOTDIR) problem(file, std::strerror(text.error));
    return text.value.size() < 256 && is_plain(text.value) ? text.value : "";
  }

  int number(const fs::path& file, int otherwise) {
    int value = 0;
    return parse_number(word(file), value) ? value : otherwise;
  }

  // "4: ACTIVE" -> "ACTIVE"; "" if it is none
  std::string state(const fs::path& file) {
    const std::string text = word(file);
    const std::size_t colon = text.find(": ");
    int value = 0;
    const bool has_number = colon != text.npos && parse_number(std::string_view(text).substr(0, colon), value);
    return has_number ? text.substr(colon + 2) : "";
  }

  void device(const std::string& name) {
    const fs::path folder = fs::path("class/infiniband") / name;
    Device device;
    device.name = name;
    std::error_code error;
    if (!fs::is_directory(system_.root / folder, error))
      return unreadable(folder, error ? error.message() : "not a folder");
    device.firmware = word(folder / "fw_ver");
    device.board = word(folder / "board_id");
    device.node_type = state(folder / "node_type");
    device.place = place_of(exists(folder / "device") ? folder / "device" : folder);
    device.pci = pci_of(device.place);
    device.numa_node = number(folder / "device/numa_node", -1);
    device.vendor = word(folder / "device/vendor");
    bool has_others = false, is_listed = false;  // a device that only manages the subnet (SMI) is not
    for (const std::string& verbs : names("class/infiniband_verbs")) {
      const std::string of = word(fs::path("class/infiniband_verbs") / verbs / "ibdev");
      has_others |= !of.empty();
      if (of != name) continue;
      is_listed = true;
      const fs::path nodes = machine_of(system_.root) / "dev/infiniband";
      const bool has_nodes = system_.root == "/sys" || std::ranges::any_of(multinode::names_in(nodes), [](auto& node) {
                               return node.starts_with("uverbs");
                             });
      if (has_nodes && !multinode::is_there(nodes / verbs)) device.missing_node = (nodes / verbs).string();
    }
    if (has_others && !is_listed) device.missing_node = "verbs device";
    device.is_virtual_function = exists(folder / "device/physfn");
    for (const std::string& net : names(folder / "device/net")) add_net(device, net);
    if (const std::string parent = word(folder / "parent"); is_name(parent)) add_net(device, parent);  // soft RoCE
    for (const std::string& text : names(folder / "ports")) {
      int number = 0;
      if (parse_number(text, number) && number >= 1 && number <= 255)
        device.ports.push_back(port(folder / "ports" / text, number, device));
    }
    system_.devices.push_back(std::move(device));
  }

  static void add_net(Device& device, const std::string& name) {
    if (is_name(name) && std::ranges::find(device.net_devices, name) == device.net_devices.end())
      device.net_devices.push_back(name);
  }

  Port port(const fs::path& folder, int number, Device& device) {
    Port port;
    port.number = number;
    const std::string link_layer = word(folder / "link_layer");
    if (link_layer == "Ethernet")
      port.link_layer = LinkLayer::ethernet;
    else if (link_layer == "InfiniBand")
      port.link_layer = LinkLayer::infiniband;
    port.state = state(folder / "state");
    port.phys_state = state(folder / "phys_state");
    port.rate = word(folder / "rate");
    const std::size_t unit = port.rate.find(" Gb/sec");
    const auto rate = multinode::number_of<double>(std::string_view(port.rate).substr(0, unit));
    if (unit != port.rate.npos && rate && *rate >= 0 && *rate < 1e6) port.gbit_per_second = *rate;
    if (int at = 0; port.link_layer == LinkLayer::infiniband)
      for (const std::string& index : names(folder / "pkeys"))
        if (const std::string pkey = word(folder / "pkeys" / index); pkey != "0x0000" && parse_number(index, at))
          port.pkeys[at] = pkey;
    gids(folder, port);
    for (const Gid& gid : port.gids)
      if (!gid.net_device.empty()) add_net(device, gid.net_device);
    return port;
  }

  // Three system calls per empty slot: a table has 1024 slots, and a machine may have 8 tables.
  void gids(const fs::path& folder, Port& port) {
    const auto open_folder = [&](const fs::path& path) {
      return open((system_.root / path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    };
    const Descriptor table(open_folder(folder / "gids"));
    const Descriptor types(open_folder(folder / "gid_attrs/types"));
    const Descriptor net_devices(open_folder(folder / "gid_attrs/ndevs"));
    for (const std::string& name : names(folder / "gids")) {
      Gid gid;
      if (!parse_number(name, gid.index) || gid.index < 0 || gid.index >= most_slots ||
          std::to_string(gid.index) != name)
        continue;
      port.slots = gid.index + 1;  // the names ascend
      const auto [text, error] = read_at(table.get(), name.c_str());
      if (text == "0000:0000:0000:0000:0000:0000:0000:0000") continue;
      if (error) problem(folder / "gids" / name, std::strerror(error));
      if (error || !parse_gid(text, gid.address)) continue;
      const Text type = read_at(types.get(), name.c_str());
      gid.type_error = type.error;
      if (type.error)
        gid.unreadable = "type: " + std::string(std::strerror(type.error));
      else if (type.value == "RoCE v2")
        gid.type = GidType::roce_v2;
      else if (type.value == "IB/RoCE v1" || type.value == "RoCE v1")
        gid.type = port.link_layer == LinkLayer::infiniband ? GidType::infiniband : GidType::roce_v1;
      const Text net = read_at(net_devices.get(), name.c_str());
      if (net.error) {
        if (gid.unreadable.empty() && net.error != ENOENT && port.link_layer != LinkLayer::infiniband)
          gid.unreadable = "net device: " + std::string(std::strerror(net.error));
      } else if (is_name(net.value)) {
        gid.net_device = net.value;
      }
      port.gids.push_back(std::move(gid));
    }
  }

  fs::path proc() const {
    const fs::path machine = machine_of(system_.root);
    return machine.empty() ? machine : machine / "proc";
  }

  // The default route is that of IPv4 with the lowest metric.
  void routes() {
    if (proc().empty()) return;
    std::istringstream lines(multinode::read_text(proc() / "net/route").value_or(""));
    NetDevice* by_default = nullptr;
    int lowest = 0;
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      const std::vector<std::string> fields(std::istream_iterator<std::string>(words), {});
      std::uint32_t to = 0, mask = 0;  // in network byte order
      int metric = 0;
      if (fields.size() < 8 || !parse_number(fields[1], to, 16) || !parse_number(fields[7], mask, 16) ||
          !parse_number(fields[6], metric))
        continue;
      const auto net = std::ranges::find(system_.net_devices, fields[0], &NetDevice::name);
      if (net == system_.net_devices.end()) continue;
      char text[INET_ADDRSTRLEN];
      net->routes.push_back(inet_ntop(AF_INET, &to, text, sizeof text) + ("/" + std::to_string(std::popcount(mask))));
      if (!to && !mask && (!by_default || metric < lowest)) by_default = &*net, lowest = metric;
    }
    if (by_default) by_default->has_default_route = true;
    std::istringstream six(multinode::read_text(proc() / "net/ipv6_route").value_or(""));
    std::string to, bits, other, name;
    while (six >> to >> bits >> other >> other >> other >> other >> other >> other >> other >> name) {
      const auto net = std::ranges::find(system_.net_devices, name, &NetDevice::name);
      int prefix = 0;
      if (net == system_.net_devices.end() || to.size() != 32 || !parse_number(bits, prefix, 16)) continue;
      for (std::size_t at = 28; at > 0; at -= 4) to.insert(at, ":");
      net->routes.push_back(to + "/" + std::to_string(prefix));
    }
  }

  std::optional<int> vlan(const std::string& name, const fs::path& folder) {
    const std::size_t dot = name.rfind('.');
    const bool is_vlan =
        read_at(AT_FDCWD, (system_.root / folder / "uevent").c_str()).value.find("DEVTYPE=vlan") != std::string::npos ||
        (dot != name.npos && exists(folder / ("lower_" + name.substr(0, dot))));
    if (!is_vlan) return {};
    // "VID: 100" in /proc, else from its name: vlan100, eth0.100
    const std::string text = proc().empty() ? "" : read_at(AT_FDCWD, (proc() / "net/vlan" / name).c_str()).value;
    const std::size_t id = text.find("VID: ");
    const std::string_view rest = id != text.npos            ? std::string_view(text).substr(id + 5)
                                  : name.starts_with("vlan") ? std::string_view(name).substr(4)
                                                             : std::string_view(name).substr(dot + 1);
    int number = 0;
    return parse_number(rest.substr(0, rest.find_first_not_of("0123456789")), number) ? number : 0;
  }

  System& system_;
};

}  // namespace

std::string output_of(const std::string& script) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(("exec 2>/dev/null; " + script).c_str(), "re"), pclose);
  std::string text;
  for (char part[4096]; pipe && fgets(part, sizeof part, pipe.get());) text += part;
  return text;
}

bool Gid::is_link_local() const { return address[0] == 0xfe && (address[1] & 0xc0) == 0x80; }

bool Gid::is_ipv4() const {
  return std::all_of(address.begin(), address.begin() + 10, [](std::uint8_t byte) { return byte == 0; }) &&
         address[10] == 0xff && address[11] == 0xff;
}

bool Gid::is_ipv4_link_local() const { return is_ipv4() && address[12] == 169 && address[13] == 254; }

std::string Gid::text() const {
  char text[INET6_ADDRSTRLEN];
  if (is_ipv4())
    inet_ntop(AF_INET, &address[12], text, sizeof text);
  else
    inet_ntop(AF_INET6, address.data(), text, sizeof text);
  return text;
}

const NetDevice* System::find_net_device(const std::string& name) const {
  const auto found = std::ranges::find(net_devices, name, &NetDevice::name);
  return found == net_devices.end() ? nullptr : &*found;
}

bool System::may_have_rdma() const {
  return is_incomplete || std::ranges::any_of(devices, [](const Device& device) {
           return std::ranges::any_of(device.ports,
                                      [](const Port& port) { return port.is_active() || port.state.empty(); });
         });
}

System read_system(const fs::path& root) {
  System system;
  system.root = root;
  std::error_code error;
  if (!fs::is_directory(root, error))
    throw multinode::UsageError("--sysfs: " + shown_path(root) + " is not a folder: give one laid out like /sys");
  Reader reader(system);
  reader.devices();
  reader.net_devices();
  reader.gpus();
  if (fs::canonical(root, error) == "/sys") {
    const auto addresses = multinode::addresses_by_interface();
    for (NetDevice& net : system.net_devices)
      if (const auto found = addresses.find(net.name); found != addresses.end()) net.addresses = found->second;
    add_policy_routes(system);
  }
  return system;
}

std::string note_of_nvlink(const fs::path& sysfs) {
  if (multinode::names_in(machine_of(sysfs) / "dev/nvidia-caps-imex-channels").empty()) return "";
  return "note: NVLink reaches other nodes too (IMEX channels; NCCL_MNNVL_ENABLE): no counter of a card shows what "
         "goes that way\n";
}

std::string shown_path(const fs::path& path) {
  std::string line = path.string();
  for (char& c : line)
    if (!is_plain({&c, 1})) c = '?';
  return line;
}

fs::path machine_of(const fs::path& sysfs) {
  const fs::path root = sysfs.has_filename() ? sysfs : sysfs.parent_path();
  return root.filename() == "sys" ? root.parent_path() : fs::path();
}

std::set<std::string> net_devices_of(const Device& device, const Port& port) {
  std::set<std::string> names;
  for (const Gid& gid : port.gids)
    if (!gid.net_device.empty()) names.insert(gid.net_device);
  if (names.empty()) names.insert(device.net_devices.begin(), device.net_devices.end());
  return names;
}

std::optional<int> rdma_mtu(const System& system, const Device& device, const Port& port) {
  if (port.link_layer != LinkLayer::ethernet) return {};
  for (const std::string& name : net_devices_of(device, port))
    if (const NetDevice* const net = system.find_net_device(name); net && net->mtu > 0) {
      int mtu = 256;
      while (mtu < 4096 && mtu * 2 + 96 <= net->mtu) mtu *= 2;
      return mtu;
    }
  return {};
}

}  // namespace rdma
