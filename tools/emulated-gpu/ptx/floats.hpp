// floats.hpp: the 16-bit floating-point types, and the rules of GPUs for f32. Internal to the interpreter.
#pragma once

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <limits>
#include <type_traits>

#include "interpreter.hpp"

namespace emulated_gpu::ptx {

enum class Rounding : u8 { nearest, zero, down, up };

// GPUs return one NaN for f32.
inline float canonical(float v) { return v != v ? std::bit_cast<float>(0x7fffffffu) : v; }
inline double canonical(double v) { return v; }
inline float flushed(float v) { return std::fabs(v) < std::numeric_limits<float>::min() ? std::copysign(0.0f, v) : v; }

template <int exponent_bits, int mantissa_bits>
struct Float16 {
  static constexpr int bias = (1 << (exponent_bits - 1)) - 1;
  static constexpr u32 infinity = ((1u << exponent_bits) - 1) << mantissa_bits;
  u16 bits;

  // `v` rounded once; `saturate` gives the largest number instead of infinity.
  static Float16 of(double v, Rounding rounding = Rounding::nearest, bool saturate = false) {
    const u64 raw = std::bit_cast<u64>(v), mantissa = (raw & ((u64{1} << 52) - 1)) | u64{1} << 52;
    const bool negative = raw >> 63;
    const int exponent = static_cast<int>(raw >> 52 & 0x7ff) - 1023, least = 1 - bias;
    // The bits that do not fit. The hidden bit of a normal number adds one to the exponent, and so does a carry.
    const int out = std::min(52 - mantissa_bits + std::max(least - exponent, 0), 63);
    const u64 rest = mantissa << (64 - out), half = u64{1} << 63;
    u64 value = (static_cast<u64>(std::max(exponent, least) + bias - 1) << mantissa_bits) + (mantissa >> out);
    const bool away = rounding == (negative ? Rounding::down : Rounding::up);
    value += rounding == Rounding::nearest ? rest > half || (rest == half && (value & 1)) : away && rest != 0;
    if (value >= infinity) {
      const bool finite = saturate || (exponent < 1024 && rounding != Rounding::nearest && !away);
      value = infinity - finite;
    }
    if (v != v) return {0x7fff};
    return {static_cast<u16>((v == 0 ? 0 : value) | u32{negative} << 15)};
  }
  operator float() const {
    const u32 sign = (bits & 0x8000u) << 16, rest = (bits & 0x7fffu) << (23 - mantissa_bits);
    // As a float it would have a smaller exponent.
    constexpr float scale = std::bit_cast<float>(static_cast<u32>(127 + 127 - bias) << 23);
    const float finite = std::bit_cast<float>(sign | rest) * scale;
    return (bits & 0x7fffu) >= infinity ? std::bit_cast<float>(sign | 0x7f800000u | rest) : finite;
  }
};
using half = Float16<5, 10>;
using bfloat = Float16<8, 7>;
template <class T>
constexpr bool is_small = sizeof(T) == 2;

// a * b + c, rounded once. The product is exact in double; the sum is rounded to odd there.
template <class T>
T fused(T a, T b, T c) {
  const double product = static_cast<double>(static_cast<float>(a)) * static_cast<double>(static_cast<float>(b));
  const double addend = static_cast<float>(c);
  double sum = product + addend;
  const double part = sum - product, error = (product - (sum - part)) + (addend - part);
  if (error != 0 && std::isfinite(sum)) {
    u64 raw = std::bit_cast<u64>(sum);
    if ((error > 0) != (sum > 0)) --raw;  // towards zero
    sum = std::bit_cast<double>(raw | 1);
  }
  return T::of(sum);
}

// Two 16-bit floats in a word.
template <class T>
T part(u32 pair, int n) {
  return {static_cast<u16>(pair >> 16 * n)};
}
template <class T>
u32 pair_of(T low, T high) {
  return static_cast<u32>(high.bits) << 16 | low.bits;
}

template <class T>
T clamped(T v) {  // .sat
  return v > 0 ? (v < 1 ? v : T{1}) : T{0};
}

// Carries out `handler` with a rounding mode of the processor.
template <Handler handler, Rounding rounding>
void rounded(Warp& w, const Instruction& i, u32 mask) {
  constexpr int modes[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
  std::fesetround(modes[static_cast<int>(rounding)]);
  asm volatile("" ::: "memory");  // keeps the arithmetic between the changes of the mode
  handler(w, i, mask);
  asm volatile("" ::: "memory");
  std::fesetround(FE_TONEAREST);
}
template <Handler handler>
Handler with_rounding(const Statement& s) {
  if (s.is("rz")) return rounded<handler, Rounding::zero>;
  if (s.is("rm")) return rounded<handler, Rounding::down>;
  if (s.is("rp")) return rounded<handler, Rounding::up>;
  return handler;
}

}  // namespace emulated_gpu::ptx
