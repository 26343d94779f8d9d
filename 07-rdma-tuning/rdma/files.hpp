// files.hpp: looks into folders that may not be there.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace rdma {

// Sorted; none where there is no such folder.
inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    names.push_back(at->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

inline bool is_there(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

}  // namespace rdma
