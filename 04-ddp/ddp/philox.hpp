// philox.hpp: random numbers that are a function of what they are for, and not of how many were drawn before: the same
// on every rank, for every number of ranks, on CPU and GPU.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace ddp {

using PhiloxWords = std::array<std::uint32_t, 4>;

// Second word of the counter: what the numbers are for.
enum PhiloxStream : std::uint32_t {
  stream_dropout = 0,          // + layer
  stream_initial = 0x1000000,  // + parameter
  stream_sampler = 0x2000000,
  stream_augmentation = 0x3000000,
  stream_synthetic = 0x4000000,  // + what is drawn
};

// Philox 4x32 with 10 rounds: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
constexpr PhiloxWords philox(PhiloxWords counter, std::uint64_t key) {
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<std::uint32_t>(p1),
               static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return counter;
}

}  // namespace ddp
