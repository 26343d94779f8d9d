// data_type.hpp: the types of elements and the reductions that MPI, NCCL and Gloo have in common.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>

namespace multinode {

namespace detail {
// Hidden, so that position-independent code can inline them.
[[gnu::visibility("hidden")]] std::uint16_t half_bits(float x);
[[gnu::visibility("hidden")]] float half_value(std::uint16_t bits);
[[gnu::visibility("hidden")]] std::uint16_t bfloat16_bits(float x);
[[gnu::visibility("hidden")]] float bfloat16_value(std::uint16_t bits);
}  // namespace detail

// 16-bit floating point. Conversions go through float and round to nearest, ties to even. A NaN keeps its sign and its
// leading bits, and becomes quiet.
template <std::uint16_t to_bits(float), float to_float(std::uint16_t)>
struct ShortFloat {
  std::uint16_t bits = 0;

  ShortFloat() = default;
  template <class Number>
  explicit ShortFloat(Number x) : bits(to_bits(static_cast<float>(x))) {}
  template <class Number>
  explicit operator Number() const {
    return static_cast<Number>(to_float(bits));
  }
  friend bool operator==(ShortFloat x, ShortFloat y) { return static_cast<float>(x) == static_cast<float>(y); }
};
using half = ShortFloat<detail::half_bits, detail::half_value>;              // IEEE 754 binary16
using bfloat16 = ShortFloat<detail::bfloat16_bits, detail::bfloat16_value>;  // the upper half of a float

enum class DataType { float32, float64, float16, bfloat16, int8, uint8, int32, uint32, int64, uint64 };
// Their C++ types, in the same order.
using ElementTypes = std::tuple<float, double, half, bfloat16, std::int8_t, std::uint8_t, std::int32_t, std::uint32_t,
                                std::int64_t, std::uint64_t>;
inline constexpr std::array data_types = {DataType::float32, DataType::float64, DataType::float16, DataType::bfloat16,
                                          DataType::int8,    DataType::uint8,   DataType::int32,   DataType::uint32,
                                          DataType::int64,   DataType::uint64};

// average: the sum divided by the number of ranks (integers round towards 0)
enum class Reduction { sum, product, min, max, average };
inline constexpr std::array reductions = {Reduction::sum, Reduction::product, Reduction::min, Reduction::max,
                                          Reduction::average};

std::size_t size_of(DataType type);  // bytes per element
std::string_view name_of(DataType type);
std::string_view name_of(Reduction reduction);

// Calls `function` with a zero of the C++ type and returns its result:
// with_type(type, [&]<class T>(T) { ... }).
template <std::size_t i = 0, class Function>
decltype(auto) with_type(DataType type, Function&& function) {
  if (type == static_cast<DataType>(i)) return function(std::tuple_element_t<i, ElementTypes>{});
  if constexpr (i + 1 < std::tuple_size_v<ElementTypes>) return with_type<i + 1>(type, function);
  throw std::invalid_argument("no such data type: " + std::to_string(static_cast<int>(type)));
}

template <class T, std::size_t i = 0>
constexpr DataType data_type_of() {
  static_assert(i < std::tuple_size_v<ElementTypes>, "no DataType for this type");
  if constexpr (std::is_same_v<std::remove_const_t<T>, std::tuple_element_t<i, ElementTypes>>)
    return static_cast<DataType>(i);
  else
    return data_type_of<T, i + 1>();
}

// Convert between float and the 16-bit types, rounding to nearest, ties to even; eight at a time if the processor can.
// Both spans must have the same length.
void convert(std::span<const float> from, std::span<half> to);
void convert(std::span<const float> from, std::span<bfloat16> to);
void convert(std::span<const half> from, std::span<float> to);
void convert(std::span<const bfloat16> from, std::span<float> to);

// out[i] = x[i] (reduction) y[i] for `count` elements; average adds. out may be x or y. half and bfloat16 are computed
// in float and rounded once; integers wrap around. min and max are NaN if x or y is, and order -0 before 0. The same x
// and y in the same order give the same bits on every rank; for min and max in either order.
void combine(DataType type, Reduction reduction, void* out, const void* x, const void* y, std::size_t count);

// data[i] /= divisor, the last step of an average. half and bfloat16 are divided in float; integers round towards 0.
void divide(DataType type, void* data, std::size_t count, int divisor);

}  // namespace multinode
