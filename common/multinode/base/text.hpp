// text.hpp: parses numbers, and formats text and lists for messages.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

namespace multinode {

// Joins strings or integers: "a, b, c". `projection` maps each item to one: &Device::name.
// Not const Range&: in nlohmann/json 3.10, what items() returns can only be iterated if it is not const.
template <class Range, class Projection = std::identity>
std::string join(Range&& items, std::string_view between = ", ", Projection projection = {}) {
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

// "0-2,8,10-11": integers in ascending order
template <class Range>
std::string ranges(const Range& numbers, std::string_view between = ",") {
  std::string text;
  for (auto it = numbers.begin(); it != numbers.end();) {
    const auto first = *it;
    auto last = first;
    while (++it != numbers.end() && *it == last + 1) ++last;
    if (!text.empty()) text += between;
    text += std::to_string(first);
    if (last > first) text += "-" + std::to_string(last);
  }
  return text;
}

// "rank 3", "ranks 1, 2"
template <class Range>
std::string rank_list(const Range& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + join(ranks);
}

// All of `text` as a number; nullopt if it is not one or Number cannot hold it.
template <class Number>
std::optional<Number> number_of(std::string_view text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stopped != end) return std::nullopt;
  return number;
}

// The same for a number without a sign.
template <class Number>
std::optional<Number> parse_decimal(std::string_view text) {
  return text.starts_with('-') ? std::nullopt : number_of<Number>(text);
}

// The beginning of `text` as one line of at most 63 characters, with ? for each byte that is not printable ASCII.
inline std::string printable(std::string_view text) {
  std::string line(text.substr(0, 60));
  for (char& c : line)
    if (c < ' ' || c > '~') c = '?';
  return text.size() > line.size() ? line + "..." : line;
}

// Text from another process as one line without control characters, which could drive a terminal.
inline std::string one_line(std::string_view text) {
  std::string line(text);
  for (std::size_t i = 0; i < line.size(); ++i) {
    const auto byte = static_cast<unsigned char>(line[i]);
    const bool c1 = byte >= 0x80 && byte < 0xa0 && (i == 0 || static_cast<unsigned char>(line[i - 1]) <= 0xc2);
    if (byte == '\n')
      line[i] = ' ';
    else if (byte < ' ' || byte == 0x7f || c1)
      line[i] = '?';
  }
  return line;
}

}  // namespace multinode
