// cvt.
#include "floats.hpp"
#include "handlers.hpp"

namespace emulated_gpu::ptx {
namespace {

struct Format {  // of a small float
  int exponent_bits, mantissa_bits;
  bool infinity;  // e4m3 has none
};
constexpr Format f16_format{5, 10, true}, bf16_format{8, 7, true}, e4m3_format{4, 3, false}, e5m2_format{5, 2, true};

// The bits of `v` in a small format, rounded once; `saturate` gives the largest number instead of infinity.
u32 narrowed(double v, const Format& f, Rounding rounding, bool saturate) {
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const u32 top = (1u << f.exponent_bits) - 1, infinity = top << f.mantissa_bits;
  const u32 largest = f.infinity ? infinity - 1 : (infinity | ((1u << f.mantissa_bits) - 1)) - 1;
  if (v != v) return f.exponent_bits + f.mantissa_bits == 7 ? 0x7f : 0x7fff;
  const bool negative = std::signbit(v);
  const u32 sign = u32{negative} << (f.exponent_bits + f.mantissa_bits);
  const double size = std::fabs(v);
  const bool away = rounding == (negative ? Rounding::down : Rounding::up);
  const auto overflow = [&] {
    const bool clamp = saturate || (!std::isinf(v) && rounding != Rounding::nearest && !away);
    return sign | (clamp ? largest : f.infinity ? infinity : largest + 1);
  };
  if (std::isinf(v)) return overflow();
  if (size == 0) return sign;
  const int exponent = std::max(std::ilogb(size), 1 - bias);
  const double scaled = std::ldexp(size, f.mantissa_bits - exponent), whole = std::floor(scaled), rest = scaled - whole;
  auto mantissa = static_cast<u64>(whole);
  if (rounding == Rounding::nearest ? rest > 0.5 || (rest == 0.5 && (mantissa & 1)) : away && rest > 0) ++mantissa;
  // The hidden bit of a normal number adds one to the exponent, and so does a carry.
  const u64 bits = (static_cast<u64>(exponent + bias - 1) << f.mantissa_bits) + mantissa;
  return bits > largest ? overflow() : sign | static_cast<u32>(bits);
}
float widened(u32 bits, const Format& f) {
  const u32 mantissa = bits & ((1u << f.mantissa_bits) - 1);
  const u32 exponent = bits >> f.mantissa_bits & ((1u << f.exponent_bits) - 1), top = (1u << f.exponent_bits) - 1;
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const bool negative = bits >> (f.exponent_bits + f.mantissa_bits) & 1;
  float v = 0;
  if (exponent == top && (f.infinity || mantissa == (1u << f.mantissa_bits) - 1))
    v = f.infinity && mantissa == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  else
    v = std::ldexp(static_cast<float>(mantissa + (exponent ? 1u << f.mantissa_bits : 0)),
                   static_cast<int>(exponent ? exponent : 1) - bias - f.mantissa_bits);
  return negative ? -v : v;
}

// The modifiers, in Instruction::immediate
constexpr u64 ftz_flag = 1, sat_flag = 2, finite_flag = 4;
u64 flags_of(const Statement& s) {
  return (s.is("ftz") ? ftz_flag : 0) | (s.is("sat") ? sat_flag : 0) | (s.is("satfinite") ? finite_flag : 0);
}
Rounding rounding_of(const Statement& s) {
  if (s.is("rz") || s.is("rzi")) return Rounding::zero;
  if (s.is("rm") || s.is("rmi")) return Rounding::down;
  return s.is("rp") || s.is("rpi") ? Rounding::up : Rounding::nearest;
}
template <class F>
F integral(F v, Rounding rounding) {
  switch (rounding) {
    case Rounding::zero: return std::trunc(v);
    case Rounding::down: return std::floor(v);
    case Rounding::up: return std::ceil(v);
    default: return std::nearbyint(v);
  }
}

template <class F>
Handler with_integer(Type type, F f) {
  if (type == Type::u8) return f(u8{});
  return type == Type::s8 ? f(s8{}) : of_integer(type, f);
}
template <class F>
Handler with_float(Type type, F f) {
  switch (type) {
    case Type::f16: return f(half{});
    case Type::bf16: return f(bfloat{});
    case Type::f32: return f(float{});
    case Type::f64: return f(double{});
    default: return nullptr;
  }
}
template <class F>
Handler with_bytes(unsigned bytes, F f) {
  switch (bytes) {
    case 2: return f(u16{});
    case 4: return f(u32{});
    case 8: return f(u64{});
    default: return nullptr;
  }
}

// The value of type S in a register of type R, as D; extended to the register Q.
template <class S, class D, bool sat>
struct Integers {
  template <class R>
  D operator()(R register_value) const {
    const S v = static_cast<S>(register_value);
    if constexpr (sat) {
      if (std::cmp_less(v, std::numeric_limits<D>::min())) return std::numeric_limits<D>::min();
      if (std::cmp_greater(v, std::numeric_limits<D>::max())) return std::numeric_limits<D>::max();
    }
    return static_cast<D>(v);
  }
};
Handler integers_to_integers(Type to, Type from, unsigned to_bytes, unsigned from_bytes, bool sat) {
  return with_integer(from, [&]<class S>(S) {
    return with_bytes(from_bytes, [&]<class R>(R) -> Handler {
      if constexpr (sizeof(R) < sizeof(S)) {
        return nullptr;
      } else {
        return with_integer(to, [&]<class D>(D) {
          return with_bytes(to_bytes, [&]<class Q>(Q) -> Handler {
            if constexpr (sizeof(Q) < sizeof(D)) return nullptr;
            else return sat ? each<Integers<S, D, true>, Q, R> : each<Integers<S, D, false>, Q, R>;
          });
        });
      }
    });
  });
}

// GPUs saturate, and give 0 for a NaN, or the top bit for a NaN as 64 bits or of f64.
template <class S, class D, class Q>
void float_to_integer(Warp& w, const Instruction& i, u32 mask) {
  using F = std::conditional_t<std::is_same_v<S, double>, double, float>;
  Q* const d = w.row<Q>(i.d);
  const S* a = w.row<S>(i.s[0]);
  const auto rounding = static_cast<Rounding>(i.offset);
  constexpr F limit = F{2} * static_cast<F>(u64{1} << (8 * sizeof(D) - 2)) * (std::is_signed_v<D> ? F{1} : F{2});
  for (; mask; mask &= mask - 1) {
    const int l = std::countr_zero(mask);
    F x = static_cast<F>(a[l]);
    if constexpr (std::is_same_v<F, float>)
      if (i.immediate & ftz_flag) x = flushed(x);
    x = integral(x, rounding);
    D v;
    if (x != x) v = sizeof(D) < 8 && !std::is_same_v<S, double> ? D{0} : static_cast<D>(u64{1} << (8 * sizeof(D) - 1));
    else if (x >= limit) v = std::numeric_limits<D>::max();
    else if (x <= static_cast<F>(std::numeric_limits<D>::min())) v = std::numeric_limits<D>::min();
    else v = static_cast<D>(x);
    d[l] = static_cast<Q>(v);
  }
}

// With a rounding mode other than to nearest: through double with rounding to odd, then by hand.
template <class D>
D directed(double v, Rounding rounding) {
  if constexpr (std::is_same_v<D, half>) return {static_cast<u16>(narrowed(v, f16_format, rounding, false))};
  if constexpr (std::is_same_v<D, bfloat>) return {static_cast<u16>(narrowed(v, bf16_format, rounding, false))};
  if constexpr (std::is_same_v<D, float>) {
    float f = static_cast<float>(v);
    const bool toward_zero = rounding == Rounding::zero || rounding == (v > 0 ? Rounding::down : Rounding::up);
    if (v != v || static_cast<double>(f) == v || std::isinf(v)) return f;
    const bool smaller = std::fabs(static_cast<double>(f)) < std::fabs(v);
    if (smaller != toward_zero)
      f = std::nextafter(f, toward_zero ? 0.0f : static_cast<float>(std::copysign(HUGE_VAL, v)));
    return f;
  }
  return float_of<D>(v);
}
template <class S, class R, class D>
void integer_to_float(Warp& w, const Instruction& i, u32 mask) {
  D* const d = w.row<D>(i.d);
  const R* a = w.row<R>(i.s[0]);
  const auto rounding = static_cast<Rounding>(i.offset);
  if (rounding == Rounding::nearest) {
    for_lanes(mask, [&](int l) {
      if constexpr (is_small<D>) d[l] = D::of(static_cast<double>(static_cast<S>(a[l])));
      else d[l] = static_cast<D>(static_cast<S>(a[l]));
    });
    return;
  }
  for (; mask; mask &= mask - 1) {
    const int l = std::countr_zero(mask);
    const S v = static_cast<S>(a[l]);
    __extension__ using Long = long double;  // holds 64 bits
    const Long exact = static_cast<Long>(v);
    double near = static_cast<double>(exact);
    if constexpr (std::is_same_v<D, double>) {
      const bool above = static_cast<Long>(near) > exact, below = static_cast<Long>(near) < exact;
      const bool down = rounding == Rounding::down || (rounding == Rounding::zero && exact > 0);
      if (above && down) near = std::nextafter(near, -HUGE_VAL);
      if (below && !down) near = std::nextafter(near, HUGE_VAL);
      d[l] = near;
    } else {
      if (static_cast<Long>(near) != exact) {  // to odd
        u64 raw = std::bit_cast<u64>(near);
        if (std::fabs(static_cast<Long>(near)) > std::fabs(exact)) --raw;
        near = std::bit_cast<double>(raw | 1);
      }
      d[l] = directed<D>(near, rounding);
    }
  }
}
template <class S, class D, bool integers>
void float_to_float(Warp& w, const Instruction& i, u32 mask) {
  using F = std::conditional_t<std::is_same_v<S, double>, double, float>;
  D* const d = w.row<D>(i.d);
  const S* a = w.row<S>(i.s[0]);
  const u64 flags = i.immediate;
  const auto rounding = static_cast<Rounding>(i.offset);
  if (!integers && flags == 0 && rounding == Rounding::nearest) {
    for_lanes(mask, [&](int l) {
      if constexpr (std::is_same_v<D, half> || std::is_same_v<D, bfloat>) d[l] = D::of(static_cast<F>(a[l]));
      else d[l] = canonical(static_cast<D>(static_cast<F>(a[l])));
    });
    return;
  }
  for (; mask; mask &= mask - 1) {
    const int l = std::countr_zero(mask);
    F x = static_cast<F>(a[l]);
    if constexpr (std::is_same_v<F, float>)
      if (flags & ftz_flag) x = flushed(x);
    if (integers) x = integral(x, rounding);
    if (flags & sat_flag) x = clamped(x);
    D v = rounding == Rounding::nearest || integers ? float_of<D>(x) : directed<D>(x, rounding);
    if constexpr (std::is_same_v<D, float>) {
      if (flags & ftz_flag) v = flushed(v);
      v = canonical(v);
    }
    if constexpr (is_small<D>)
      if (flags & finite_flag && std::isinf(static_cast<float>(v))) --v.bits;
    d[l] = v;
  }
}

// cvt.rn.f16x2.f32 d, a, b: a becomes the upper half. The same for the pairs of 8-bit floats.
template <Type to>
void pair_of_singles(Warp& w, const Instruction& i, u32 mask) {
  constexpr bool small = to == Type::e4m3x2 || to == Type::e5m2x2;
  constexpr Format format = to == Type::f16x2    ? f16_format
                            : to == Type::bf16x2 ? bf16_format
                            : to == Type::e4m3x2 ? e4m3_format
                                                 : e5m2_format;
  const float *a = w.row<float>(i.s[0]), *b = w.row<float>(i.s[1]);
  const auto rounding = static_cast<Rounding>(i.offset);
  const auto one = [&](float x) {
    if (rounding == Rounding::nearest && !(i.immediate & finite_flag)) {
      if (to == Type::f16x2) return u32{half::of(x).bits};
      if (to == Type::bf16x2) return u32{bfloat::of(x).bits};
    }
    return narrowed(x, format, rounding, i.immediate & finite_flag);
  };
  using D = std::conditional_t<small, u16, u32>;
  D* const d = w.row<D>(i.d);
  for_lanes(mask, [&](int l) { d[l] = static_cast<D>(one(a[l]) << (small ? 8 : 16) | one(b[l])); });
}
template <Type to>
void halves_to_bytes(Warp& w, const Instruction& i, u32 mask) {
  constexpr Format format = to == Type::e4m3x2 ? e4m3_format : e5m2_format;
  u16* const d = w.row<u16>(i.d);
  const u32* a = w.row<u32>(i.s[0]);
  const auto one = [&](float x) { return narrowed(x, format, Rounding::nearest, true); };
  for_lanes(mask, [&](int l) { d[l] = static_cast<u16>(one(part<half>(a[l], 1)) << 8 | one(part<half>(a[l], 0))); });
}
template <Type from>
void bytes_to_halves(Warp& w, const Instruction& i, u32 mask) {
  constexpr Format format = from == Type::e4m3x2 ? e4m3_format : e5m2_format;
  u32* const d = w.row<u32>(i.d);
  const u16* a = w.row<u16>(i.s[0]);
  const auto one = [&](u32 bits) { return half::of(widened(bits, format)); };
  for_lanes(mask, [&](int l) { d[l] = pair_of(one(a[l] & 0xffu), one(a[l] >> 8 & 0xffu)); });
}

bool is_float(Type type) { return type == Type::f16 || type == Type::bf16 || type == Type::f32 || type == Type::f64; }

}  // namespace

Handler conversion_handler(const Statement& s, Type to, Type from, unsigned to_bytes, unsigned from_bytes,
                           Instruction& i) {
  i.immediate = flags_of(s);
  i.offset = static_cast<s64>(rounding_of(s));
  if (from == Type::f32 && to == Type::f16x2) return pair_of_singles<Type::f16x2>;
  if (from == Type::f32 && to == Type::bf16x2) return pair_of_singles<Type::bf16x2>;
  if (from == Type::f32 && to == Type::e4m3x2) return pair_of_singles<Type::e4m3x2>;
  if (from == Type::f32 && to == Type::e5m2x2) return pair_of_singles<Type::e5m2x2>;
  if (from == Type::f16x2 && to == Type::e4m3x2) return halves_to_bytes<Type::e4m3x2>;
  if (from == Type::f16x2 && to == Type::e5m2x2) return halves_to_bytes<Type::e5m2x2>;
  if (from == Type::e4m3x2 && to == Type::f16x2) return bytes_to_halves<Type::e4m3x2>;
  if (from == Type::e5m2x2 && to == Type::f16x2) return bytes_to_halves<Type::e5m2x2>;
  if (!is_float(to) && !is_float(from)) return integers_to_integers(to, from, to_bytes, from_bytes, s.is("sat"));
  if (!is_float(to))
    return with_float(from, [&]<class S>(S) {
      return with_integer(to, [&]<class D>(D) {
        return with_bytes(to_bytes, [&]<class Q>(Q) -> Handler {
          if constexpr (sizeof(Q) < sizeof(D)) return nullptr;
          else return float_to_integer<S, D, Q>;
        });
      });
    });
  if (!is_float(from))
    return with_integer(from, [&]<class S>(S) {
      return with_bytes(from_bytes, [&]<class R>(R) -> Handler {
        if constexpr (sizeof(R) < sizeof(S)) return nullptr;
        else return with_float(to, [&]<class D>(D) -> Handler { return integer_to_float<S, R, D>; });
      });
    });
  const bool integral = s.is("rni") || s.is("rzi") || s.is("rmi") || s.is("rpi");
  return with_float(from, [&]<class S>(S) {
    return with_float(
        to, [&]<class D>(D) -> Handler { return integral ? float_to_float<S, D, true> : float_to_float<S, D, false>; });
  });
}

}  // namespace emulated_gpu::ptx
