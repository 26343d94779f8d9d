// exports.hpp: the variables for the chosen ports and GIDs.
#pragma once

#include "choice.hpp"
#include "nccl_gid.hpp"

#include <string>
#include <vector>

namespace rdma {

// Environment variables for NCCL of `version` and for UCX.
// - With EFA and no RDMA port: nothing, because the plug-in aws-ofi-nccl needs no settings.
// - Without RDMA: NCCL_IB_DISABLE=1, and the interface and threads of the sockets.
// - With RDMA: nothing for NCCL where it uses the chosen ports and GIDs without settings. Else NCCL_IB_HCA if it
//   would use other ports, and for GIDs a rule: address family, RoCE version, range. An index (`by_index`, NCCL before
//   2.21, or where the rule cannot express the choice) needs the same one on all ports. UCX has no rule: ports and an
//   index.
struct Export {
  std::string name, value;
  std::string remark = "";  // what these settings lack
};
std::vector<Export> exports(const System& system, const Choice& choice, NcclVersion version, bool by_index = false);

// The variables for sockets, also for a machine with RDMA.
std::vector<Export> socket_exports(const System& system, const Choice& choice);

// The chosen ports on which NCCL would take another GID or fail, and the other ports that it would use; none if it uses
// exactly what was chosen.
std::vector<const PortChoice*> where_nccl_differs(const System& system, const Choice& choice, NcclVersion version,
                                                  const multinode::Environment& variables);

// In plain words: the variables that make NCCL differ from the choice; "" for none that are set.
std::string conflicting_variables(const System& system, const Choice& choice, NcclVersion version,
                                  const multinode::Environment& variables);

}  // namespace rdma
