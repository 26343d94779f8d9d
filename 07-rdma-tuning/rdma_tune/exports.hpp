// exports.hpp: the variables for the chosen ports and GIDs.
#pragma once

#include "choice.hpp"
#include "nccl_gid.hpp"

#include <string>
#include <vector>

namespace rdma {

// Environment variables for NCCL of `version` and for UCX: see reference.md. Throws UsageError if no interface is in
// --subnet.
struct Export {
  std::string name, value;
  std::string remark = "";  // what these settings lack
};
std::vector<Export> exports(const System& system, const Choice& choice, NcclVersion version);

// The variables that make NCCL and UCX use sockets, also on a machine with RDMA.
std::vector<Export> socket_exports(const System& system, const Choice& choice);

bool shares_index(const Choice& choice);  // all usable ports are RoCE and have the same index

}  // namespace rdma
