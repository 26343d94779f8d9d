// counters.hpp: how much went over RDMA and over the network interfaces, as sysfs counts it.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace rdma {

enum class CounterUnit { bytes, packets };

// Of one port of an RDMA device; counters.cpp has the drivers' counters. On Ethernet mlx5 counts RoCE alone there; on
// InfiniBand the port's IPoIB is in it too.
struct PortCount {
  std::string device;
  int port = 1;
  bool active = false;                   // the port's state
  std::vector<std::string> net_devices;  // whose bytes and the port's have to do with one another:
  bool software = false;                 // rxe: its packets are UDP of net_devices, and counted there as well
  bool infiniband = false;               // the link layer: IPoIB of net_devices is counted here as well
  CounterUnit unit = CounterUnit::bytes;
  std::string source = "";  // which counters: "counters/port_xmit_data x 4"; "": none that could be read
  std::uint64_t sent = 0, received = 0;
  bool at_limit = false;  // a 32-bit counter that stays at its largest value
  std::string key() const { return device + ":" + std::to_string(port); }
};

struct NetCount {
  std::string name;
  int mtu = 1500;
  std::uint64_t sent_bytes = 0, received_bytes = 0;
};

struct Counters {
  std::chrono::steady_clock::time_point when;
  std::vector<PortCount> ports;        // by name
  std::vector<NetCount> net_devices;   // by name; without those whose traffic another one counts: see below
  std::vector<std::string> problems;   // "PATH: why"
  std::chrono::milliseconds delay{0};  // a counter may be as old as this when it is read
};

// Bonds, bridges, VLANs and macvlans stand on another interface, which counts the same bytes; so does the bridge
// that a veth is a member of. They are left out, and so is loopback. Throws multinode::UsageError where `root` is not a
// folder.
Counters read_counters(const std::filesystem::path& root);

}  // namespace rdma
