// gpu.hpp: the memory of GPUs, and the copies to, from and in it.
#pragma once

#include "finding.hpp"
#include "limits.hpp"

#include <cstdint>
#include <optional>
#include <span>

namespace node_check {

// Pattern `round` of the words from number `first` on: every word of a round is another one, and a second round turns
// every bit of the first.
void fill(std::span<std::uint64_t> words, std::uint64_t first, int round);

// What is not as fill() makes it: how many words, the first of them, and what it is.
struct Wrong {
  std::uint64_t count = 0, at = 0, expected = 0, found = 0;
};
Wrong compare(std::span<const std::uint64_t> words, std::uint64_t first, int round);

// "word 17 (byte 0x88) is 0x..., not 0x...: bit 3"
std::string to_text(const Wrong& wrong);

// Those that CUDA sees; nothing: this is built without CUDA.
std::optional<Gpus> gpus_of_cuda();

// Of each of these devices: as much of its free memory as `seconds` allow is filled from the host, read back, and
// compared; twice. Then the rates of copies, where a GPU makes them. `corrupt`: one bit is turned on the way back.
Findings look_at_gpus(const std::vector<int>& devices, double seconds, bool corrupt);

}  // namespace node_check
