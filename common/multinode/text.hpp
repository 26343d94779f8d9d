// text.hpp: lists in messages.
#pragma once

#include <functional>
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

}  // namespace multinode
