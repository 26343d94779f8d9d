// text.hpp: lists for messages, and numbers from texts.
#pragma once

#include <charconv>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

namespace multinode {

// Words or whole numbers as one text: "a, b, c". `projection` makes them of the items: &Device::name.
template <class Range, class Projection = std::identity>
std::string join(const Range& items, std::string_view between = ", ", Projection projection = {}) {
  std::string text;
  bool first = true;
  for (const auto& item : items) {
    if (!first) text += between;
    first = false;
    const auto& word = std::invoke(projection, item);
    if constexpr (std::is_integral_v<std::remove_cvref_t<decltype(word)>>)
      text += std::to_string(word);
    else
      text += word;
  }
  return text;
}

// "rank 3", "ranks 1, 2"
template <class Range>
std::string rank_list(const Range& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + join(ranks);
}

// Nothing, unless the whole of `text` is a number that fits.
template <class Number>
std::optional<Number> number_of(std::string_view text) {
  Number number{};
  const auto [after, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || after != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace multinode
