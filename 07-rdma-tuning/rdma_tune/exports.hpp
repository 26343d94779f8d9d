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
// - With RDMA: NCCL_IB_HCA if there are other ports that NCCL may use; the index if all ports share one, else a rule
//   (address family, RoCE version, range). NCCL before 2.21 has no rule: only the ports that share an index. UCX has
//   none either: ports and an index.
// - With --subnet also the interface of that network, for sockets. Throws UsageError if there is none.
struct Export {
  std::string name, value;
  std::string remark = "";  // what these settings lack
};
std::vector<Export> exports(const System& system, const Choice& choice, NcclVersion version);

// The variables that make NCCL and UCX use sockets, also on a machine with RDMA.
std::vector<Export> socket_exports(const System& system, const Choice& choice);

bool shares_index(const Choice& choice);  // all usable ports are RoCE and have the same index

}  // namespace rdma
