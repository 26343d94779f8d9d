// host_nccl.hpp: runs programs on common/host-nccl, the stand-in for CUDA and NCCL, where this build has it
// (HOST_NCCL).
#pragma once

#ifdef HOST_NCCL
#include <map>
#include <string>

namespace multinode::testing {

// For Process and run: what a program with NCCL needs to run on `devices` stand-ins of GPUs.
inline std::map<std::string, std::string> on_host_nccl(int devices = 4) {
  return {{"LD_LIBRARY_PATH", HOST_NCCL}, {"HOST_NCCL_DEVICES", std::to_string(devices)}};
}

}  // namespace multinode::testing
#endif
