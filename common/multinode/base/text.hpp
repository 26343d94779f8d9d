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

// Text from another process or file without what can drive a terminal: each byte of a control character but tab and
// newline, and each byte that is not UTF-8, becomes ?.
inline std::string without_controls(std::string_view text) {
  constexpr unsigned least[] = {0, 0, 0xa0, 0x800, 0x10000};  // of so many bytes; 0x80 to 0x9f are controls
  std::string clean;
  for (std::size_t i = 0, length = 1; i < text.size(); i += length) {
    const unsigned first = static_cast<unsigned char>(text[i]);
    length = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    unsigned code = length == 1 ? first : first & (0x7f >> length);
    bool good = (first & 0xc0) != 0x80 && first < 0xf5 && i + length <= text.size();
    for (std::size_t k = 1; good && k < length; ++k) {
      good = (text[i + k] & 0xc0) == 0x80;
      code = code << 6 | (text[i + k] & 0x3fu);
    }
    good = good && code >= least[length] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff) && code != 0x7f &&
           (code >= ' ' || code == '\n' || code == '\t');
    if (!good) length = 1;
    clean += good ? text.substr(i, length) : "?";
  }
  return clean;
}

// The same as one line.
inline std::string one_line(std::string_view text) {
  std::string line = without_controls(text);
  for (char& c : line)
    if (c == '\n' || c == '\t') c = ' ';
  return line;
}

}  // namespace multinode
