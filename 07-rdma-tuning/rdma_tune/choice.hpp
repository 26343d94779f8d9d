// choice.hpp: which GID of which port is right for RDMA, and why not the others; what to export for it.
#pragma once

#include "nccl_gid.hpp"
#include "system.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace rdma {

enum class Family { automatic, ipv4, ipv6 };  // automatic: IPv4, or IPv6 where no port has an IPv4 address

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

struct Wanted {
  Family family = Family::automatic;      // --family
  std::optional<Subnet> subnet = {};      // --subnet; none: any
  std::vector<std::string> devices = {};  // --device, exact names; empty: all
  bool vlan = false;                      // --vlan: GIDs of VLAN interfaces too
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
};

struct Choice {
  Wanted wanted;  // its family is never automatic
  std::vector<PortChoice> ports;
  std::vector<std::string> warnings;
  bool has_rdma() const;
};

Choice choose(const System& system, const Wanted& wanted);

// Environment variables for NCCL of `version` and for UCX, in the order of printing.
// - Without RDMA: NCCL_IB_DISABLE=1, and the interface and threads of the sockets.
// - With RDMA: nothing for NCCL where it uses the chosen ports and GIDs by itself. Else NCCL_IB_HCA if it would use
//   other ports, and for GIDs a rule: address family, RoCE version, range. An index (`by_index`, NCCL before 2.21, or
//   where the rule cannot express the choice) needs the same one on all ports. UCX has no rule: ports and an index.
struct Export {
  std::string name, value, remark;  // remark: "" if none
};
std::vector<Export> exports(const System& system, const Choice& choice, NcclVersion version, bool by_index = false);

// The variables for sockets, also for a machine with RDMA.
std::vector<Export> socket_exports(const System& system, const Choice& choice);

// perftest's arguments for the first usable port: "-d mlx5_0 -i 1 -x 3".
std::string perftest_arguments(const Choice& choice);

}  // namespace rdma
