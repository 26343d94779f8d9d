// parameters.hpp: what the ranks' models consist of, and how they come to be the same.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <multinode/communicator.hpp>
#include <multinode/world.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ddp {

// A parameter of a model, or a part of an optimizer's state.
struct NamedBlock {
  std::string name;                // "layer 1 weights"
  std::vector<std::size_t> shape;  // its product is block.count
  multinode::Block block;          // belongs to the model
};

// Where NCCL and cuBLAS read and write in the largest pieces: blocks of a GPU's memory begin at multiples of so many
// bytes.
inline constexpr std::size_t device_alignment = 256;

// The elements that a block takes up so that the next one begins at a multiple of `alignment` bytes.
constexpr std::size_t padded(std::size_t count, std::size_t element_bytes, std::size_t alignment) {
  const std::size_t step = alignment > element_bytes ? alignment / element_bytes : 1;
  return (count + step - 1) / step * step;
}

// Gives every rank rank 0's elements. Collective, called by all ranks. Throws std::runtime_error, on all of them, that
// names the first parameter whose name, shape or type is not the same everywhere, and the ranks.
void broadcast_parameters(multinode::World& world, multinode::Communicator& communicator,
                          std::span<const NamedBlock> parameters);

// FNV-1a of the bits of `parameters`, which are host memory.
std::uint64_t hash_of(std::span<const NamedBlock> parameters);

// After a training: every rank's 16 hexadecimal digits, in order of rank, on every rank: hash_of(parameters).
// Collective, called by all ranks. Throws std::runtime_error for a number that is not finite.
std::vector<std::string> hashes_of_ranks(multinode::World& world, std::span<const NamedBlock> parameters);

}  // namespace ddp
