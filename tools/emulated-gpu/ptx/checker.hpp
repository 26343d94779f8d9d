// checker.hpp: with EMULATED_GPU_CHECK=1, finds races on shared memory and between blocks, and reads of memory that was
// never written.
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
    u32 code = 0;  // the instruction
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
  void restart() { *this = Checker(cells.size(), static_cast<unsigned>(clock.size())); }
  void access(const Warp& w, const Instruction& i, u32 mask, const u64* address, unsigned bytes, Access kind,
              Stored stored);
  // The lanes of `mask` have met.
  void meet(const Warp& w, u32 mask);
  // These warps have met at a barrier; those in `arrived` did not wait.
  void meet(const std::vector<unsigned>& waited, const std::vector<unsigned>& arrived);
  Event event(const Warp& w, const Instruction& i, int lane) const;  // that happens now
  bool ordered(const Event& before, const Warp& w, int lane) const;

 private:
  void synchronize(const Warp& w, const Instruction& i, u64 offset);
  std::vector<Cell> cells;
  std::vector<WarpClocks> lanes;
  std::vector<std::vector<Clock>> barriers;    // [w][v]: what w knows of v's clock
  std::vector<Clock> clock;                    // barriers that a warp has reached
  std::map<u64, std::vector<Clock>> released;  // by offset, what a warp knew that wrote there with .release
};

// Finds races between the threads of a kernel on global memory. Those of one block are ordered as on shared memory,
// too. A block's accesses are ordered before another's, or its own, if a fence followed them, and then the other block
// made an atomic access or one with a memory order, or had a fence too. For the thread that runs a stream's kernels,
// one after the other.
class GlobalChecker {
 public:
  void restart();
  void access(const Warp& w, const Instruction& i, int lane, u64 address, unsigned bytes, Access kind, const u8* value);
  void fence(const Context& c, const Instruction& i);

 private:
  struct Event : Checker::Event {
    u32 block = 0, time = 0;  // block: 1 and its number; 0: none
    u8 bytes = 0;             // of the word, a bit each
  };
  struct Word {
    Event write, reads[3];  // reads: of two threads of a block, and of another block
    u32 launch = 0;
    u8 value[4] = {};  // that `write` stored
  };
  static constexpr u64 page_bytes = 4096, most_pages = 4096;  // that are watched
  struct Page {
    Word words[page_bytes / 4];
  };
  void report(const Warp& w, const Instruction& i, int lane, const char* what, const Event& before, const char* other);

  std::unordered_map<u64, std::unique_ptr<Page>> pages_;
  u64 last_ = ~u64{0};
  Page* page_ = nullptr;  // of last_
  u32 launch_ = 0, now_ = 0;
  bool done_ = false;
  std::unordered_map<u32, std::vector<u32>> fences_[2];  // times, by block; 1: also those for the block alone
  std::unordered_map<u32, u32> known_;                   // by block, until when it knows all others' fences
};

}  // namespace emulated_gpu::ptx
