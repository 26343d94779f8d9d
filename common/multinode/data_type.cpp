#include <multinode/data_type.hpp>

namespace multinode {

namespace {

// What a sum or a product is computed in: float for the short types; unsigned, which wraps around, for integers.
template <class T>
struct Arithmetic {
  using type = T;
};
template <>
struct Arithmetic<half> {
  using type = float;
};
template <>
struct Arithmetic<bfloat16> {
  using type = float;
};
template <>
struct Arithmetic<std::int8_t> {
  using type = std::uint8_t;
};
template <>
struct Arithmetic<std::int32_t> {
  using type = std::uint32_t;
};
template <>
struct Arithmetic<std::int64_t> {
  using type = std::uint64_t;
};

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
      for (std::size_t i = 0; i < count; ++i) out[i] = y[i] < x[i] ? y[i] : x[i];
      break;
    case Reduction::max:
      for (std::size_t i = 0; i < count; ++i) out[i] = x[i] < y[i] ? y[i] : x[i];
      break;
  }
}

}  // namespace

std::size_t size_of(DataType type) {
  return with_type(type, [](auto x) { return sizeof x; });
}

std::string_view name_of(DataType type) {
  switch (type) {
    case DataType::float32:
      return "float";
    case DataType::float64:
      return "double";
    case DataType::float16:
      return "half";
    case DataType::bfloat16:
      return "bfloat16";
    case DataType::int8:
      return "int8";
    case DataType::uint8:
      return "uint8";
    case DataType::int32:
      return "int32";
    case DataType::uint32:
      return "uint32";
    case DataType::int64:
      return "int64";
    case DataType::uint64:
      return "uint64";
  }
  return "?";
}

std::string_view name_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::sum:
      return "sum";
    case Reduction::product:
      return "product";
    case Reduction::min:
      return "min";
    case Reduction::max:
      return "max";
    case Reduction::average:
      return "average";
  }
  return "?";
}

void combine(DataType type, Reduction reduction, void* out, const void* x, const void* y, std::size_t count) {
  with_type(type, [&]<class T>(T) {
    combine_as(reduction, static_cast<T*>(out), static_cast<const T*>(x), static_cast<const T*>(y), count);
  });
}

}  // namespace multinode
