// files.hpp: what /proc, /sys and /etc say, and what a test puts in their place. A file that is missing or may not be
// read is no error: its value is unknown.
#pragma once

#include <multinode/text.hpp>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace multinode {

// Up to 1 MiB of a file's text, without white space around it; nothing where it is empty, no regular file, or cannot be
// read.
std::optional<std::string> read_text(const std::filesystem::path& file);

bool is_there(const std::filesystem::path& path);

// Names in a folder, sorted; none where it cannot be read.
std::vector<std::string> names_in(const std::filesystem::path& folder);

template <class Number>
std::optional<Number> read_number(const std::filesystem::path& file) {
  const auto text = read_text(file);
  return text ? number_of<Number>(*text) : std::nullopt;
}

}  // namespace multinode
