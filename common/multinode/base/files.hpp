// files.hpp: reads small files such as those in /proc, /sys and /etc. A missing or unreadable file is not an error: its
// value is unknown.
#pragma once

#include <multinode/base/text.hpp>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace multinode {

// Up to 1 MiB of a file's text, without leading and trailing white space. nullopt if it is empty, not a regular file,
// or unreadable.
std::optional<std::string> read_text(const std::filesystem::path& file);

bool is_there(const std::filesystem::path& path);

// The sorted names in a folder; empty if it cannot be read.
std::vector<std::string> names_in(const std::filesystem::path& folder);

// nullopt if the text is not a number or Number cannot hold it.
template <class Number>
std::optional<Number> read_number(const std::filesystem::path& file) {
  const auto text = read_text(file);
  return text ? number_of<Number>(*text) : std::nullopt;
}

}  // namespace multinode
