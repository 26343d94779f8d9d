// fatbin.hpp: the PTX in the fat binary that nvcc puts into a program.
#pragma once

#include <string>

namespace emulated_gpu::ptx {

struct Images {
  std::string text;      // the PTX; empty if none is usable
  std::string contents;  // what there is: "machine code for sm_80, PTX for compute_100"
  std::string why;       // why some of it is unusable
};

// The best PTX for compute capability `wanted`, given the wrapper that __cudaRegisterFatBinary gets.
[[gnu::visibility("default")]] Images find_images(const void* wrapper, unsigned wanted);

}  // namespace emulated_gpu::ptx
