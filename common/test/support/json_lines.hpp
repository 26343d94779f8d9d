// json_lines.hpp: reads the output of --json, one object per line.
#pragma once

#include <multinode/base/json.hpp>

#include <filesystem>
#include <iosfwd>
#include <vector>

namespace nlohmann {
void PrintTo(const json& value, std::ostream* out);  // for GoogleTest, which would print it element by element
}

namespace multinode::testing {

// Without their "version", which must be that of this project. Throws nlohmann::json::exception if a line is not JSON
// or has no version, std::runtime_error if it has another. A missing file has no lines.
std::vector<nlohmann::json> json_lines(const std::filesystem::path& file);

}  // namespace multinode::testing
