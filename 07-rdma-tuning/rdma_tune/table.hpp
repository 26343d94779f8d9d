// table.hpp: rdma_tune's tables, exports and JSON.
#pragma once

#include "choice.hpp"
#include "exports.hpp"

#include <nlohmann/json_fwd.hpp>

#include <ostream>
#include <string>
#include <vector>

namespace rdma {

// Devices, ports and GIDs, each GID with "chosen" or why not.
void print_tables(std::ostream& out, const System& system, const Choice& choice);

// The whole System and Choice, one object; `rdma_tune --json FILE` writes it and `rdma_tune compare` reads it:
//   node       host name
//   root       the folder that was read
//   rdma       true if a port is usable
//   devices    [{name, firmware, board, node_type, pci, numa_node, virtual_function, net_devices: [name],
//               gpus: [pci], the nearest ones,
//               ports: [{port, link_layer: "Ethernet"|"InfiniBand"|"", state, phys_state, rate, gbit_per_second,
//                        active_mtu, max_mtu: bytes or null, slots, usable, reason, chosen: index or -1,
//                        gids: [{index, address, subnet, type: "IB"|"RoCE v1"|"RoCE v2"|"", net_device, chosen,
//                                reason}]}]}]
//               `subnet` is "192.168.77.0/24" where the net device's prefix is known, else "".
//   net_devices [{name, state, mtu, vlan: number or null, virtual, pci}]
//   gpus       [{pci, numa_node}]
//   exports    [{name, value, remark}], for NCCL of `version` and UCX, or for sockets
//   perftest   its arguments
//   warnings, problems  [line]
nlohmann::json to_json(const System& system, const Choice& choice, NcclVersion version = {});

// For a shell's eval.
void print_exports(std::ostream& out, const std::vector<Export>& exports);

// 'a b'\''c', which every POSIX shell reads as one word.
std::string shell_quoted(const std::string& text);

// rdma_tune [table] [--export]
int run_table(int argc, const char* const* argv);

}  // namespace rdma
