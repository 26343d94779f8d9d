#include "unpack.hpp"

#include <fmt/core.h>

#include <arpa/inet.h>

#include <fstream>
#include <sstream>
#include <stdexcept>

namespace rdma {

namespace fs = std::filesystem;

namespace {

std::string unescaped(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      result += text[i];
      continue;
    }
    const char c = text[++i];
    if (c == 'x' && i + 2 < text.size()) {
      result += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
      i += 2;
    } else {
      result += c == 'n' ? '\n' : c == 't' ? '\t' : c;
    }
  }
  return result;
}

void make_room(const fs::path& path) {
  fs::create_directories(path.parent_path());
  if (fs::symlink_status(path).type() != fs::file_type::not_found) fs::remove_all(path);
}

void replace(const fs::path& path, const std::string& contents) {
  make_room(path);
  std::ofstream file(path, std::ios::binary);
  file << contents;
  if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
}

// A link to the folder that it is in.
void fail_to_read(const fs::path& path) {
  make_room(path);
  fs::create_symlink(".", path);
}

constexpr const char* empty_slot = "0000:0000:0000:0000:0000:0000:0000:0000\n";

std::string lines_of(const std::string& tree) {
  fs::path path = fs::path(RDMA_TREES) / (tree + ".txt");
  if (!fs::exists(path)) path = fs::path(RDMA_FIXTURES) / (tree + ".txt");
  if (!fs::exists(path)) throw std::runtime_error("no tree named " + tree);
  return (std::ostringstream() << std::ifstream(path).rdbuf()).str();
}

Address parsed(const std::string& text) {
  Address address{};
  const bool is_ipv4 = text.find(':') == text.npos;
  if (inet_pton(AF_INET6, ((is_ipv4 ? "::ffff:" : "") + text).c_str(), address.data()) != 1)
    throw std::runtime_error("not an address: " + text);
  return address;
}

std::string pci_device(const std::string& place, const std::string& numa_node, const char* kind, const char* vendor) {
  return fmt::format(R"(
L /sys/bus/pci/devices/{address} -> ../../../devices/{place}
F 444 /sys/devices/{place}/numa_node = {numa_node}\n
F 444 /sys/devices/{place}/class = {kind}\n
F 444 /sys/devices/{place}/vendor = {vendor}\n
)",
                     fmt::arg("address", fs::path(place).filename().string()), fmt::arg("place", place),
                     fmt::arg("numa_node", numa_node), fmt::arg("kind", kind), fmt::arg("vendor", vendor));
}

std::string card(const std::string& place, const std::string& device, const std::string& link_layer,
                 const std::string& net_device, const std::string& slots, const std::string& rate) {
  const bool is_infiniband = link_layer == "InfiniBand";
  return fmt::format(R"(
L /sys/devices/{place}/infiniband/{device}/device -> ../../../{address}
L /sys/class/infiniband/{device} -> ../../devices/{place}/infiniband/{device}
F 444 /sys/class/infiniband/{device}/fw_ver = 28.39.1002\n
F 444 /sys/class/infiniband/{device}/board_id = MT_0000000838\n
F 444 /sys/class/infiniband/{device}/node_type = 1: CA\n
F 444 /sys/class/infiniband/{device}/ports/1/link_layer = {link_layer}\n
F 444 /sys/class/infiniband/{device}/ports/1/state = 4: ACTIVE\n
F 444 /sys/class/infiniband/{device}/ports/1/phys_state = 5: LinkUp\n
F 444 /sys/class/infiniband/{device}/ports/1/rate = {rate}\n
Z /sys/class/infiniband/{device}/ports/1 {slots}
L /sys/devices/{place}/net/{net_device}/device -> ../../../{address}
L /sys/class/net/{net_device} -> ../../devices/{place}/net/{net_device}
F 444 /sys/class/net/{net_device}/operstate = up\n
F 444 /sys/class/net/{net_device}/mtu = {mtu}\n
F 444 /sys/class/net/{net_device}/type = {type}\n
F 444 /sys/class/net/{net_device}/flags = 0x1003\n
)",
                     fmt::arg("place", place), fmt::arg("address", fs::path(place).filename().string()),
                     fmt::arg("device", device), fmt::arg("link_layer", link_layer), fmt::arg("rate", rate),
                     fmt::arg("slots", slots), fmt::arg("net_device", net_device),
                     fmt::arg("mtu", is_infiniband ? 2044 : 9000), fmt::arg("type", is_infiniband ? 32 : 1));
}

}  // namespace

std::string sysfs_gid(const Address& address) {
  std::string text;
  for (std::size_t i = 0; i < 16; i += 2)
    text += fmt::format("{}{:02x}{:02x}", i ? ":" : "", address[i], address[i + 1]);
  return text;
}

void unpack(const std::string& lines, const fs::path& folder) {
  std::istringstream stream(lines);
  for (std::string line; std::getline(stream, line);) {
    std::istringstream words(line);
    const auto word = [&] {
      std::string next;
      if (!(words >> next)) throw std::runtime_error("not a line of a tree: " + line);
      return next;
    };
    const auto path = [&] { return folder / fs::path(word()).relative_path(); };
    // What follows a separator and a blank, to the end of the line.
    const auto rest_after = [&](const std::string& separator) {
      if (word() != separator) throw std::runtime_error("not a line of a tree: " + line);
      std::string rest;
      std::getline(words.ignore(), rest);
      return rest;
    };
    std::string kind;
    if (!(words >> kind) || kind.starts_with('#')) continue;
    if (kind == "D") {
      fs::create_directories(path());
    } else if (kind == "L") {
      const fs::path link = path();
      make_room(link);
      fs::create_symlink(rest_after("->"), link);
    } else if (kind == "X") {
      fs::remove_all(path());
    } else if (kind == "F") {
      word();  // the mode
      const fs::path file = path();
      replace(file, unescaped(rest_after("=")));
    } else if (kind == "E") {
      word();
      fail_to_read(path());
    } else if (kind == "Z") {
      const fs::path port = path();
      for (int i = 0, count = std::stoi(word()); i < count; ++i) {
        replace(port / "gids" / std::to_string(i), empty_slot);
        fail_to_read(port / "gid_attrs/types" / std::to_string(i));
        fail_to_read(port / "gid_attrs/ndevs" / std::to_string(i));
      }
    } else if (kind == "G") {
      const fs::path port = path();
      const std::string index = word(), address = word(), type = word(), net_device = word();
      const auto attribute = [&](const char* name, const std::string& text) {
        const fs::path file = port / "gid_attrs" / name / index;
        text == "!" ? fail_to_read(file) : replace(file, text + "\n");
      };
      replace(port / "gids" / index, sysfs_gid(parsed(address)) + "\n");
      attribute("types", type == "!" ? type : type == "v2" ? "RoCE v2" : "IB/RoCE v1");
      attribute("ndevs", net_device);
    } else if (kind == "include") {
      unpack(lines_of(word()), folder);
    } else if (kind == "gpu") {
      const std::string place = word(), numa_node = word();
      unpack(pci_device(place, numa_node, "0x030200", "0x10de"), folder);
    } else if (kind == "card") {
      const std::string place = word(), numa_node = word(), device = word(), link_layer = word(), net_device = word(),
                        slots = word();
      std::string rate;
      std::getline(words.ignore(), rate);
      unpack(pci_device(place, numa_node, "0x020000", "0x15b3"), folder);
      unpack(card(place, device, link_layer, net_device, slots, rate), folder);
    } else if (kind == "addresses") {
      const std::string device = word(), net_device = word();
      int index = std::stoi(word());
      for (std::string address; words >> address;)
        for (const char* type : {"v1", "v2"})
          unpack(
              fmt::format("G /sys/class/infiniband/{}/ports/1 {} {} {} {}", device, index++, address, type, net_device),
              folder);
    } else if (line != "bonding_masters" && line != "lo") {  // s8-netns-shared: a list of its interfaces
      throw std::runtime_error("not a line of a tree: " + line);
    }
  }
}

}  // namespace rdma
