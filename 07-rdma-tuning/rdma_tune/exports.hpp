// exports.hpp: what to export for the chosen ports and GIDs.
#pragma once

#include "choice.hpp"
#include "nccl_gid.hpp"

#include <string>
#include <vector>

namespace rdma {

// Environment variables for NCCL of `version` and for UCX, in the order of printing.
// - With EFA and no RDMA port: nothing, because the plug-in aws-ofi-nccl needs no settings.
// - Without RDMA: NCCL_IB_DISABLE=1, and the interface and threads of the sockets.
// - With RDMA: nothing for NCCL where it uses the chosen ports and GIDs without settings. Else NCCL_IB_HCA if it
//   would use other ports, and for GIDs a rule: address family, RoCE version, range. An index (`by_index`, NCCL before
//   2.21, or where the rule cannot express the choice) needs the same one on all ports. UCX has no rule: ports and an
//   index.
struct Export {
  std::string name, value, remark;  // remark: "" if none
};
std::vector<Export> exports(const System& system, const Choice& choice, NcclVersion version, bool by_index = false);

// The variables for sockets, also for a machine with RDMA.
std::vector<Export> socket_exports(const System& system, const Choice& choice);

// perftest's arguments for the first usable port: "-d mlx5_0 -i 1 -x 3".
std::string perftest_arguments(const Choice& choice);

}  // namespace rdma
