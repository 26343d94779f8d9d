// json.hpp: JSON. The parser and the printer are compiled once, in json.cpp, because they take three seconds per file.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace multinode {

// Throws nlohmann::json::exception, also for what is nested more than 64 deep: nlohmann::json copies it by recursion.
nlohmann::json parse_json(std::string_view text, bool with_comments = false);

// On one line. Bytes that are not UTF-8, as in the name of a file, become U+FFFD.
std::string json_text(const nlohmann::json& value);

// The same for another process of the run: any bytes stay as they are. from_msgpack() throws what parse_json() does.
std::string to_msgpack(const nlohmann::json& value);
nlohmann::json from_msgpack(std::string_view bytes);

}  // namespace multinode
