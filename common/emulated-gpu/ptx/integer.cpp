// Integer arithmetic, bits and shifts.
#include <algorithm>
#include <limits>

#include "handlers.hpp"

namespace emulated_gpu::ptx {
namespace {

template <class T>
struct WideOf;
template <>
struct WideOf<u16> {
  using type = u32;
};
template <>
struct WideOf<s16> {
  using type = s32;
};
template <>
struct WideOf<u32> {
  using type = u64;
};
template <>
struct WideOf<s32> {
  using type = s64;
};
template <>
struct WideOf<u64> {
  using type = u128;
};
template <>
struct WideOf<s64> {
  using type = s128;
};
template <class T>
using Wide = typename WideOf<T>::type;
// Without the overflow of signed types; at least 32 bits, so that u16 is not promoted to int.
template <class T>
using Unsigned = std::conditional_t<sizeof(T) <= 4, u32, u64>;
template <class T>
constexpr unsigned width = 8 * sizeof(T);
template <class T>
constexpr bool is_signed = std::numeric_limits<T>::is_signed;

struct MultiplyLow {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(Unsigned<T>(a) * Unsigned<T>(b));
  }
};
struct MultiplyHigh {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>((Wide<T>(a) * Wide<T>(b)) >> width<T>);
  }
};
struct MultiplyWide {
  template <class T>
  Wide<T> operator()(T a, T b) const {
    return static_cast<Wide<T>>(Wide<T>(a) * Wide<T>(b));
  }
  template <class T>
  Wide<T> operator()(T a, T b, Wide<T> c) const {
    return static_cast<Wide<T>>(static_cast<u64>(Wide<T>(a) * Wide<T>(b)) + static_cast<u64>(c));
  }
};
template <class Product>
struct Plus {  // mad
  template <class T>
  T operator()(T a, T b, T c) const {
    return static_cast<T>(Unsigned<T>(Product{}(a, b)) + Unsigned<T>(c));
  }
};
template <bool high>
struct Multiply24 {
  template <class T>
  T operator()(T a, T b) const {
    const auto narrow = [](T v) { return is_signed<T> ? s64(s32(u32(v) << 8) >> 8) : s64(u32(v) & 0xffffff); };
    return static_cast<T>(static_cast<u64>(narrow(a) * narrow(b)) >> (high ? 16 : 0));
  }
};
template <bool add>
struct Saturated {
  s32 operator()(s32 a, s32 b) const {
    return static_cast<s32>(std::clamp<s64>(add ? s64{a} + b : s64{a} - b, std::numeric_limits<s32>::min(),
                                            std::numeric_limits<s32>::max()));
  }
};
// A division by zero gives all ones, as GPUs do.
struct Divide {
  template <class T>
  T operator()(T a, T b) const {
    if (b == 0) return static_cast<T>(-1);
    if (is_signed<T> && b == static_cast<T>(-1)) return static_cast<T>(0 - Unsigned<T>(a));
    return static_cast<T>(a / b);
  }
};
struct Remainder {
  template <class T>
  T operator()(T a, T b) const {
    if (b == 0) return a;
    if (is_signed<T> && b == static_cast<T>(-1)) return 0;
    return static_cast<T>(a % b);
  }
};
struct ShiftLeft {
  template <class T>
  T operator()(T a, u32 n) const {
    return n >= width<T> ? T{0} : static_cast<T>(Unsigned<T>(a) << n);
  }
};
struct ShiftRight {
  template <class T>
  T operator()(T a, u32 n) const {
    if (n >= width<T>) return static_cast<T>(is_signed<T> && a < 0 ? -1 : 0);
    return static_cast<T>(a >> n);
  }
};
template <bool left, bool wrap>
struct Funnel {
  u32 operator()(u32 low, u32 high, u32 n) const {
    n = wrap ? n & 31 : std::min(n, 32u);
    const u64 both = u64{high} << 32 | low;
    return static_cast<u32>(left ? n == 32 ? both : (both << n) >> 32 : both >> n);
  }
};
struct FindBit {
  template <class T>
  u32 operator()(T a) const {
    const auto v = static_cast<std::make_unsigned_t<T>>(is_signed<T> && a < 0 ? ~a : a);
    return v == 0 ? ~0u : width<T> - 1 - static_cast<u32>(std::countl_zero(v));
  }
};
struct FindBitShift {
  template <class T>
  u32 operator()(T a) const {
    const u32 bit = FindBit{}(a);
    return bit == ~0u ? bit : width<T> - 1 - bit;
  }
};
struct Extract {  // bfe
  template <class T>
  T operator()(T a, u32 position, u32 length) const {
    using V = std::make_unsigned_t<T>;
    position &= 0xff, length &= 0xff;
    if (length == 0) return 0;
    const u32 top = std::min(position + length - 1, width<T> - 1);
    const bool sign = is_signed<T> && (static_cast<V>(a) >> top & 1);
    const u32 have = position >= width<T> ? 0 : std::min(length, width<T> - position);
    const V mask = have >= width<T> ? ~V{0} : static_cast<V>((V{1} << have) - 1);
    const V value = position >= width<T> ? V{0} : static_cast<V>(static_cast<V>(a) >> position) & mask;
    return static_cast<T>(sign ? value | ~mask : value);
  }
};
struct Insert {  // bfi
  template <class T>
  T operator()(T a, T b, u32 position, u32 length) const {
    position &= 0xff, length &= 0xff;
    if (position >= width<T> || length == 0) return b;
    const T mask = static_cast<T>((length >= width<T> ? ~T{0} : (T{1} << length) - 1) << position);
    return static_cast<T>((b & ~mask) | ((a << position) & mask));
  }
};
template <bool wrap>
struct BitMask {
  u32 operator()(u32 a, u32 b) const {
    a = wrap ? a & 31 : std::min(a, 32u);
    b = wrap ? b & 31 : std::min(b, 32u - a);
    return static_cast<u32>(((u64{1} << b) - 1) << a);
  }
};
struct Reverse {
  template <class T>
  T operator()(T a) const {
    T r = 0;
    for (unsigned n = 0; n < width<T>; ++n) r = static_cast<T>(r << 1 | (a >> n & 1));
    return r;
  }
};
template <int mode>  // -1: any selection
struct Permute {
  u32 operator()(u32 a, u32 b, u32 c) const {
    static constexpr u32 table[6][4] = {{0x3210, 0x4321, 0x5432, 0x6543}, {0x5670, 0x6701, 0x7012, 0x0123},
                                        {0x0000, 0x1111, 0x2222, 0x3333}, {0x3210, 0x3211, 0x3222, 0x3333},
                                        {0x0000, 0x1110, 0x2210, 0x3210}, {0x1010, 0x3232, 0x1010, 0x3232}};
    const u32 selection = mode < 0 ? c : table[mode < 0 ? 0 : mode][c & 3];
    const u64 both = u64{b} << 32 | a;
    u32 r = 0;
    for (int n = 0; n < 4; ++n) {
      const u32 s = selection >> (4 * n) & 15;
      u32 byte = static_cast<u32>(both >> (8 * (s & 7))) & 0xff;
      if (s & 8) byte = byte & 0x80 ? 0xff : 0;
      r |= byte << (8 * n);
    }
    return r;
  }
};
template <bool signed_a, bool signed_b>
struct Dot4 {
  u32 operator()(u32 a, u32 b, u32 c) const {
    for (int n = 0; n < 32; n += 8) {
      const s32 x = signed_a ? static_cast<s8>(a >> n) : static_cast<u8>(a >> n);
      const s32 y = signed_b ? static_cast<s8>(b >> n) : static_cast<u8>(b >> n);
      c += static_cast<u32>(x * y);
    }
    return c;
  }
};
void lop3(Warp& w, const Instruction& i, u32 mask) {
  u32* const d = w.row<u32>(i.d);
  const u32 *a = w.row<u32>(i.s[0]), *b = w.row<u32>(i.s[1]), *c = w.row<u32>(i.s[2]);
  u32 k[8];
  for (int n = 0; n < 8; ++n) k[n] = i.immediate >> n & 1 ? ~0u : 0;
  for_lanes(mask, [&](int l) {
    const u32 x = a[l], y = b[l], z = c[l];
    d[l] = (~x & ((~y & ((~z & k[0]) | (z & k[1]))) | (y & ((~z & k[2]) | (z & k[3]))))) |
           (x & ((~y & ((~z & k[4]) | (z & k[5]))) | (y & ((~z & k[6]) | (z & k[7])))));
  });
}

// Carries: add.cc, addc, sub.cc, subc, mad.cc, madc
template <class T, bool in, bool out, class F>
void with_carry(Warp& w, const Instruction& i, u32 mask) {
  T* const d = w.row<T>(i.d);
  const T *a = w.row<T>(i.s[0]), *b = w.row<T>(i.s[1]), *c = w.row<T>(i.s[2]);
  for (; mask; mask &= mask - 1) {
    const int l = std::countr_zero(mask);
    const u128 sum = F{}(a[l], b[l], c, l, T(in ? w.carry >> l & 1 : 0));
    d[l] = static_cast<T>(sum);
    if (out) w.carry = (w.carry & ~(1u << l)) | static_cast<u32>(sum >> width<T> & 1) << l;
  }
}
template <class F>
Handler carries(const Statement& s, Type type, F) {
  const bool in = s.op[0].back() == 'c' && s.op[0] != "add", out = s.is("cc"), wide = size_of(type) == 8;
  if (in && out) return wide ? with_carry<u64, true, true, F> : with_carry<u32, true, true, F>;
  if (in) return wide ? with_carry<u64, true, false, F> : with_carry<u32, true, false, F>;
  return wide ? with_carry<u64, false, true, F> : with_carry<u32, false, true, F>;
}
Handler carry_handler(const Statement& s, Type type) {
  if (s.op[0].substr(0, 3) == "add")
    return carries(s, type, [](auto a, auto b, auto*, int, auto in) { return u128{a} + b + in; });
  if (s.op[0].substr(0, 3) == "sub")
    return carries(s, type, [](auto a, auto b, auto*, int, auto in) { return u128{a} - b - in; });
  if (!s.is("hi"))
    return carries(s, type,
                   [](auto a, auto b, auto* c, int l, auto in) { return u128{MultiplyLow{}(a, b)} + c[l] + in; });
  if (type == Type::s32 || type == Type::s64)
    return carries(s, type, [](auto a, auto b, auto* c, int l, auto in) {
      using S = std::make_signed_t<decltype(a)>;
      return u128{static_cast<decltype(a)>(MultiplyHigh{}(static_cast<S>(a), static_cast<S>(b)))} + c[l] + in;
    });
  return carries(s, type,
                 [](auto a, auto b, auto* c, int l, auto in) { return u128{MultiplyHigh{}(a, b)} + c[l] + in; });
}

// By a constant, mostly.
template <class F, class T>
void shift_each(Warp& w, const Instruction& i, u32 mask) {
  if (i.s[1].frame) return each<F, T, T, u32>(w, i, mask);
  T* const d = w.row<T>(i.d);
  const T* const a = w.row<T>(i.s[0]);
  const u32 n = *w.row<u32>(i.s[1]);
  for_lanes(mask, [&](int l) { d[l] = F{}(a[l], n); });
}
template <class F>
Handler shift(Type type) {
  switch (type) {
    case Type::u16: return shift_each<F, u16>;
    case Type::s16: return shift_each<F, s16>;
    case Type::u32: return shift_each<F, u32>;
    case Type::s32: return shift_each<F, s32>;
    case Type::u64: return shift_each<F, u64>;
    case Type::s64: return shift_each<F, s64>;
    default: return nullptr;
  }
}
template <class F, class... More>
Handler words(Type type) {  // 32 and 64 bits, of the same type as the result
  switch (type) {
    case Type::u32: return each<F, u32, u32, More...>;
    case Type::s32: return each<F, s32, s32, More...>;
    case Type::u64: return each<F, u64, u64, More...>;
    case Type::s64: return each<F, s64, s64, More...>;
    default: return nullptr;
  }
}
template <class F>
Handler to_u32(Type type) {
  switch (type) {
    case Type::u32: return each<F, u32, u32>;
    case Type::s32: return each<F, u32, s32>;
    case Type::u64: return each<F, u32, u64>;
    case Type::s64: return each<F, u32, s64>;
    default: return nullptr;
  }
}
Handler multiply(const Statement& s, Type type, bool add) {
  if (s.is("wide")) {
    using F = MultiplyWide;
    switch (type) {
      case Type::u16: return add ? each<F, u32, u16, u16, u32> : each<F, u32, u16, u16>;
      case Type::s16: return add ? each<F, s32, s16, s16, s32> : each<F, s32, s16, s16>;
      case Type::u32: return add ? each<F, u64, u32, u32, u64> : each<F, u64, u32, u32>;
      case Type::s32: return add ? each<F, s64, s32, s32, s64> : each<F, s64, s32, s32>;
      default: return nullptr;
    }
  }
  if (s.is("hi")) return add ? integers<3>(type, Plus<MultiplyHigh>{}) : integers<2>(type, MultiplyHigh{});
  return add ? bits<3>(type, Plus<MultiplyLow>{}) : bits<2>(type, MultiplyLow{});
}
Handler multiply24(const Statement& s, Type type, bool add) {
  const bool high = s.is("hi"), negative = type == Type::s32;
  const auto pick = [&]<class M>(M) -> Handler {
    if (add) return negative ? each<Plus<M>, s32, s32, s32, s32> : each<Plus<M>, u32, u32, u32, u32>;
    return negative ? each<M, s32, s32, s32> : each<M, u32, u32, u32>;
  };
  return high ? pick(Multiply24<true>{}) : pick(Multiply24<false>{});
}
Handler permute(const Statement& s) {
  if (s.is("f4e")) return each<Permute<0>, u32, u32, u32, u32>;
  if (s.is("b4e")) return each<Permute<1>, u32, u32, u32, u32>;
  if (s.is("rc8")) return each<Permute<2>, u32, u32, u32, u32>;
  if (s.is("ecl")) return each<Permute<3>, u32, u32, u32, u32>;
  if (s.is("ecr")) return each<Permute<4>, u32, u32, u32, u32>;
  if (s.is("rc16")) return each<Permute<5>, u32, u32, u32, u32>;
  return each<Permute<-1>, u32, u32, u32, u32>;
}
Handler dot(const Statement& s) {  // dp4a.atype.btype
  const bool a = s.op[s.op.size() - 2] == "s32", b = s.op.back() == "s32";
  if (a) return b ? each<Dot4<true, true>, u32, u32, u32, u32> : each<Dot4<true, false>, u32, u32, u32, u32>;
  return b ? each<Dot4<false, true>, u32, u32, u32, u32> : each<Dot4<false, false>, u32, u32, u32, u32>;
}
Handler funnel(const Statement& s) {
  const bool wrap = s.is("wrap");
  if (s.is("l"))
    return wrap ? each<Funnel<true, true>, u32, u32, u32, u32> : each<Funnel<true, false>, u32, u32, u32, u32>;
  return wrap ? each<Funnel<false, true>, u32, u32, u32, u32> : each<Funnel<false, false>, u32, u32, u32, u32>;
}

}  // namespace

Handler integer_handler(const Statement& s, Type type) {
  const std::string_view op = s.op[0];
  if (s.is("cc") || op == "addc" || op == "subc" || op == "madc") return carry_handler(s, type);
  if (op == "add")
    return s.is("sat") ? each<Saturated<true>, s32, s32, s32> : bits<2>(type, [](auto a, auto b) { return a + b; });
  if (op == "sub")
    return s.is("sat") ? each<Saturated<false>, s32, s32, s32> : bits<2>(type, [](auto a, auto b) { return a - b; });
  if (op == "mul" || op == "mad") return multiply(s, type, op == "mad");
  if (op == "mul24" || op == "mad24") return multiply24(s, type, op == "mad24");
  if (op == "div") return integers<2>(type, Divide{});
  if (op == "rem") return integers<2>(type, Remainder{});
  if (op == "min") return integers<2>(type, [](auto a, auto b) { return a < b ? a : b; });
  if (op == "max") return integers<2>(type, [](auto a, auto b) { return a > b ? a : b; });
  if (op == "neg") return bits<1>(type, [](auto a) { return 0 - a; });
  if (op == "abs")
    return integers<1>(type, [](auto a) { return a < 0 ? 0 - Unsigned<decltype(a)>(a) : Unsigned<decltype(a)>(a); });
  if (op == "sad")
    return integers<3>(type, [](auto a, auto b, auto c) {
      using V = Unsigned<decltype(a)>;
      return V(c) + (a < b ? V(b) - V(a) : V(a) - V(b));
    });
  if (op == "and") return bits<2>(type, [](auto a, auto b) { return a & b; });
  if (op == "or") return bits<2>(type, [](auto a, auto b) { return a | b; });
  if (op == "xor") return bits<2>(type, [](auto a, auto b) { return a ^ b; });
  if (op == "not") return bits<1>(type, [](auto a) { return ~a; });
  if (op == "cnot") return bits<1>(type, [](auto a) { return a == 0; });
  if (op == "shl") return shift<ShiftLeft>(type);
  if (op == "shr") return shift<ShiftRight>(type);
  if (op == "shf") return funnel(s);
  if (op == "lop3") return lop3;
  if (op == "prmt") return permute(s);
  if (op == "popc")
    return size_of(type) == 8 ? each<decltype([](auto a) { return std::popcount(a); }), u32, u64>
                              : each<decltype([](auto a) { return std::popcount(a); }), u32, u32>;
  if (op == "clz")
    return size_of(type) == 8 ? each<decltype([](auto a) { return std::countl_zero(a); }), u32, u64>
                              : each<decltype([](auto a) { return std::countl_zero(a); }), u32, u32>;
  if (op == "bfind") return s.is("shiftamt") ? to_u32<FindBitShift>(type) : to_u32<FindBit>(type);
  if (op == "brev") return words<Reverse>(type);
  if (op == "bfe") return words<Extract, u32, u32>(type);
  if (op == "bfi")
    return size_of(type) == 8 ? each<Insert, u64, u64, u64, u32, u32> : each<Insert, u32, u32, u32, u32, u32>;
  if (op == "bmsk") return s.is("wrap") ? each<BitMask<true>, u32, u32, u32> : each<BitMask<false>, u32, u32, u32>;
  if (op == "dp4a") return dot(s);
  return nullptr;
}

}  // namespace emulated_gpu::ptx
