// parameters.hpp: what the ranks' models consist of, and how they come to be the same.
#pragma once

#include <multinode/communicator.hpp>
#include <multinode/world.hpp>

#include <cstddef>
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

// Gives every rank rank 0's elements. Collective, called by all ranks. Throws std::runtime_error, on all of them, that
// names the first parameter whose name, shape or type is not the same everywhere, and the ranks.
void broadcast_parameters(multinode::World& world, multinode::Communicator& communicator,
                          std::span<const NamedBlock> parameters);

// Every rank's 16 hexadecimal digits, in order of rank, on every rank: FNV-1a of the bits of `parameters`, which are
// host memory. Collective, called by all ranks.
std::vector<std::string> hashes_of_ranks(multinode::World& world, std::span<const NamedBlock> parameters);

}  // namespace ddp
