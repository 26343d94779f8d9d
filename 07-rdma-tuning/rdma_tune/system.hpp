// system.hpp: the RDMA devices, network interfaces of a machine, as sysfs shows them.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace rdma {

enum class LinkLayer { ethernet, infiniband, unknown };
enum class GidType { infiniband, roce_v1, roce_v2, unknown };

// An entry of a port's GID table. Empty slots are left out.
struct Gid {
  int index = 0;
  std::array<std::uint8_t, 16> address{};
  GidType type = GidType::unknown;
  std::string net_device = "";  // "": unknown
  std::string unreadable = "";  // why its type or net device cannot be read: "type: Invalid argument"; "": both can
  int type_error = 0;           // errno of reading its type

  bool is_link_local() const;       // fe80::/10
  bool is_ipv4() const;             // ::ffff:a.b.c.d
  bool is_ipv4_link_local() const;  // 169.254.0.0/16
  std::string text() const;         // "fe80::1", or "192.168.77.1" for an IPv4 address
};

struct Port {
  int number = 1;
  LinkLayer link_layer = LinkLayer::unknown;
  std::string state;       // "ACTIVE", "DOWN"; "": unreadable
  std::string phys_state;  // "LinkUp"
  double gbit_per_second = 0;
  std::string rate;  // as in sysfs: "100 Gb/sec (4X EDR)"
  std::vector<Gid> gids;
  int slots = 0;                          // of the GID table
  std::map<int, std::string> pkeys = {};  // of InfiniBand, by index: "0xffff"
  bool is_active() const { return state == "ACTIVE"; }
};

struct Device {
  std::string name;  // mlx5_0
  std::string firmware, board, node_type;
  std::string pci;                   // 0000:3b:00.0; "" for a virtual device
  int numa_node = -1;                // -1: unknown
  std::filesystem::path place = {};  // of its folder, below sysfs/devices: pci0000:3a/0000:3a:00.0/0000:3b:00.0
  bool is_virtual_function = false;
  std::vector<std::string> net_devices;
  std::vector<Port> ports;
  std::string missing_node = {};  // "/dev/infiniband/uverbs0" that is not here, as in a pod with other devices
  std::string vendor = {};        // "0x15b3"
  bool is_iwarp() const { return node_type == "RNIC"; }
  // Amazon's Elastic Fabric Adapter: no InfiniBand and no RoCE. NCCL uses it by the plug-in aws-ofi-nccl.
  bool is_efa() const { return node_type == "unspecified" || name.starts_with("efa_"); }
};

struct NetDevice {
  std::string name;
  bool is_up = false;
  bool is_loopback = false;
  bool is_infiniband = false;  // IPoIB
  bool has_master = false;     // part of a bond or a bridge
  bool is_bond = false;
  bool has_default_route = false;
  int mtu = 0;
  std::optional<int> vlan = {};                                           // its number; 0: unknown
  bool is_slingshot() const { return name.starts_with("hsn") && !vlan; }  // HPE's, without RDMA devices in sysfs
  bool is_virtual = false;                                                // no hardware below it: lo, a bridge, a veth
  std::vector<std::string> addresses = {};  // "192.168.77.1/24"; sysfs lacks them: empty unless the root is /sys
  std::vector<std::string> routes = {};     // networks that it leads to: "10.0.0.0/16", "0.0.0.0/0"
};

struct System {
  std::filesystem::path root;  // "/sys", or a tree of the same form
  std::vector<Device> devices;
  std::vector<NetDevice> net_devices;
  bool has_gpu = false;                          // of NVIDIA
  std::vector<std::filesystem::path> gpus = {};  // the places of all, also of AMD and Intel
  std::vector<std::string> problems;             // one line per file that could not be understood: "PATH: why"
  bool is_incomplete = false;                    // a folder below class/infiniband cannot be read

  bool may_have_rdma() const;  // a port is ACTIVE, or sysfs does not show whether one is
  const NetDevice* find_net_device(const std::string& name) const;  // null: no such net device
};

// Reports bad files in `problems`. Throws multinode::UsageError if `root` is not a folder. A machine without RDMA has
// no devices.
System read_system(const std::filesystem::path& root = "/sys");

// What a script for sh writes to its standard output.
std::string output_of(const std::string& script);

// A line for people where the machine has IMEX channels, as in a GB200 NVL72; else "".
std::string note_of_nvlink(const std::filesystem::path& sysfs);

// On one line, with ? for control characters.
std::string shown_path(const std::filesystem::path& path);

// The folder that has `sysfs` as its sys: "/" of "/sys". Empty if it has another name.
std::filesystem::path machine_of(const std::filesystem::path& sysfs);

// The net devices that a port's GIDs name, or the device's own.
std::set<std::string> net_devices_of(const Device& device, const Port& port);

// Bytes. On RoCE the kernel takes the largest RDMA MTU that fits into the net device's MTU less 96 bytes of headers;
// sysfs does not have it. Nothing on InfiniBand.
std::optional<int> rdma_mtu(const System& system, const Device& device, const Port& port);

}  // namespace rdma
