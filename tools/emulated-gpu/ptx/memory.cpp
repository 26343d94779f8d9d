// Loads, stores, atomic operations and address spaces.
#include <atomic>
#include <iterator>

#include "checker.hpp"
#include "floats.hpp"
#include "handlers.hpp"

namespace emulated_gpu::ptx {
namespace {

u64 address_of(const void* pointer) { return reinterpret_cast<u64>(pointer); }

Range own_local(const Warp& w, int lane) {
  const Context& c = *w.context;
  const u64 begin = address_of(c.local) + (w.number * u64{warp_size} + static_cast<u64>(lane)) * c.local_per_thread;
  return {begin, begin + c.local_per_thread};
}

std::string hex(u64 value) {
  char text[20];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

[[noreturn, gnu::noinline]] void bad_address(const Warp& w, const Instruction& i, int lane, u64 address,
                                             unsigned bytes) {
  const Context& c = *w.context;
  const std::string what = std::to_string(bytes) + " bytes at ";
  const bool shared = i.mode == Mode::shared32 || i.mode == Mode::shared64;
  if (shared || address - address_of(c.shared) < c.shared_size) {
    const auto offset = static_cast<s32>(address - c.shared_range.begin);
    fail(Fault::illegal_address, w, lane, i,
         "access of " + what + "offset " + std::to_string(offset) + " of shared memory, which has " +
             std::to_string(c.kernel->attributes.shared + c.launch->shared) + " bytes");
  }
  if (i.mode == Mode::local || address - address_of(c.local) < c.local_size)
    fail(Fault::illegal_address, w, lane, i,
         "access of " + what + hex(address) + ", outside the thread's own local memory");
  std::string where;
  const auto bytes_text = [](u64 count) {
    return count == 0 ? std::string(", the first byte") : ", " + std::to_string(count) + " bytes";
  };
  for (const Range& r : c.surroundings->memory) {
    if (address + bytes > r.begin && address < r.end)
      where = ", which crosses the end of a buffer of " + std::to_string(r.end - r.begin) + " bytes";
    else if (address >= r.end && address - r.end < 256)
      where = bytes_text(address - r.end) + " after a buffer of " + std::to_string(r.end - r.begin) + " bytes";
    else if (where.empty() && address < r.begin && r.begin - address <= 256)
      where = ", " + std::to_string(r.begin - address) + " bytes before a buffer of " +
              std::to_string(r.end - r.begin) + " bytes";
  }
  if (where.empty()) {
    const std::string other = c.surroundings->describe ? c.surroundings->describe(address) : "";
    where = ", " + (other.empty() ? "which was freed or never allocated" : other);
  }
  if (address < 4096) where = ", a null pointer";
  fail(Fault::illegal_address, w, lane, i, "access of " + what + hex(address) + where);
}

[[gnu::noinline]] bool find_range(const Warp& w, int lane, u64 address, unsigned bytes, Range& hit) {
  const Context& c = *w.context;
  const auto inside = [&](const Range& r) { return address >= r.begin && address + bytes <= r.end; };
  const u64 parameters = address_of(c.launch->parameters.data());
  for (const Range& r : {c.shared_range, Range{parameters, parameters + c.launch->parameters.size()},
                         Range{c.workspace, c.workspace + (c.workspace ? 64 : 0)}})
    if (inside(r)) {
      hit = r;
      return true;
    }
  if (inside(own_local(w, lane))) return true;  // not for the other lanes
  const auto behind = std::upper_bound(c.surroundings->memory.begin(), c.surroundings->memory.end(), address,
                                       [](u64 a, const Range& r) { return a < r.begin; });
  if (behind == c.surroundings->memory.begin() || !inside(*std::prev(behind))) return false;
  hit = *std::prev(behind);
  return true;
}

// The addresses of an access, checked, where the emulation finds what is there. `bytes` is a power of two.
[[gnu::noinline]] void find_addresses(Warp& w, const Instruction& i, u32 mask, u64* address, unsigned bytes,
                                      Access kind, Stored stored = {}) {
  Context& c = *w.context;
  const bool shared = i.mode == Mode::shared32 || i.mode == Mode::shared64;
  const auto set = [&]<class A>(const A* a, u64 base) {
    for_lanes(mask, [&](int l) { address[l] = base + static_cast<A>(a[l] + static_cast<A>(i.offset)); });
  };
  switch (i.mode) {
    case Mode::frame: for_lanes(mask, [&](int l) { address[l] = w.local[l] + static_cast<u64>(i.offset); }); break;
    case Mode::parameter:
      for_lanes(mask,
                [&](int l) { address[l] = address_of(c.launch->parameters.data()) + static_cast<u64>(i.offset); });
      return;
    case Mode::shared32: set(w.row<u32>(i.s[0]), address_of(c.shared)); break;
    case Mode::shared64: set(w.row<u64>(i.s[0]), address_of(c.shared)); break;
    case Mode::generic:
    case Mode::local: set(w.row<u64>(i.s[0]), 0); break;
  }
  if (i.mode != Mode::frame) {
    Range range = shared ? c.shared_range : i.mode == Mode::generic ? c.hits[i.cache] : Range{};
    u64 outside = 0;  // of the range that the instruction used last, or misaligned
    for_lanes(mask, [&](int l) {
      outside |= u64{address[l] < range.begin} | u64{address[l] + bytes > range.end} | (address[l] & (bytes - 1));
    });
    for (const int l : Lanes{outside ? mask : 0}) {
      const u64 a = address[l];
      if (i.mode == Mode::local) range = own_local(w, l);
      if (a < range.begin || a + bytes > range.end || a + bytes < a) {
        if (i.mode != Mode::generic || !find_range(w, l, a, bytes, c.hits[i.cache])) bad_address(w, i, l, a, bytes);
        range = c.hits[i.cache];
      }
      if (a & (bytes - 1))
        fail(Fault::misaligned_address, w, l, i,
             "misaligned access of " + std::to_string(bytes) + " bytes at " + hex(a));
    }
  }
  if (i.mode == Mode::generic) {
    const DeviceMemory device = c.surroundings->device_memory;
    for_lanes(mask, [&](int l) { address[l] = device.view(address[l]); });
  }
  if (c.checker) [[unlikely]]
    c.checker->access(w, i, mask, address, bytes, kind, stored);
}

template <class T>
T load(u64 address) {
  T value;
  std::memcpy(&value, reinterpret_cast<const void*>(address), sizeof value);
  return value;
}
template <class T>
void store(u64 address, T value) {
  std::memcpy(reinterpret_cast<void*>(address), &value, sizeof value);
}

// T in memory, R the unsigned type of the register; a signed T is extended.
template <class T, class R>
void load_rows(Warp& w, const Instruction& i, u32 mask) {
  u64 address[warp_size];
  const std::vector<Row>& rows = i.extra->rows;
  find_addresses(w, i, mask, address, static_cast<unsigned>(sizeof(T) * rows.size()), Access::read);
  for (std::size_t n = 0; n < rows.size(); ++n) {
    R* const d = w.row<R>(rows[n]);
    for_lanes(mask, [&](int l) { d[l] = static_cast<R>(load<T>(address[l] + n * sizeof(T))); });
  }
}
template <class T, class R>
void store_rows(Warp& w, const Instruction& i, u32 mask) {
  u64 address[warp_size];
  const std::vector<Row>& rows = i.extra->rows;
  T values[warp_size][16 / sizeof(T)];
  for (std::size_t n = 0; n < rows.size(); ++n)
    for_lanes(mask, [&](int l) { values[l][n] = static_cast<T>(w.row<R>(rows[n])[l]); });
  find_addresses(w, i, mask, address, static_cast<unsigned>(sizeof(T) * rows.size()), Access::write,
                 {values, sizeof values[0]});
  for (const int l : Lanes{mask})  // in order: lanes may write to the same place
    for (std::size_t n = 0; n < rows.size(); ++n) store(address[l] + n * sizeof(T), values[l][n]);
}

Handler access(Type type, unsigned register_bytes, bool loads) {
  const auto pick = [&]<class T>(T) {
    return with_bytes(register_bytes, [&]<class R>(R) -> Handler {
      if constexpr (sizeof(R) < sizeof(T)) return nullptr;
      else return loads ? load_rows<T, R> : store_rows<T, R>;
    });
  };
  const bool extends = size_of(type) < register_bytes;
  switch (size_of(type)) {
    case 1: return type == Type::s8 ? pick(s8{}) : pick(u8{});
    case 2: return extends && type == Type::s16 ? pick(s16{}) : pick(u16{});
    case 4: return extends && type == Type::s32 ? pick(s32{}) : pick(u32{});
    case 8: return pick(u64{});
    default: return nullptr;
  }
}

using Sum = decltype([]<class T>(T a, T b, T) -> T {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) + static_cast<std::make_unsigned_t<T>>(b));
  else return canonical(a + b);
});
using FlushedSum = decltype([](float a, float b, float) {  // on global memory, f32 is flushed
  return canonical(flushed(flushed(a) + flushed(b)));
});
using SmallSum = decltype([]<class T>(T a, T b, T) { return T::of(static_cast<float>(a) + static_cast<float>(b)); });
template <class T>
constexpr auto pair_sum = [](u32 a, u32 b, u32) {
  return pair_of(SmallSum{}(part<T>(a, 0), part<T>(b, 0), T{}), SmallSum{}(part<T>(a, 1), part<T>(b, 1), T{}));
};
using Exchange = decltype([]<class T>(T, T b, T) { return b; });  // also of memory that was never written
// d = *s[0]; *s[0] = F(*s[0], s[1], s[2])
template <class T, class F>
void atomic(Warp& w, const Instruction& i, u32 mask) {
  using Bits = std::conditional_t<sizeof(T) == 2, u16, std::conditional_t<sizeof(T) == 4, u32, u64>>;
  u64 address[warp_size];
  find_addresses(w, i, mask, address, sizeof(T), std::is_same_v<F, Exchange> ? Access::exchange : Access::atomic);
  T* const d = i.d ? w.row<T>(i.d) : nullptr;
  const T *b = w.row<T>(i.s[1]), *c = i.s[2] ? w.row<T>(i.s[2]) : b;
  const bool shared = i.mode != Mode::generic;  // of this block alone: no other thread runs
  const auto change = [&](int l) {
    auto* const p = reinterpret_cast<Bits*>(address[l]);
    Bits old;
    const auto next = [&] { return std::bit_cast<Bits>(static_cast<T>(F{}(std::bit_cast<T>(old), b[l], c[l]))); };
    if (shared) {
      old = *p;
      *p = next();
    } else if constexpr (std::is_same_v<F, Sum> && std::is_integral_v<T>) {
      old = __atomic_fetch_add(p, std::bit_cast<Bits>(b[l]), __ATOMIC_SEQ_CST);
    } else {
      old = __atomic_load_n(p, __ATOMIC_SEQ_CST);
      while (!__atomic_compare_exchange_n(p, &old, next(), true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
      }
    }
    if (d) d[l] = std::bit_cast<T>(old);
  };
  // With the check the lanes come in another order, too.
  const u32 last = w.context->random ? (2u << (*w.context->random)() % (warp_size - 1)) - 1 : 0;
  for (const int l : Lanes{mask & ~last}) change(l);
  for (const int l : Lanes{mask & last}) change(l);
}
template <class F>
Handler atomic_integers(Type type, F) {
  if (type == Type::u16) return atomic<u16, F>;
  return of_word(type, []<class T>(T) -> Handler { return atomic<T, F>; });
}
Handler atomic_handler(const Statement& s, Type type) {
  if (s.is("add")) {
    switch (type) {
      case Type::f32: return s.is("shared") || s.is("shared::cta") ? atomic<float, Sum> : atomic<float, FlushedSum>;
      case Type::f64: return atomic<double, Sum>;
      case Type::f16: return atomic<half, SmallSum>;
      case Type::bf16: return atomic<bfloat, SmallSum>;
      case Type::f16x2: return atomic<u32, decltype(pair_sum<half>)>;
      case Type::bf16x2: return atomic<u32, decltype(pair_sum<bfloat>)>;
      case Type::u16: return nullptr;
      default: return atomic_integers(type, Sum{});
    }
  }
  if (s.is("min")) return atomic_integers(type, [](auto a, auto b, auto) { return b < a ? b : a; });
  if (s.is("max")) return atomic_integers(type, [](auto a, auto b, auto) { return a < b ? b : a; });
  if (s.is("and")) return atomic_integers(type, [](auto a, auto b, auto) { return a & b; });
  if (s.is("or")) return atomic_integers(type, [](auto a, auto b, auto) { return a | b; });
  if (s.is("xor")) return atomic_integers(type, [](auto a, auto b, auto) { return a ^ b; });
  if (s.is("exch")) return atomic_integers(type, Exchange{});
  if (s.is("cas")) return atomic_integers(type, [](auto a, auto b, auto c) { return a == b ? c : a; });
  if (s.is("inc")) return atomic_integers(type, [](auto a, auto b, auto) { return a >= b ? 0 : a + 1; });
  if (s.is("dec")) return atomic_integers(type, [](auto a, auto b, auto) { return a == 0 || a > b ? b : a - 1; });
  return nullptr;
}

}  // namespace

Handler memory_handler(const Statement& s, Type type, unsigned register_bytes) {
  const bool loads = s.op[0] == "ld";
  return loads || s.op[0] == "st" ? access(type, register_bytes, loads) : atomic_handler(s, type);
}

// immediate: from a generic address
void cvta_of_shared(Warp& w, const Instruction& i, u32 mask) {
  u64* const d = w.row<u64>(i.d);
  const u64 *a = w.row<u64>(i.s[0]), base = address_of(w.context->shared);
  for_lanes(mask, [&](int l) { d[l] = i.immediate ? a[l] - base : a[l] + base; });
}

// immediate: the Space
void isspacep(Warp& w, const Instruction& i, u32 mask) {
  const u64* a = w.row<u64>(i.s[0]);
  const Context& c = *w.context;
  u32 value = 0;
  for (const int l : Lanes{mask}) {
    const bool shared = a[l] - address_of(c.shared) < c.shared_size, local = a[l] - address_of(c.local) < c.local_size;
    const auto space = static_cast<Space>(i.immediate);
    value |= u32{space == Space::shared ? shared : space == Space::local ? local : !shared && !local} << l;
  }
  set_predicate(w, i.d, mask, value);
}
void frame_address(Warp& w, const Instruction& i, u32 mask) {
  u64* const d = w.row<u64>(i.d);
  for_lanes(mask, [&](int l) { d[l] = w.local[l] + static_cast<u64>(i.offset); });
}
void parameter_address(Warp& w, const Instruction& i, u32 mask) {
  u64* const d = w.row<u64>(i.d);
  const u64 address = address_of(w.context->launch->parameters.data()) + static_cast<u64>(i.offset);
  for_lanes(mask, [&](int l) { d[l] = address; });
}

void fence(Warp& w, const Instruction& i, u32) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (w.context->global) w.context->global->fence(*w.context, i);
}

}  // namespace emulated_gpu::ptx
