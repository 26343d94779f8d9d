// floats.hpp: the 16-bit and 8-bit floating-point types, and the rules of GPUs for f32. Internal to the interpreter.
#pragma once

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

// The nearest float whose mantissa is odd if `v` is no float: it may be rounded once more without error.
inline float to_odd(double v) {
  const float f = static_cast<float>(v);
  if (v != v || std::isinf(v) || static_cast<double>(f) == v) return f;
  u32 bits = std::bit_cast<u32>(f);
  if (std::fabs(static_cast<double>(f)) > std::fabs(v)) --bits;
  return std::bit_cast<float>(bits | 1);
}

struct half {
  u16 bits;
  static half of(float f) {  // to nearest even, without branches
    const u32 raw = std::bit_cast<u32>(f), sign = raw & 0x80000000u, v = raw ^ sign;
    constexpr u32 magic = 126u << 23;  // adding it shifts the bits of a subnormal number to their place
    const u32 subnormal = std::bit_cast<u32>(std::bit_cast<float>(v) + std::bit_cast<float>(magic)) - magic;
    const u32 normal = (v + 0xc8000fffu + (v >> 13 & 1)) >> 13;
    const u32 finite = v < 0x38800000u ? subnormal : normal;
    const u32 special = v > 0x7f800000u ? 0x7fffu : 0x7c00u | sign >> 16;
    return {static_cast<u16>(v >= 0x47800000u ? special : finite | sign >> 16)};
  }
  static half of(double d) { return of(to_odd(d)); }
  operator float() const {
    const u32 shifted = (bits & 0x7fffu) << 13, exponent = shifted & 0x0f800000u;
    const u32 normal = shifted + 0x38000000u;
    const float subnormal = std::bit_cast<float>(normal + 0x00800000u) - std::bit_cast<float>(0x38800000u);
    const u32 value = exponent == 0x0f800000u ? normal + 0x38000000u
                      : exponent              ? normal
                                              : std::bit_cast<u32>(subnormal);
    return std::bit_cast<float>(value | static_cast<u32>(bits & 0x8000u) << 16);
  }
};
struct bfloat {
  u16 bits;
  static bfloat of(float f) {
    const u32 b = std::bit_cast<u32>(f);
    return {static_cast<u16>(f != f ? 0x7fff : (b + 0x7fff + (b >> 16 & 1)) >> 16)};
  }
  static bfloat of(double d) { return of(to_odd(d)); }
  operator float() const { return std::bit_cast<float>(static_cast<u32>(bits) << 16); }
};
template <class T>
constexpr bool is_small = sizeof(T) == 2;

// A float of any type from its value, rounded once.
template <class T>
T float_of(double v) {
  if constexpr (is_small<T>) return T::of(v);
  else return static_cast<T>(v);
}

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

}  // namespace emulated_gpu::ptx
