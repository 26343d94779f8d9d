// packing.hpp: values as bytes, in which the who_waits process of each rank sends them to rank 0: all have the same
// build.
#pragma once

#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace who_waits {

// Both visit a value: plain data, strings and vectors of values, and structures with static fields(visitor, structure).
struct Packer {
  std::string text;
  template <class T>
  void operator()(const T& value) {
    if constexpr (std::is_trivially_copyable_v<T>) {
      text.append(reinterpret_cast<const char*>(&value), sizeof value);
    } else if constexpr (requires { value.size(); }) {
      (*this)(value.size());
      for (const auto& one : value) (*this)(one);
    } else {
      T::fields(*this, value);
    }
  }
};
struct Unpacker {
  std::string_view text;
  template <class T>
  void operator()(T& value) {
    if constexpr (std::is_trivially_copyable_v<T>) {
      if (text.size() < sizeof value) throw std::runtime_error("the state of a rank is cut off");
      std::memcpy(static_cast<void*>(&value), text.data(), sizeof value);
      text.remove_prefix(sizeof value);
    } else if constexpr (requires { value.size(); }) {
      std::size_t size = 0;
      (*this)(size);
      if (size > text.size()) throw std::runtime_error("the state of a rank is cut off");
      value.resize(size);
      for (auto& one : value) (*this)(one);
    } else {
      T::fields(*this, value);
    }
  }
};

template <class T>
std::string packed(const T& value) {
  Packer pack;
  pack(value);
  return pack.text;
}
template <class T>
T unpacked(std::string_view text) {  // throws std::runtime_error for a text that is cut off
  T value;
  Unpacker{text}(value);
  return value;
}

}  // namespace who_waits
