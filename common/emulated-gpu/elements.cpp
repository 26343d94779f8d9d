#include "elements.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>

namespace emulated_gpu {

using multinode::DataType;
using multinode::Reduction;

namespace {

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 0)
// An 8-bit float, converted through half as in NCCL.
template <__nv_fp8_interpretation_t format>
struct Float8 {
  __nv_fp8_storage_t bits = 0;

  Float8() = default;
  explicit Float8(float x) {
    __half_raw half;
    half.x = multinode::half(x).bits;
    bits = __nv_cvt_halfraw_to_fp8(half, __NV_SATFINITE, format);
  }
  explicit operator float() const {
    multinode::half half;
    half.bits = __nv_cvt_fp8_to_halfraw(bits, format).x;
    return static_cast<float>(half);
  }
};
#endif

// Those types that MPI and Gloo also have.
std::optional<DataType> common_type(ncclDataType_t type) {
  constexpr std::array in_our_order = {ncclFloat32, ncclFloat64, ncclFloat16, ncclBfloat16, ncclInt8,
                                       ncclUint8,   ncclInt32,   ncclUint32,  ncclInt64,    ncclUint64};
  const auto found = std::ranges::find(in_our_order, type);
  if (found == in_our_order.end()) return std::nullopt;
  return multinode::data_types[static_cast<std::size_t>(found - in_our_order.begin())];
}

// Calls function() with a zero of the C++ type.
template <class Function>
decltype(auto) with_type(ncclDataType_t type, Function&& function) {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 0)
  if (type == ncclFloat8e4m3) return function(Float8<__NV_E4M3>());
  if (type == ncclFloat8e5m2) return function(Float8<__NV_E5M2>());
#endif
  return multinode::with_type(common_type(type).value(), function);
}

float combined(Reduction reduction, float x, float y) {
  switch (reduction) {
    case Reduction::product:
      return x * y;
    case Reduction::min:
      return std::fmin(x, y);
    case Reduction::max:
      return std::fmax(x, y);
    default:
      return x + y;
  }
}

}  // namespace

std::size_t size_of(ncclDataType_t type) {
  if (type < 0 || type >= ncclNumTypes) return 0;
  return with_type(type, [](auto x) { return sizeof x; });
}

std::string name_of(ncclDataType_t type) {
  if (const auto common = common_type(type)) return std::string(multinode::name_of(*common));
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 0)
  if (type == ncclFloat8e4m3) return "float8e4m3";
  if (type == ncclFloat8e5m2) return "float8e5m2";
#endif
  return "type " + std::to_string(static_cast<int>(type));
}

void combine(ncclDataType_t type, Reduction reduction, void* inout, const void* in, std::size_t count) {
  if (const auto common = common_type(type)) return multinode::combine(*common, reduction, inout, inout, in, count);
  with_type(type, [&]<class T>(T) {
    T* const to = static_cast<T*>(inout);
    const T* const from = static_cast<const T*>(in);
    for (std::size_t i = 0; i < count; ++i)
      to[i] = static_cast<T>(combined(reduction, static_cast<float>(to[i]), static_cast<float>(from[i])));
  });
}

void multiply(ncclDataType_t type, void* data, std::size_t count, Scalar factor) {
  with_type(type, [&]<class T>(T typed_factor) {
    std::memcpy(static_cast<void*>(&typed_factor), &factor, sizeof typed_factor);
    for (T& element : std::span(static_cast<T*>(data), count))
      if constexpr (std::is_integral_v<T>) {
        using Unsigned = std::make_unsigned_t<T>;
        element = static_cast<T>(static_cast<Unsigned>(element) * static_cast<Unsigned>(typed_factor));
      } else if constexpr (std::is_same_v<T, double>) {
        element *= typed_factor;
      } else {
        element = static_cast<T>(static_cast<float>(element) * static_cast<float>(typed_factor));
      }
  });
}

bool averages_by_factor(ncclDataType_t type) {
  return with_type(type, []<class T>(T) { return !std::is_integral_v<T>; });
}

Scalar one_over(ncclDataType_t type, int ranks) {
  return with_type(type, [&]<class T>(T) {
    Scalar scalar = 0;
    T value{};
    if constexpr (std::is_same_v<T, double>)
      value = 1.0 / ranks;
    else if constexpr (!std::is_integral_v<T>)
      value = static_cast<T>(static_cast<float>(1.0 / ranks));
    std::memcpy(&scalar, &value, sizeof value);
    return scalar;
  });
}

void divide(ncclDataType_t type, void* data, std::size_t count, int ranks) {
  multinode::divide(common_type(type).value(), data, count, ranks);
}

}  // namespace emulated_gpu
