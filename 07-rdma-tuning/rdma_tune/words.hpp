// words.hpp: words as one text.
#pragma once

#include <string>
#include <vector>

namespace rdma {

inline std::string join(const std::vector<std::string>& words, const std::string& between = ", ") {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

}  // namespace rdma
