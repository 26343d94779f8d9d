#include "explore/files.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>

namespace explore {

std::optional<std::string> read_text(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::ostringstream copy;
  if (!(copy << in.rdbuf())) return std::nullopt;  // some files of /sys open, and then refuse to be read
  std::string text = copy.str();
  const char* const space = " \t\r\n";
  text.erase(text.find_last_not_of(space) + 1);
  text.erase(0, text.find_first_not_of(space));
  if (text.empty()) return std::nullopt;
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
