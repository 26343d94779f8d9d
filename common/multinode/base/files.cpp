#include <multinode/base/files.hpp>

#include <algorithm>
#include <array>
#include <fstream>

namespace multinode {

std::optional<std::string> read_text(const std::filesystem::path& file) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return std::nullopt;
  std::ifstream in(file);
  std::string text;
  for (std::array<char, 4096> piece{}; in && text.size() < 1 << 20;) {
    in.read(piece.data(), piece.size());
    text.append(piece.data(), static_cast<std::size_t>(in.gcount()));
  }
  if (in.bad()) return std::nullopt;  // some files of /sys can be opened but not read
  const char* const space = " \t\r\n";
  text.erase(text.find_last_not_of(space) + 1);
  text.erase(0, text.find_first_not_of(space));
  if (text.empty()) return std::nullopt;
  return text;
}

bool is_there(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    names.push_back(entry->path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace multinode
