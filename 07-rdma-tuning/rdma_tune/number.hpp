// number.hpp: a text that is a number.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace rdma {

// Nothing, unless the whole of `text` is a decimal number that fits.
template <class Number>
std::optional<Number> number_of(std::string_view text) {
  Number number{};
  const auto [after, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || after != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace rdma
