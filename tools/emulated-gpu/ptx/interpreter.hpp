// interpreter.hpp: decoded kernels and the state of warps and blocks. Internal to the interpreter.
//
// A decoded instruction is carried out for the 32 lanes of a warp at once. A register is a row of 32 values in the
// warp's memory, a constant the same in the kernel's, and a predicate is a word with one bit per lane. Each lane has
// its own program counter. The lanes with the smallest one run first, those in the deepest call before all others, so
// lanes that diverged converge again without an analysis of the control flow.
#pragma once

#include <array>
#include <bit>
#include <cstring>
#include <mutex>
#include <optional>
#include <random>

#include "program.hpp"

namespace emulated_gpu::ptx {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s8 = std::int8_t;
using s16 = std::int16_t;
using s32 = std::int32_t;
using s64 = std::int64_t;
__extension__ using u128 = unsigned __int128;
__extension__ using s128 = __int128;

constexpr int warp_size = 32;
constexpr u32 all_lanes = ~0u;
constexpr u32 reserved_shared = 1024;               // at the start of shared memory, for the compiler's own use
constexpr u64 function_addresses = u64{0xf} << 52;  // of the first function; they are 16 apart

struct Warp;
struct Block;
struct Instruction;
struct Checker;
struct GlobalChecker;
using Handler = void (*)(Warp&, const Instruction&, u32 mask);

// A row of registers (of the frame) or of constants.
struct Row {
  std::intptr_t frame = 0, value = 0;  // -1 and the offset in the frame, or 0 and the address of the constant
  explicit operator bool() const { return value != 0; }  // offset 0 of a frame is never used
};

enum class Flow : u8 { next, global, branch, branch_indexed, ret, exit, call, call_indirect, barrier, warp_sync };
// How a memory instruction finds its addresses: generic, shared or local ones in a register; the frame of the function;
// the parameters of the kernel.
enum class Mode : u8 { generic, shared32, shared64, local, frame, parameter };

struct Argument {
  std::size_t offset, size;  // in the caller's frame
};
struct Extra {
  std::vector<Row> rows;     // of a vector
  std::vector<u32> targets;  // of brx.idx
  std::string callee;        // a function of the device library, or why there is none
  int function = -1;
  std::vector<Argument> arguments, results;
};

struct Instruction {
  Handler run = nullptr;
  Row d, d2;             // destinations; d2: of "%r1|%p1"
  std::array<Row, 4> s;  // sources
  s64 offset = 0;
  u64 immediate = 0;
  Extra* extra = nullptr;
  const Statement* source = nullptr;
  u32 guard = 0;  // the predicate's offset; 0: none
  u32 target = 0;
  u32 cache = 0;  // number among the memory instructions
  Flow flow = Flow::next;
  Mode mode = Mode::generic;
  bool guard_negated = false, aligned = false;
  bool acquire = false, release = false, weak = false;  // the memory order
};

struct Code {  // of a function
  const Function* function = nullptr;
  u32 entry = 0;
  std::size_t registers = 0, frame = 0;  // bytes of a warp, bytes of a thread
};

struct alignas(64) Constant {
  u8 bytes[warp_size * 8];
};

struct Kernel {
  const Program::Parts* program = nullptr;
  const Function* function = nullptr;
  Attributes attributes;
  std::vector<Instruction> code;
  std::vector<Code> functions;  // 0: the kernel
  std::map<std::string_view, int> number_of;
  std::deque<Extra> extras;
  std::deque<Constant> constants;
  std::size_t shared = reserved_shared;             // static, and the gaps
  std::map<u64, const Variable*> shared_variables;  // by offset, if there are gaps behind them
  bool uses_reserved = false;                       // %reserved_smem_offset_...
  u32 caches = 0;
};

struct Program::Parts {
  Parts(std::string text, std::size_t bytes) : gap(bytes), module(std::move(text)) {}
  u64 address_of(std::string_view function);
  const std::string* function_at(u64 address) const;

  const std::size_t gap;  // behind each shared variable
  mutable std::mutex mutex;
  Module module;
  std::deque<std::string> addressed;  // functions whose address is taken
  std::map<std::string, std::unique_ptr<Kernel>> kernels;
};

// What one block needs.
struct Context {
  const Kernel* kernel;
  const Launch* launch;
  const Surroundings* surroundings;
  Checker* checker = nullptr;
  GlobalChecker* global = nullptr;  // of a grid of several blocks
  std::minstd_rand* random = nullptr;
  u64 number = 0;  // of the block
  u32 block[3];
  u8 *shared = nullptr, *local = nullptr;
  Range shared_range;  // what the program may use of it
  std::size_t shared_size = 0, local_size = 0, local_per_thread = 0;
  std::vector<Range> hits;  // for each memory instruction the range that it used last
  std::string output;       // of printf
  u64 workspace = 0;        // of cooperative groups: 64 bytes for grid.sync
};

struct Frame {  // of the caller
  u32 pc, base;
  u64 local;
  const Extra* call;
};

struct Warp {
  std::intptr_t base = 0;  // of the frame's registers
  Context* context = nullptr;
  Block* block = nullptr;
  u64 local[warp_size];  // the frame of each lane
  u32 alive = 0, at_barrier = 0, at_sync = 0;
  u32 carry = 0;  // CC.CF, a bit for each lane
  u32 pc[warp_size], frame_base[warp_size], barrier[warp_size], members[warp_size];
  u32 thread[3][warp_size];
  unsigned number = 0, turn = 0;
  int budget = 0;  // backward jumps that are left
  std::vector<u8> storage;
  u8* registers = nullptr;
  std::vector<Frame> stack[warp_size];

  template <class T>
  T* row(Row r) const {
    return reinterpret_cast<T*>((base & r.frame) + r.value);
  }
};

// The lanes of a mask in their order: for (const int l : Lanes{mask})
struct Lanes {
  u32 rest;
  Lanes begin() const { return *this; }
  Lanes end() const { return {0}; }
  int operator*() const { return std::countr_zero(rest); }
  void operator++() { rest &= rest - 1; }
  bool operator!=(const Lanes&) const { return rest != 0; }
};
// Calls f(lane) for the lanes of the mask.
template <class F>
[[gnu::always_inline]] inline void for_lanes(u32 mask, F f) {
  if (mask == all_lanes) {
#pragma GCC ivdep
    for (int lane = 0; lane < warp_size; ++lane) f(lane);
  } else {
    for (const int lane : Lanes{mask}) f(lane);
  }
}

inline u32 predicate(const Warp& w, Row r, bool negated) {
  const u32 value = *w.row<u32>(r);
  return negated ? ~value : value;
}
inline void set_predicate(const Warp& w, Row r, u32 mask, u32 value) {
  if (!r) return;
  u32* const d = w.row<u32>(r);
  *d = (*d & ~mask) | (value & mask);
}

// Whether `list` has this word. Lists begin and end with a space.
inline bool has(std::string_view list, std::string_view word) {
  for (auto at = list.find(word); at != std::string_view::npos; at = list.find(word, at + 1))
    if (list[at - 1] == ' ' && list[at + word.size()] == ' ') return true;
  return false;
}

// "(x,y,z)"; "kernel K, block (x,y,z), thread (x,y,z)"; the instruction with its source line.
std::string triple(u32 x, u32 y, u32 z);
std::string triple(u32 number, const unsigned (&size)[3]);  // of this number in a block or grid
std::string thread_text(const Warp& w, int lane);
std::string place_of(const Warp& w, int lane);
std::string text_of(const Context& context, const Instruction& i);
[[noreturn]] void fail(Fault::Kind kind, const Warp& w, int lane, const Instruction& i, const std::string& what);

// Handlers by instruction; null if there is none. The decoder has checked the modifiers. Each is in the file of its
// name.
Handler integer_handler(const Statement& s, Type type, Instruction& i);
Handler float_handler(const Statement& s, Type type);
Handler comparison_handler(const Statement& s, Type type);
Handler conversion_handler(const Statement& s, Type to, Type from, unsigned to_bytes, unsigned from_bytes,
                           Instruction& i);
Handler memory_handler(const Statement& s, Type type, unsigned register_bytes);  // ld, st, atom, red
Handler warp_handler(const Statement& s, Type type, Instruction& i);             // shfl, vote, match, redux
Handler move_handler(unsigned bytes);
Handler pack_handler(bool packs, unsigned whole, unsigned part);  // or unpacks
Handler special_handler(unsigned bytes);
// Number and dimension of "%tid.y", for the handler's immediate and offset; nothing: there is none of this name.
std::optional<std::pair<u64, s64>> special_register(std::string_view name);
void cvta_of_shared(Warp& w, const Instruction& i, u32 mask);
void isspacep(Warp& w, const Instruction& i, u32 mask);
void frame_address(Warp& w, const Instruction& i, u32 mask);
void parameter_address(Warp& w, const Instruction& i, u32 mask);
void fence(Warp& w, const Instruction& i, u32 mask);
void no_effect(Warp& w, const Instruction& i, u32 mask);
void trap(Warp& w, const Instruction& i, u32 mask);
void yield(Warp& w, const Instruction& i, u32 mask);
void device_function(Warp& w, const Instruction& i, u32 mask);  // vprintf, __assertfail
bool is_device_function(std::string_view name);

void not_emulated(Warp& w, const Instruction& i, u32 mask);  // fails with the callee's text

std::unique_ptr<Kernel> decode(Program::Parts& program, const Function& function);

}  // namespace emulated_gpu::ptx
