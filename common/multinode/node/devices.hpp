// devices.hpp: the RDMA ports, network interfaces and GPUs of a machine, as the kernel shows them, and the
// counters of trouble that the ports have. Not the GID tables, which chapter 07 reads slot by slot: they cost thousands
// of system calls.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <multinode/net/address.hpp>

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <map>
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

struct Interface {
  std::string name;
  std::optional<std::string> state;          // "up"
  std::optional<long long> speed_mbit, mtu;  // nullopt: the driver does not know
  std::vector<std::string> addresses;        // "10.0.0.3/24"
};

// The network interfaces that sysfs shows or that have addresses, by name.
std::vector<Interface> interfaces(const std::filesystem::path& sysfs,
                                  std::map<std::string, std::vector<std::string>> addresses = addresses_by_interface());

struct Gpu {
  std::string pci, name = "unknown", uuid = "unknown";
  std::optional<std::uint64_t> memory_bytes = {};  // the driver does not tell
};
struct Gpus {
  std::string seen_by;  // CUDA (visible_gpus() in communicator/device.hpp), or NVIDIA's driver
  std::vector<Gpu> devices = {};
  std::string none_because = seen_by + " sees no GPU";
  bool broken = false;  // there are GPUs, which cannot be used for that reason
};

// Those that NVIDIA's driver lists in `root`/proc/driver/nvidia/gpus: for programs that must start where CUDA is
// broken.
Gpus gpus_of_driver(const std::filesystem::path& root);

// The version of NVIDIA's kernel driver, from `root`/proc/driver/nvidia/version. nullopt: it is not loaded.
std::optional<std::string> nvidia_driver(const std::filesystem::path& root);

}  // namespace multinode
