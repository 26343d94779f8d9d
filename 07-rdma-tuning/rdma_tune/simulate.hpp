// simulate.hpp: which GID NCCL itself would take, by version and by its variables.
#pragma once

#include "choice.hpp"
#include "options.hpp"

#include <multinode/launch.hpp>

#include <optional>
#include <ostream>
#include <string>

namespace rdma {

// NCCL's variables about the GID. Throws UsageError for what is not a number where one belongs.
struct NcclSettings {
  std::optional<int> gid_index;       // NCCL_IB_GID_INDEX
  std::optional<int> roce_version;    // NCCL_IB_ROCE_VERSION_NUM
  std::optional<std::string> family;  // NCCL_IB_ADDR_FAMILY
  std::optional<Subnet> range;        // NCCL_IB_ADDR_RANGE

  static NcclSettings read(const multinode::Environment& environment);
};

struct Simulated {
  int index = -1;      // -1: NCCL fails
  std::string reason;  // how it came to that index, or why it fails
};
Simulated simulate_nccl(const Port& port, NcclVersion version, const NcclSettings& settings);

// rdma_tune simulate --nccl VERSION
int run_simulate(int argc, const char* const* argv);

}  // namespace rdma
