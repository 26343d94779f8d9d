// block.hpp: memory that takes part in an operation, and its type.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <multinode/communicator/data_type.hpp>

#include <cstddef>
#include <span>

namespace multinode {

// A block of elements that the caller owns: host memory for mpi and gloo, device memory for nccl.
struct Block {
  void* data = nullptr;
  std::size_t count = 0;  // elements
  DataType type = DataType::float32;

  Block() = default;
  Block(void* d, std::size_t n, DataType t) : data(d), count(n), type(t) {}
  template <class T, std::size_t Extent>
  Block(std::span<T, Extent> s) : data(s.data()), count(s.size()), type(data_type_of<T>()) {}
  std::size_t bytes() const { return count * size_of(type); }
};

}  // namespace multinode
