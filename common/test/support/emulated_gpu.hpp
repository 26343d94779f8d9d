// emulated_gpu.hpp: runs programs on tools/emulated-gpu, emulated CUDA and NCCL, if this build has it (EMULATED_GPU).
#pragma once

#ifdef EMULATED_GPU
#include <map>
#include <string>

namespace multinode::testing {

// The environment for Process and run() with which a program with NCCL uses `devices` emulated GPUs.
inline std::map<std::string, std::string> on_emulated_gpus(int devices = 4) {
  return {{"LD_LIBRARY_PATH", EMULATED_GPU}, {"EMULATED_GPUS", std::to_string(devices)}};
}

}  // namespace multinode::testing
#endif
