// exports.hpp: the variables for the chosen ports and GIDs.
#pragma once

#include "choice.hpp"
#include "nccl_gid.hpp"

#include <string>
#include <vector>

namespace rdma {

// Environment variables for NCCL of `version` and for UCX.
// - Without a usable port: nothing where there may be RDMA, which NCCL may find; else the interface and threads of the
//   sockets.
// - With RDMA: NCCL_IB_HCA if NCCL would use other ports; the index if all ports share one. If they do not, a rule
//   where NCCL needs one (address family, RoCE version, range), and for NCCL before 2.21 only the ports that share an
//   index. UCX has no rule: ports and an index.
// - With --subnet also the interface of that network, for sockets. Throws UsageError if there is none.
struct Export {
  std::string name, value;
  std::string remark = "";  // what these settings lack
};
std::vector<Export> exports(const System& system, const Choice& choice, NcclVersion version);

// The variables that make NCCL and UCX use sockets, also on a machine with RDMA.
std::vector<Export> socket_exports(const System& system, const Choice& choice);

bool shares_index(const Choice& choice);  // all usable ports are RoCE and have the same index

// Empty slots before the chosen GID: in a pod sysfs hides GIDs there at which NCCL 2.21 to 2.26.1 fails.
bool may_hide_gids(const PortChoice& port);

// The chosen ports on which NCCL would take another GID or fail, and the other ports that it would use; none if it uses
// exactly what was chosen.
std::vector<const PortChoice*> where_nccl_differs(const System& system, const Choice& choice, NcclVersion version,
                                                  const multinode::Environment& variables);

// In plain words: the variables that make NCCL differ from the choice, and what exec would set; "" for none.
std::string conflicting_variables(const System& system, const Choice& choice, NcclVersion version,
                                  const multinode::Environment& variables);

}  // namespace rdma
