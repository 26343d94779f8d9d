// text.hpp: reads numbers from text, and shows text and lists in messages.
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

// All of `text` as a number, if Number can hold it.
template <class Number>
std::optional<Number> number_of(std::string_view text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stopped != end) return std::nullopt;
  return number;
}

// All of `text` as a decimal number without a sign, if Number can hold it.
template <class Number>
std::optional<Number> parse_decimal(std::string_view text) {
  return text.starts_with('-') ? std::nullopt : number_of<Number>(text);
}

// One line of at most 63 characters: the beginning of `text`, with a ? for each byte that is not printable ASCII.
inline std::string printable(std::string_view text) {
  std::string line(text.substr(0, 60));
  for (char& c : line)
    if (c < ' ' || c > '~') c = '?';
  return text.size() > line.size() ? line + "..." : line;
}

}  // namespace multinode
