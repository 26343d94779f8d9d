// table.hpp: rdma_tune's tables and JSON.
#pragma once

#include "choice.hpp"
#include "nccl_gid.hpp"

#include <nlohmann/json_fwd.hpp>

#include <ostream>

namespace rdma {

// Devices, ports and GIDs, each GID with "chosen" or why not; of each port also what NCCL takes with these variables.
void print_tables(std::ostream& out, const System& system, const Choice& choice, NcclVersion version,
                  const multinode::Environment& variables);

// One object; `rdma_tune --json FILE` writes it and `rdma_tune compare` reads it:
//   node       host name
//   root       the folder that was read
//   rdma       true if a port is usable
//   ports      [{device, port, link_layer: "Ethernet"|"InfiniBand"|"", state, rate, gbit_per_second,
//                mtu: of RDMA, in bytes, or null, usable, reason: why not, gid_index: -1: none, gid: its address,
//                net_device: of that GID, network: "192.168.77.0/24", assumed: true where sysfs lacks the prefix,
//                routes: the networks to which that interface leads; of InfiniBand subnet_prefix: "fe80::/64", pkeys:
//                "0:0xffff 1:0x8012"}]
//   site       the rules of the site file, if there is one: "use 10.1.0.0/16, leave mlx5_1"
//   warnings, problems  [line]
nlohmann::json to_json(const System& system, const Choice& choice);

}  // namespace rdma
