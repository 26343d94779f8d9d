#include "explore/files.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>

namespace explore {

std::optional<std::string> read_text(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in || in.bad()) return std::nullopt;
  const char* const space = " \t\r\n";
  text.erase(text.find_last_not_of(space) + 1);
  text.erase(0, text.find_first_not_of(space));
  return text;
}

std::optional<long long> read_number(const std::filesystem::path& file) {
  const std::optional<std::string> text = read_text(file);
  if (!text) return std::nullopt;
  long long number = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc{} || end != text->data() + text->size()) return std::nullopt;
  return number;
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    names.push_back(entry->path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace explore
