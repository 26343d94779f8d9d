// handlers.hpp: templates that make handlers of functions on values. Internal to the interpreter.
#pragma once

#include <type_traits>

#include "interpreter.hpp"

namespace emulated_gpu::ptx {

template <class F, class D, class... S>
[[gnu::always_inline]] inline void apply(u32 mask, D* d, const S*... s) {
  for_lanes(mask, [=](int l) { d[l] = static_cast<D>(F{}(s[l]...)); });
}
// d = F(s0, s1, ...) for each lane.
template <class F, class D, class... S>
void each(Warp& w, const Instruction& i, u32 mask) {
  [&]<std::size_t... n>(std::index_sequence<n...>) __attribute__((always_inline)) {
    apply<F, D, S...>(mask, w.row<D>(i.d), w.row<S>(i.s[n])...);
  }
  (std::index_sequence_for<S...>{});
}

template <class F, class T, int sources>
constexpr Handler each_of_type() {
  if constexpr (sources == 1) return each<F, T, T>;
  if constexpr (sources == 2) return each<F, T, T, T>;
  if constexpr (sources == 3) return each<F, T, T, T, T>;
}

// Returns of(T{}) for an integer type T of 32 or 64 bits, nullptr for other types.
template <class Of>
Handler of_word(Type type, Of of) {
  switch (type) {
    case Type::u32: return of(u32{});
    case Type::s32: return of(s32{});
    case Type::u64: return of(u64{});
    case Type::s64: return of(s64{});
    default: return nullptr;
  }
}
// The same, also for types of 16 bits.
template <class Of>
Handler of_integer(Type type, Of of) {
  if (type == Type::u16) return of(u16{});
  return type == Type::s16 ? of(s16{}) : of_word(type, of);
}
// F on values of an integer type.
template <int sources, class F>
Handler integers(Type type, F) {
  return of_integer(type, []<class T>(T) -> Handler { return each_of_type<F, T, sources>(); });
}
// Returns f(T{}) for the unsigned type T of so many bytes, nullptr for other numbers.
template <class F>
Handler with_bytes(unsigned bytes, F f) {
  switch (bytes) {
    case 2: return f(u16{});
    case 4: return f(u32{});
    case 8: return f(u64{});
    default: return nullptr;
  }
}
// F on values whose sign does not matter.
template <int sources, class F>
Handler bits(Type type, F) {
  return with_bytes(size_of(type), []<class T>(T) -> Handler { return each_of_type<F, T, sources>(); });
}

}  // namespace emulated_gpu::ptx
