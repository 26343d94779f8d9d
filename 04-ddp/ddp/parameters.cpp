// SPDX-License-Identifier: Apache-2.0
#include "parameters.hpp"

#include "hooks.hpp"

#include <multinode/base/json.hpp>
#include <multinode/base/text.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <stdexcept>

namespace ddp {
namespace {

std::string described(const NamedBlock& parameter) {
  return "'" + parameter.name + "', " + multinode::join(parameter.shape, " x ") + " of " +
         std::string(name_of(parameter.block.type));
}

}  // namespace

void broadcast_parameters(multinode::World& world, multinode::Communicator& communicator,
                          std::span<const NamedBlock> parameters) {
  nlohmann::json descriptions = nlohmann::json::array();
  for (const NamedBlock& parameter : parameters) descriptions.push_back(described(parameter));
  // All of it is sent only if the ranks differ: it can be long.
  const std::string text = multinode::json_text(descriptions);
  const std::vector<std::string> hashes =
      world.gather("parameters of the model", std::to_string(std::hash<std::string>()(text)));
  if (std::any_of(hashes.begin(), hashes.end(), [&](const std::string& hash) { return hash != hashes[0]; })) {
    std::vector<nlohmann::json> all;
    for (const std::string& one : world.gather("parameters that differ", text))
      all.push_back(multinode::parse_json(one));
    for (std::size_t i = 0;; ++i) {
      std::map<std::string, std::vector<int>> ranks;
      for (int r = 0; r < world.size(); ++r) {
        const nlohmann::json& list = all[static_cast<std::size_t>(r)];
        ranks[i < list.size() ? list[i].get<std::string>() : "missing"].push_back(r);
      }
      if (ranks.size() == 1) continue;
      std::string message = "the ranks train different models: parameter " + std::to_string(i) + " is ";
      for (auto at = ranks.begin(); at != ranks.end(); ++at)
        message += (at == ranks.begin() ? "" : "; ") + at->first + " on " + multinode::rank_list(at->second);
      throw std::runtime_error(message);
    }
  }
  for (const NamedBlock& parameter : parameters) communicator.broadcast(parameter.block, 0);
}

std::uint64_t hash_of(std::span<const NamedBlock> parameters) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const NamedBlock& parameter : parameters)
    for (const std::byte byte : std::span(static_cast<const std::byte*>(parameter.block.data), parameter.block.bytes()))
      hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001b3u;
  return hash;
}

std::vector<std::string> hashes_of_ranks(multinode::World& world, std::span<const NamedBlock> parameters) {
  for (const auto& [name, shape, block] : parameters)
    if (block.type == multinode::DataType::float32 || block.type == multinode::DataType::float64)
      require_finite("'" + name + "' after the last step", block);
  return world.gather("parameters", fmt::format("{:016x}", hash_of(parameters)));
}

}  // namespace ddp
