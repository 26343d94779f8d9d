// simulate.hpp: what NCCL would use of this machine, compared with the choice of rdma_tune.
#pragma once

#include "choice.hpp"
#include "nccl_gid.hpp"

#include <multinode/launch.hpp>

#include <string>
#include <vector>

namespace rdma {

struct Comparison {
  struct Row {
    const PortChoice* port;
    const NcclGid* nccl;  // null: NCCL does not use this port
    std::string verdict;  // "the same", or "WRONG: ..."
    bool same;
  };
  NcclNode node;
  std::vector<Row> rows;  // ports that either of them uses
  bool same = true;       // all rows
};
Comparison compare_with_nccl(const System& system, const Choice& choice, NcclVersion version,
                             const multinode::Environment& variables);

// In plain words, a line each: the variables that make NCCL differ from rdma_tune; "" for none that are set.
std::string conflicting_variables(const System& system, const Choice& choice, NcclVersion version,
                                  const multinode::Environment& variables);

// rdma_tune simulate --nccl VERSION
int run_simulate(int argc, const char* const* argv);

}  // namespace rdma
