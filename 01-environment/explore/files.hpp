// files.hpp: what /proc, /sys and /etc say. Every probe takes the folder that stands for "/", so that tests can make
// one up. A file that is missing or may not be read is no error: the value is unknown.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace explore {

// The text of a file without white space around it; nothing where it is empty or cannot be read.
std::optional<std::string> read_text(const std::filesystem::path& file);

std::optional<long long> read_number(const std::filesystem::path& file);

// Names in a folder, sorted; none where it cannot be read.
std::vector<std::string> names_in(const std::filesystem::path& folder);

}  // namespace explore
