// SPDX-License-Identifier: Apache-2.0
#include <multinode/communicator/data_type.hpp>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

namespace multinode {

namespace {

// The type in which sums and products are computed: for integers the unsigned one, which wraps around.
template <class T, bool integer = std::is_integral_v<T>>
struct Arithmetic : std::make_unsigned<T> {};
template <class T>
struct Arithmetic<T, false> : std::type_identity<T> {};

// The lesser or the greater of x and y, with the same bits in either order of them, because ranks may combine in
// different orders: NaN if one is NaN, and -0 before 0.
template <bool greater, class T>
T extreme(T x, T y) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(x) || std::isnan(y)) return std::numeric_limits<T>::quiet_NaN();
    if (x == y) return std::signbit(x) == greater ? y : x;
  }
  return (y < x) == greater ? x : y;
}

template <class T>
void combine_as(Reduction reduction, T* out, const T* x, const T* y, std::size_t count) {
  using A = typename Arithmetic<T>::type;
  switch (reduction) {
    case Reduction::sum:
    case Reduction::average:
      for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<T>(static_cast<A>(x[i]) + static_cast<A>(y[i]));
      break;
    case Reduction::product:
      for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<T>(static_cast<A>(x[i]) * static_cast<A>(y[i]));
      break;
    case Reduction::min:
      for (std::size_t i = 0; i < count; ++i) out[i] = extreme<false>(x[i], y[i]);
      break;
    case Reduction::max:
      for (std::size_t i = 0; i < count; ++i) out[i] = extreme<true>(x[i], y[i]);
      break;
  }
}

// The 16-bit types: in float, in pieces that fit the L1 cache.
template <class T>
void combine_short(Reduction reduction, T* out, const T* x, const T* y, std::size_t count) {
  constexpr std::size_t piece = 1024;
  float xs[piece], ys[piece];
  for (std::size_t n = 0; count; x += n, y += n, out += n, count -= n) {
    n = std::min(piece, count);
    convert({x, n}, std::span(xs, n));
    convert({y, n}, std::span(ys, n));
    combine_as(reduction, xs, xs, ys, n);
    convert(std::span<const float>(xs, n), {out, n});
  }
}

#if defined(__x86_64__)
bool has_f16c() {
  static const bool has = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __builtin_cpu_supports("avx") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
  }();
  return has;
}

// Converts the largest multiple of eight elements; returns their number.
[[gnu::target("avx,f16c")]] std::size_t convert_eights(std::span<const float> from, std::span<half> to) {
  std::size_t i = 0;
  for (; i + 8 <= from.size(); i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(&to[i]),
                     _mm256_cvtps_ph(_mm256_loadu_ps(&from[i]), _MM_FROUND_TO_NEAREST_INT));
  return i;
}
[[gnu::target("avx,f16c")]] std::size_t convert_eights(std::span<const half> from, std::span<float> to) {
  std::size_t i = 0;
  for (; i + 8 <= from.size(); i += 8)
    _mm256_storeu_ps(&to[i], _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(&from[i]))));
  return i;
}
template <class From, class To>
std::size_t convert_f16c(From from, To to) {
  return has_f16c() ? convert_eights(from, to) : 0;
}
#else
template <class From, class To>
std::size_t convert_f16c(From, To) {
  return 0;
}
#endif

// Converts the elements from number i on.
template <class From, class To>
void convert_from(std::size_t i, std::span<const From> from, std::span<To> to) {
  for (; i < from.size(); ++i) to[i] = static_cast<To>(from[i]);
}

}  // namespace

std::uint16_t detail::half_bits(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
  const auto with_sign = [sign](std::uint32_t rest) { return static_cast<std::uint16_t>(sign | rest); };
  if (magnitude > 0x7f800000) return with_sign(0x7e00 | ((magnitude >> 13) & 0x3ff));  // NaN
  if (magnitude >= std::bit_cast<std::uint32_t>(0x1p16f)) return with_sign(0x7c00);    // infinity
  // A subnormal half is a multiple of 2^-24, the spacing of the floats from 0.5 to 1, so adding 0.5 rounds to it.
  if (magnitude < std::bit_cast<std::uint32_t>(0x1p-14f))
    return with_sign(std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) -
                     std::bit_cast<std::uint32_t>(0.5f));
  // The exponents' biases are 127 and 15. A carry out of the fraction goes into the exponent, up to infinity.
  return with_sign((magnitude - ((127 - 15) << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13);
}

float detail::half_value(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits} >> 15 << 31, rest = bits & 0x7fff;
  if (rest > 0x7c00) return std::bit_cast<float>(sign | 0x7fc00000 | (rest & 0x3ff) << 13);  // NaN
  const float value = rest == 0x7c00  ? HUGE_VALF
                      : rest >= 0x400 ? std::bit_cast<float>((rest << 13) + ((127 - 15) << 23))
                                      : static_cast<float>(rest) * 0x1p-24f;  // subnormal
  return std::copysign(value, std::bit_cast<float>(sign));
}

std::uint16_t detail::bfloat16_bits(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const std::uint32_t nan = (bits >> 16) | 0x40;
  return static_cast<std::uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

float detail::bfloat16_value(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

void convert(std::span<const float> from, std::span<half> to) { convert_from(convert_f16c(from, to), from, to); }
void convert(std::span<const half> from, std::span<float> to) { convert_from(convert_f16c(from, to), from, to); }
void convert(std::span<const float> from, std::span<bfloat16> to) { convert_from(0, from, to); }
void convert(std::span<const bfloat16> from, std::span<float> to) { convert_from(0, from, to); }

std::size_t size_of(DataType type) {
  return with_type(type, [](auto x) { return sizeof x; });
}

std::string_view name_of(DataType type) {
  static constexpr const char* names[] = {"float", "double", "half",   "bfloat16", "int8",
                                          "uint8", "int32",  "uint32", "int64",    "uint64"};
  return names[static_cast<std::size_t>(type)];
}

std::string_view name_of(Reduction reduction) {
  static constexpr const char* names[] = {"sum", "product", "min", "max", "average"};
  return names[static_cast<std::size_t>(reduction)];
}

void combine(DataType type, Reduction reduction, void* out, const void* x, const void* y, std::size_t count) {
  with_type(type, [&]<class T>(T) {
    if constexpr (std::is_same_v<T, half> || std::is_same_v<T, bfloat16>)
      combine_short(reduction, static_cast<T*>(out), static_cast<const T*>(x), static_cast<const T*>(y), count);
    else
      combine_as(reduction, static_cast<T*>(out), static_cast<const T*>(x), static_cast<const T*>(y), count);
  });
}

void divide(DataType type, void* data, std::size_t count, int divisor) {
  with_type(type, [&]<class T>(T) {
    using A =
        std::conditional_t<std::is_integral_v<T>, std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>,
                           std::conditional_t<std::is_same_v<T, double>, double, float>>;
    T* elements = static_cast<T*>(data);
    for (std::size_t i = 0; i < count; ++i)
      elements[i] = static_cast<T>(static_cast<A>(elements[i]) / static_cast<A>(divisor));
  });
}

}  // namespace multinode
