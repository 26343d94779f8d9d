// json_lines.hpp: reads the output of --json, one object per line.
#pragma once

#include <multinode/base/options.hpp>

#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace multinode::testing {

// Without their "version", which must be that of this project. Throws nlohmann::json::exception if a line is not JSON
// or has no version, std::runtime_error if it has another. A missing file has no lines.
inline std::vector<nlohmann::json> json_lines(const std::filesystem::path& file) {
  std::vector<nlohmann::json> lines;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    lines.push_back(nlohmann::json::parse(line));
    if (lines.back().at("version") != version()) throw std::runtime_error("another version: " + line);
    lines.back().erase("version");
  }
  return lines;
}

}  // namespace multinode::testing
