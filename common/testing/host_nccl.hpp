// host_nccl.hpp: runs programs on common/host-nccl, the stand-in for CUDA and NCCL, if this build has it (HOST_NCCL).
#pragma once

#ifdef HOST_NCCL
#include <map>
#include <string>

namespace multinode::testing {

// The environment for Process and run() with which a program with NCCL uses `devices` stand-in GPUs.
inline std::map<std::string, std::string> on_host_nccl(int devices = 4) {
  return {{"LD_LIBRARY_PATH", HOST_NCCL}, {"HOST_NCCL_DEVICES", std::to_string(devices)}};
}

}  // namespace multinode::testing
#endif
