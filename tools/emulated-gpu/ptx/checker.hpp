// checker.hpp: with EMULATED_GPU_CHECK=1, finds races on shared memory and reads of memory that was never written.
#pragma once

#include <span>

#include "interpreter.hpp"

namespace emulated_gpu::ptx {

enum class Access : u8 { read, write, atomic, exchange };
// What a write stores: `bytes` of lane l are at first + l * stride.
struct Stored {
  const void* first = nullptr;
  std::size_t stride = 0;
};

// Of one block. Threads are ordered by barriers (clocks of warps) and inside a warp by bar.warp.sync and other
// instructions with a member mask (clocks of lanes).
struct Checker {
  using Clock = u32;
  struct Event {
    u16 thread = 0xffff;  // none
    Clock warp = 0, lane = 0;
  };
  struct Cell {  // of one byte
    Event write, reads[2];
    u8 value = 0;  // that `write` stored
  };
  struct WarpClocks {
    Clock lane[warp_size] = {}, seen[warp_size][warp_size] = {};
  };

  explicit Checker(std::size_t shared_bytes, unsigned warps)
      : cells(shared_bytes), lanes(warps), barriers(warps, std::vector<Clock>(warps)), clock(warps) {}
  void restart();
  void access(const Warp& w, const Instruction& i, u32 mask, const u64* address, unsigned bytes, Access kind,
              Stored stored);
  // The lanes of `mask` have met.
  void meet(const Warp& w, u32 mask);
  // These warps have met at a barrier; those in `arrived` did not wait.
  void meet(const std::vector<unsigned>& waited, const std::vector<unsigned>& arrived);

 private:
  void synchronize(const Warp& w, const Instruction& i, u64 offset);
  bool ordered(const Event& before, const Warp& w, int lane) const;
  std::vector<Cell> cells;
  std::vector<WarpClocks> lanes;
  std::vector<std::vector<Clock>> barriers;    // [w][v]: what w knows of v's clock
  std::vector<Clock> clock;                    // barriers that a warp has reached
  std::map<u64, std::vector<Clock>> released;  // by offset, what a warp knew that wrote there with .release
};

}  // namespace emulated_gpu::ptx
