// cvt.
#include "floats.hpp"
#include "handlers.hpp"

namespace emulated_gpu::ptx {
namespace {

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

// Returns f(T{}, R{}) for the integer type T in a register R of so many bytes, nullptr if it does not fit.
template <class F>
Handler with_integer(Type type, unsigned bytes, F f) {
  const auto in_register = [&]<class T>(T) {
    return with_bytes(bytes, [&]<class R>(R) -> Handler {
      if constexpr (sizeof(R) < sizeof(T)) return nullptr;
      else return f(T{}, R{});
    });
  };
  if (type == Type::u8) return in_register(u8{});
  return type == Type::s8 ? in_register(s8{}) : of_integer(type, in_register);
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

// The value of type S in a register of type R, as D; extended to the register Q.
template <class S, class D, bool sat>
constexpr auto as_integer = [](auto register_value) -> D {
  const S v = static_cast<S>(register_value);
  if constexpr (sat) {
    if (std::cmp_less(v, std::numeric_limits<D>::min())) return std::numeric_limits<D>::min();
    if (std::cmp_greater(v, std::numeric_limits<D>::max())) return std::numeric_limits<D>::max();
  }
  return static_cast<D>(v);
};

// GPUs saturate, and give 0 for a NaN, or the top bit for a NaN as 64 bits or of f64.
template <class S, class D, class Q>
void float_to_integer(Warp& w, const Instruction& i, u32 mask) {
  using F = std::conditional_t<std::is_same_v<S, double>, double, float>;
  Q* const d = w.row<Q>(i.d);
  const S* a = w.row<S>(i.s[0]);
  const auto rounding = static_cast<Rounding>(i.offset);
  constexpr F limit = F{2} * static_cast<F>(u64{1} << (8 * sizeof(D) - 2)) * (std::is_signed_v<D> ? F{1} : F{2});
  for (const int l : Lanes{mask}) {
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

// These run with the processor's rounding mode.
template <class S, class R, class D>
void integer_to_float(Warp& w, const Instruction& i, u32 mask) {
  D* const d = w.row<D>(i.d);
  const R* a = w.row<R>(i.s[0]);
  const auto rounding = static_cast<Rounding>(i.offset);
  for_lanes(mask, [&](int l) {
    const S v = static_cast<S>(a[l]);
    if constexpr (is_small<D>) d[l] = D::of(static_cast<double>(v), rounding);
    else d[l] = static_cast<D>(v);
  });
}
template <class S, class D, bool integers>
void float_to_float(Warp& w, const Instruction& i, u32 mask) {
  using F = std::conditional_t<std::is_same_v<S, double>, double, float>;
  D* const d = w.row<D>(i.d);
  const S* a = w.row<S>(i.s[0]);
  const bool ftz = i.immediate & ftz_flag, sat = i.immediate & sat_flag, finite = i.immediate & finite_flag;
  const auto rounding = static_cast<Rounding>(i.offset);
  for_lanes(mask, [&](int l) {
    F x = static_cast<F>(a[l]);
    if constexpr (std::is_same_v<F, float>)
      if (ftz) x = flushed(x);
    if constexpr (integers) x = integral(x, rounding);
    if (sat) x = clamped(x);
    if constexpr (is_small<D>) {
      d[l] = D::of(static_cast<double>(x), integers ? Rounding::nearest : rounding, finite);
    } else {
      const D v = canonical(static_cast<D>(x));
      if constexpr (std::is_same_v<D, float>) d[l] = ftz ? flushed(v) : v;
      else d[l] = v;
    }
  });
}

// cvt.rn.f16x2.f32 d, a, b: a becomes the upper half.
template <class T>
void pair_of_singles(Warp& w, const Instruction& i, u32 mask) {
  const float *a = w.row<float>(i.s[0]), *b = w.row<float>(i.s[1]);
  const auto one = [&](float x) {
    return T::of(static_cast<double>(x), static_cast<Rounding>(i.offset), i.immediate & finite_flag);
  };
  u32* const d = w.row<u32>(i.d);
  for_lanes(mask, [&](int l) { d[l] = pair_of(one(b[l]), one(a[l])); });
}

}  // namespace

Handler conversion_handler(const Statement& s, Type to, Type from, unsigned to_bytes, unsigned from_bytes,
                           Instruction& i) {
  i.immediate = flags_of(s);
  i.offset = static_cast<s64>(rounding_of(s));
  if (from == Type::f32 && to == Type::f16x2) return pair_of_singles<half>;
  if (from == Type::f32 && to == Type::bf16x2) return pair_of_singles<bfloat>;
  if (!is_fp(to) && !is_fp(from))
    return with_integer(from, from_bytes, [&]<class S, class R>(S, R) {
      return with_integer(to, to_bytes, [&]<class D, class Q>(D, Q) -> Handler {
        return s.is("sat") ? each<decltype(as_integer<S, D, true>), Q, R>
                           : each<decltype(as_integer<S, D, false>), Q, R>;
      });
    });
  if (!is_fp(to))
    return with_float(from, [&]<class S>(S) {
      return with_integer(to, to_bytes, []<class D, class Q>(D, Q) -> Handler { return float_to_integer<S, D, Q>; });
    });
  if (!is_fp(from))
    return with_integer(from, from_bytes, [&]<class S, class R>(S, R) {
      return with_float(to, [&]<class D>(D) { return with_rounding<integer_to_float<S, R, D>>(s); });
    });
  const bool integral = s.is("rni") || s.is("rzi") || s.is("rmi") || s.is("rpi");
  return with_float(from, [&]<class S>(S) {
    return with_float(to, [&]<class D>(D) {
      return integral ? float_to_float<S, D, true> : with_rounding<float_to_float<S, D, false>>(s);
    });
  });
}

}  // namespace emulated_gpu::ptx
