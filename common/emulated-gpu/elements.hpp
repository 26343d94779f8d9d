// elements.hpp: NCCL's data types, and the arithmetic that the hub does with them.
#pragma once

#include <multinode/communicator/data_type.hpp>

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace emulated_gpu {

std::size_t size_of(ncclDataType_t type);  // bytes per element; 0: there is no such type
std::string name_of(ncclDataType_t type);

// A number of any type, in its first bytes.
using Scalar = std::uint64_t;

// As the kernels of NCCL compute: integers wrap around, 16-bit floats are rounded once, 8-bit floats are computed as
// halves and saturate.
void combine(ncclDataType_t type, multinode::Reduction reduction, void* inout, const void* in, std::size_t count);
void multiply(ncclDataType_t type, void* data, std::size_t count, Scalar factor);

// The two steps of ncclAvg: floats are multiplied by 1 / ranks before the sum, integers are divided after it.
bool averages_by_factor(ncclDataType_t type);
Scalar one_over(ncclDataType_t type, int ranks);
void divide(ncclDataType_t type, void* data, std::size_t count, int ranks);

}  // namespace emulated_gpu
