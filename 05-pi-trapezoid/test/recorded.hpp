// recorded.hpp: what g++, clang++, every instruction set and the GPU must give.
#pragma once

#include <cstdint>

struct Recorded {
  std::int64_t n;
  double answer;
  std::uint64_t hash;  // of all blocks' bits
};
constexpr Recorded recorded[] = {
    {10, 0x1.91e918451bbd1p+1, 0xd4be11c8469cc7a0},          {1'000, 0x1.921fb3de58d98p+1, 0x1a29386ac20a2539},
    {1'000'000, 0x1.921fb54442ba1p+1, 0x88e46c3a2788adf8},   {10'000'000, 0x1.921fb54442d15p+1, 0xa5d441b79ccbf4c8},
    {100'000'000, 0x1.921fb54442d19p+1, 0x2af99203c77480ed},
};
