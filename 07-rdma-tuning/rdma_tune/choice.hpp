// choice.hpp: which GID of which port is right for RDMA, and why not the others.
#pragma once

#include "system.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace rdma {

// How many leading bits of two addresses are the same.
int common_bits(const std::array<std::uint8_t, 16>& a, const std::array<std::uint8_t, 16>& b);

// A network, as "10.0.0.0/16" or "fd00::/8".
struct Subnet {
  std::array<std::uint8_t, 16> address{};  // an IPv4 one as ::ffff:a.b.c.d
  int bits = 0;                            // of these 16 bytes: 96 + 16 for an IPv4 /16

  static Subnet parse(const std::string& text);  // throws UsageError naming --subnet
  bool contains(const std::array<std::uint8_t, 16>& other) const;
  bool is_ipv4() const;
  void clear_host_bits();
  std::string text() const;
};

// The network of an address: with its interface's prefix, or that of a route. If neither is known, /24 (link-local:
// /16) or /64.
Subnet network_of(const System& system, const Gid& gid);

// Which networks and devices of a cluster jobs use, as its administrator wrote it.
struct Site {
  struct Rule {
    bool is_use;                    // else it leaves them out
    std::string name;               // of a network, or of devices: "10.1.0.0/16", "mlx5_bond_*"
    std::optional<Subnet> network;  // none: devices
    int line;
  };
  std::filesystem::path file = {};  // "": there is none
  std::vector<Rule> rules = {};
  std::optional<unsigned> pkey = {};  // of InfiniBand: 0x8012

  // Why a port of this device with this address is left out; "" if it is not.
  std::string objection(const std::string& device, const std::array<std::uint8_t, 16>& address) const;
  bool wants(const std::array<std::uint8_t, 16>& address) const;  // a network to use has it
  std::string text() const;                                       // "use 10.1.0.0/16, leave mlx5_1", or "no rules"
  std::string line() const { return "site file " + file.string() + ": " + text(); }
};

struct Wanted {
  std::optional<Subnet> subnet = {};      // --subnet; none: any
  std::vector<std::string> devices = {};  // --device, exact names; empty: all
  // What choose() tries where no port has anything better: IPv6, also addresses of VLANs, 169.254.0.0/16, and RoCE v1.
  bool ipv6 = false, vlan = false, link_local = false, roce_v1 = false;
  bool software = true;  // also devices without a card (rxe), which choose() leaves out where a card is usable
  Site site = {};        // its rules count only without --subnet and --device
};

struct GidVerdict {
  bool chosen = false;
  std::string reason;  // if chosen, why: "RoCE v2, IPv4"; else why not: "RoCE v1", "VLAN 100", "port is DOWN" ...
};

struct PortChoice {
  const Device* device = nullptr;
  const Port* port = nullptr;
  std::vector<GidVerdict> gids;  // as port->gids
  int chosen = -1;               // index in the GID table; -1: none
  bool usable = false;           // InfiniBand needs no GID
  std::string reason;            // why not usable
  std::string network = {};      // of the chosen GID: "10.0.0.0/24"; of InfiniBand its subnet prefix: "fe80::/64"
  bool by_site = false;          // the site file leaves it out
  std::string name() const { return device->name + " port " + std::to_string(port->number); }
  bool is_infiniband() const { return port->link_layer == LinkLayer::infiniband; }
  int pkey_index(unsigned pkey) const;  // in the port's table; -1: it is not in this partition
  const Gid* gid() const;               // the chosen one, or InfiniBand's first; null: none
};

// The smallest network that holds the networks of all chosen addresses, and so the other nodes' addresses.
Subnet covering(const std::vector<const PortChoice*>& ports);

struct Choice {
  Wanted wanted;
  std::vector<PortChoice> ports;
  std::vector<std::string> warnings;
  bool has_rdma() const;
  std::string why_no_rdma(const System& system) const;  // a line for people: why no port is usable, and what follows
};

// Takes IPv4; where no port has such an address IPv4 of a VLAN, else IPv6, link-local IPv4 or RoCE v1, with a warning.
// Throws UsageError for a device that is not there.
Choice choose(const System& system, const Wanted& wanted);

}  // namespace rdma
