// Integer arithmetic, bits and shifts.
#include <algorithm>
#include <limits>

#include "handlers.hpp"

namespace emulated_gpu::ptx {
namespace {

template <class T>
constexpr bool is_signed = std::numeric_limits<T>::is_signed;
template <class T, class Signed, class Not>
using Like = std::conditional_t<is_signed<T>, Signed, Not>;
// Twice as wide
template <class T>
using Wide = std::conditional_t<sizeof(T) == 2, Like<T, s32, u32>,
                                std::conditional_t<sizeof(T) == 4, Like<T, s64, u64>, Like<T, s128, u128>>>;
// Without the overflow of signed types; at least 32 bits, so that u16 is not promoted to int.
template <class T>
using Unsigned = std::conditional_t<sizeof(T) <= 4, u32, u64>;
template <class T>
constexpr unsigned width = 8 * sizeof(T);

constexpr auto multiply_low = []<class T>(T a, T b) -> T { return static_cast<T>(Unsigned<T>(a) * Unsigned<T>(b)); };
constexpr auto multiply_high = []<class T>(T a, T b) -> T {
  return static_cast<T>((Wide<T>(a) * Wide<T>(b)) >> width<T>);
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
constexpr auto plus = []<class T>(T a, T b, T c) -> T {  // mad
  return static_cast<T>(Unsigned<T>(Product{}(a, b)) + Unsigned<T>(c));
};
// A division by zero gives all ones, as GPUs do.
constexpr auto divide = []<class T>(T a, T b) -> T {
  if (b == 0) return static_cast<T>(-1);
  if (is_signed<T> && b == static_cast<T>(-1)) return static_cast<T>(0 - Unsigned<T>(a));
  return static_cast<T>(a / b);
};
constexpr auto remainder_of = []<class T>(T a, T b) -> T {
  if (b == 0) return a;
  if (is_signed<T> && b == static_cast<T>(-1)) return 0;
  return static_cast<T>(a % b);
};
constexpr auto shift_left = []<class T>(T a, u32 n) -> T {
  return n >= width<T> ? T{0} : static_cast<T>(Unsigned<T>(a) << n);
};
constexpr auto shift_right = []<class T>(T a, u32 n) -> T {
  if (n >= width<T>) return static_cast<T>(is_signed<T> && a < 0 ? -1 : 0);
  return static_cast<T>(a >> n);
};
template <bool left, bool wrap>
constexpr auto funnel_of = [](u32 low, u32 high, u32 n) -> u32 {
  n = wrap ? n & 31 : std::min(n, 32u);
  const u64 both = u64{high} << 32 | low;
  return static_cast<u32>(left ? n == 32 ? both : (both << n) >> 32 : both >> n);
};
template <bool clamp>
constexpr auto bit_mask = [](u32 first, u32 width) -> u32 {  // `width` ones from bit `first` on
  if (clamp && first > 31) return 0;
  const u32 end = (first & 31) + (clamp ? std::min(width, 32u) : width & 31);
  return (~0u << (first & 31)) & (end > 31 ? ~0u : (1u << end) - 1);
};
template <bool shift_amount>
constexpr auto find_bit = []<class T>(T a) -> u32 {
  const auto v = static_cast<std::make_unsigned_t<T>>(is_signed<T> && a < 0 ? ~a : a);
  const auto zeros = static_cast<u32>(std::countl_zero(v));
  return v == 0 ? ~0u : shift_amount ? zeros : width<T> - 1 - zeros;
};
template <class F>
Handler count(Type type, F) {  // u32 of a word
  return of_word(type, []<class T>(T) -> Handler { return each<F, u32, T>; });
}
constexpr auto add_difference = []<class T>(T a, T b, T c) -> T {  // sad
  return static_cast<T>(Unsigned<T>(a < b ? b : a) - Unsigned<T>(a < b ? a : b) + Unsigned<T>(c));
};
template <class F>
Handler three(F) {
  return each<F, u32, u32, u32, u32>;
}
// The product of so many pairs, added to c: of bytes, or of 16-bit values and the bytes from `first` on.
template <class A, class B, int pairs, int first>
constexpr auto dot_of = [](u32 a, u32 b, u32 c) -> u32 {
  for (int n = 0; n < pairs; ++n)
    c += static_cast<u32>(static_cast<A>(a >> n * width<A>) * static_cast<B>(b >> (first + n) * 8));
  return c;
};
template <class U, class S, int pairs, int first>
Handler dot(const Statement& s) {
  const bool a = s.op[s.op.size() - 2] == "s32", b = s.op.back() == "s32";
  if (a) return b ? three(dot_of<S, s8, pairs, first>) : three(dot_of<S, u8, pairs, first>);
  return b ? three(dot_of<U, s8, pairs, first>) : three(dot_of<U, u8, pairs, first>);
}
// The differences of bytes, or their sum added to c.
template <bool sum>
constexpr auto differences = [](u32 a, u32 b, u32 c) -> u32 {
  u32 all = 0;
  for (int at = 0; at < 32; at += 8) {
    const u32 x = a >> at & 0xff, y = b >> at & 0xff, difference = x < y ? y - x : x - y;
    if (sum) c += difference;
    else all |= difference << at;
  }
  return sum ? c : all;
};
constexpr auto extract = []<class T>(T a, u32 position, u32 length) -> T {  // bfe
  using V = std::make_unsigned_t<T>;
  position &= 0xff, length &= 0xff;
  if (length == 0) return 0;
  const u32 top = std::min(position + length - 1, width<T> - 1);
  const bool sign = is_signed<T> && (static_cast<V>(a) >> top & 1);
  const u32 have = position >= width<T> ? 0 : std::min(length, width<T> - position);
  const V mask = have >= width<T> ? ~V{0} : static_cast<V>((V{1} << have) - 1);
  const V value = position >= width<T> ? V{0} : static_cast<V>(static_cast<V>(a) >> position) & mask;
  return static_cast<T>(sign ? value | ~mask : value);
};
constexpr auto insert = []<class T>(T a, T b, u32 position, u32 length) -> T {  // bfi
  position &= 0xff, length &= 0xff;
  if (position >= width<T> || length == 0) return b;
  const T mask = static_cast<T>((length >= width<T> ? ~T{0} : (T{1} << length) - 1) << position);
  return static_cast<T>((b & ~mask) | ((a << position) & mask));
};
constexpr auto reverse = []<class T>(T a) -> T {
  T r = 0;
  for (unsigned n = 0; n < width<T>; ++n) r = static_cast<T>(r << 1 | (a >> n & 1));
  return r;
};
constexpr auto permute = [](u32 a, u32 b, u32 selection) -> u32 {
  const u64 both = u64{b} << 32 | a;
  u32 r = 0;
  for (int n = 0; n < 4; ++n) {
    const u32 s = selection >> (4 * n) & 15;
    u32 byte = static_cast<u32>(both >> (8 * (s & 7))) & 0xff;
    if (s & 8) byte = byte & 0x80 ? 0xff : 0;
    r |= byte << (8 * n);
  }
  return r;
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

template <class F>
Handler shift(Type type, F) {
  return of_integer(type, []<class T>(T) -> Handler { return each<F, T, T, u32>; });
}
template <class... More, class F>
Handler words(Type type, F) {  // of the same type as the result
  return of_word(type, []<class T>(T) -> Handler { return each<F, T, T, More...>; });
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
  if (s.is("hi")) return add ? integers<3>(type, plus<decltype(multiply_high)>) : integers<2>(type, multiply_high);
  return add ? bits<3>(type, plus<decltype(multiply_low)>) : bits<2>(type, multiply_low);
}
// add, sub and mad with the carry of the lane: it comes in if bit 0 of the immediate is set (addc), and goes out if bit
// 1 is (.cc).
enum class Sum { add, subtract, low, high };
template <class T, Sum sum>
void with_carry(Warp& w, const Instruction& i, u32 mask) {
  using U = std::make_unsigned_t<T>;
  using Twice = Wide<U>;
  constexpr bool product = sum == Sum::low || sum == Sum::high;
  U* const d = w.row<U>(i.d);
  const T *const a = w.row<T>(i.s[0]), *const b = w.row<T>(i.s[1]), *const c = product ? w.row<T>(i.s[2]) : nullptr;
  for (const int l : Lanes{mask}) {
    const u32 bit = 1u << l;
    const bool had = w.carry & bit;
    const Twice x = static_cast<U>(!product          ? a[l]
                                   : sum == Sum::low ? multiply_low(a[l], b[l])
                                                     : multiply_high(a[l], b[l]));
    const auto y = static_cast<U>(product ? c[l] : b[l]);
    const Twice result = sum == Sum::subtract ? x + static_cast<U>(~y) + (had || !(i.immediate & 1))
                                              : x + y + (had && (i.immediate & 1));
    d[l] = static_cast<U>(result);
    if (i.immediate & 2) w.carry = result >> width<T> & 1 ? w.carry | bit : w.carry & ~bit;
  }
}
template <Sum sum>
Handler carry(Type type) {
  return of_word(type, []<class T>(T) -> Handler { return with_carry<T, sum>; });
}
Handler funnel(const Statement& s) {
  const bool wrap = s.is("wrap");
  if (s.is("l")) return wrap ? three(funnel_of<true, true>) : three(funnel_of<true, false>);
  return wrap ? three(funnel_of<false, true>) : three(funnel_of<false, false>);
}

}  // namespace

Handler integer_handler(const Statement& s, Type type, Instruction& i) {
  const std::string_view op = s.op[0];
  if (s.is("sat")) return nullptr;
  const bool carry_in = op == "addc" || op == "subc" || op == "madc", carry_out = s.is("cc");
  if (carry_in || carry_out) {
    i.immediate = (carry_in ? 1u : 0u) | (carry_out ? 2u : 0u);
    if (op.starts_with("add")) return carry<Sum::add>(type);
    if (op.starts_with("sub")) return carry<Sum::subtract>(type);
    if (op.starts_with("mad")) return s.is("hi") ? carry<Sum::high>(type) : carry<Sum::low>(type);
  }
  if (op == "vabsdiff4") {
    if (std::ranges::count(s.op, "u32") != 3) return nullptr;
    return s.is("add") ? three(differences<true>) : three(differences<false>);
  }
  if (op == "add") return bits<2>(type, [](auto a, auto b) { return a + b; });
  if (op == "sub") return bits<2>(type, [](auto a, auto b) { return a - b; });
  if (op == "mul" || op == "mad") return multiply(s, type, op == "mad");
  if (op == "div") return integers<2>(type, divide);
  if (op == "rem") return integers<2>(type, remainder_of);
  if (op == "min") return integers<2>(type, [](auto a, auto b) { return a < b ? a : b; });
  if (op == "max") return integers<2>(type, [](auto a, auto b) { return a > b ? a : b; });
  if (op == "neg") return bits<1>(type, [](auto a) { return 0 - a; });
  if (op == "abs")
    return integers<1>(type, [](auto a) { return a < 0 ? 0 - Unsigned<decltype(a)>(a) : Unsigned<decltype(a)>(a); });
  if (op == "and") return bits<2>(type, [](auto a, auto b) { return a & b; });
  if (op == "or") return bits<2>(type, [](auto a, auto b) { return a | b; });
  if (op == "xor") return bits<2>(type, [](auto a, auto b) { return a ^ b; });
  if (op == "not") return bits<1>(type, [](auto a) { return ~a; });
  if (op == "shl") return shift(type, shift_left);
  if (op == "shr") return shift(type, shift_right);
  if (op == "shf") return funnel(s);
  if (op == "lop3") return lop3;
  if (op == "prmt") return three(permute);
  if (op == "popc") return count(type, [](auto a) { return std::popcount(Unsigned<decltype(a)>(a)); });
  if (op == "clz") return count(type, [](auto a) { return std::countl_zero(Unsigned<decltype(a)>(a)); });
  if (op == "bmsk")
    return s.is("clamp") ? each<decltype(bit_mask<true>), u32, u32, u32>
                         : each<decltype(bit_mask<false>), u32, u32, u32>;
  if (op == "bfind") return s.is("shiftamt") ? count(type, find_bit<true>) : count(type, find_bit<false>);
  if (op == "sad") return integers<3>(type, add_difference);
  if (op == "dp4a") return dot<u8, s8, 4, 0>(s);
  if (op == "dp2a") return s.is("hi") ? dot<u16, s16, 2, 2>(s) : dot<u16, s16, 2, 0>(s);
  if (op == "brev") return words(type, reverse);
  if (op == "bfe") return words<u32, u32>(type, extract);
  if (op == "bfi")
    return with_bytes(size_of(type), []<class T>(T) -> Handler { return each<decltype(insert), T, T, T, u32, u32>; });
  return nullptr;
}

}  // namespace emulated_gpu::ptx
