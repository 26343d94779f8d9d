// packing.hpp: values as bytes, in which the who_waits process of each rank sends them to rank 0: all have the same
// build.
#pragma once

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

namespace who_waits {

// Visits plain data, strings and vectors of values, and structures with static fields(visitor, structure).
struct Packing {
  std::string text{};
  std::size_t at = 0;
  bool unpacks = false;

  void operator()(auto&... values) { (visit(values), ...); }

 private:
  template <class T>
  void visit(T& value) {
    if constexpr (std::is_trivially_copyable_v<T>) {
      if (!unpacks) return void(text.append(reinterpret_cast<const char*>(&value), sizeof value));
      if (text.size() - at < sizeof value) throw std::runtime_error("the state of a rank is cut off");
      std::memcpy(static_cast<void*>(&value), text.data() + at, sizeof value);
      at += sizeof value;
    } else if constexpr (requires { value.size(); }) {
      std::size_t size = value.size();
      visit(size);
      if (unpacks) value.resize(std::min(size, text.size()));
      for (auto& one : value) visit(one);
    } else {
      T::fields(*this, value);
    }
  }
};

std::string packed(auto value) {
  Packing pack;
  pack(value);
  return pack.text;
}
template <class T>
T unpacked(std::string text) {  // throws std::runtime_error for a text that is cut off
  T value{};
  Packing{std::move(text), 0, true}(value);
  return value;
}

}  // namespace who_waits
