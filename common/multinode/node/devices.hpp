// devices.hpp: the RDMA ports and PCI devices of a machine, as sysfs shows them, and the counters of trouble that the
// ports have. Not the GID tables, which chapter 07 reads slot by slot: they cost thousands of system calls.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

namespace multinode {

struct RdmaPort {
  std::string device, number;                          // "mlx5_0", "1"
  std::filesystem::path folder;                        // class/infiniband/mlx5_0/ports/1
  std::optional<std::string> state, rate, link_layer;  // "ACTIVE", "400 Gb/sec (4X NDR)", "Ethernet"

  std::string name() const { return device + "/" + number; }
  bool is_active() const { return state && state->starts_with("ACTIVE"); }  // or "ACTIVE_DEFER"
};

// By device and port; empty if the machine has none. `sysfs` is /sys, or a tree of the same form.
std::vector<RdmaPort> rdma_ports(const std::filesystem::path& sysfs);

// What a counter of a port tells when it grows: the link itself is broken; something on it or behind it is wrong;
// packets were lost and sent again; a switch or a peer asked to send slower.
enum class Trouble { link, error, loss, congestion };

struct TroubleCount {
  std::string name;  // "symbol_error"
  std::uint64_t value;
};

// The counters of these kinds that the driver has, in a fixed order.
std::vector<TroubleCount> trouble_counts(const std::filesystem::path& port_folder,
                                         std::initializer_list<Trouble> kinds);

struct PciDevice {
  std::string address;           // "0000:3b:00.0"
  std::filesystem::path folder;  // bus/pci/devices/0000:3b:00.0
  std::string kind, vendor;      // "0x0302", "0x10de"

  bool is_display() const { return kind == "0x0300" || kind == "0x0302"; }
  // Ethernet, InfiniBand, Omni-Path, and Mellanox's cards of before 2015 that are both.
  bool is_network() const {
    return kind == "0x0200" || is_infiniband() || kind == "0x0208" || kind == "0x0c06" ||
           (kind == "0x0280" && vendor == "0x15b3");
  }
  bool is_infiniband() const { return kind == "0x0207"; }
};

// Without virtual functions, which stand for a part of another device.
std::vector<PciDevice> pci_devices(const std::filesystem::path& sysfs);

}  // namespace multinode
