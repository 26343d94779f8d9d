// json.hpp: JSON. What parses and prints it is compiled once, in json.cpp, because it takes three seconds in each file.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace multinode {

// Throws nlohmann::json::exception.
nlohmann::json parse_json(std::string_view text);

// On one line. Bytes that are no UTF-8, as a file's name can have them, become U+FFFD.
std::string json_text(const nlohmann::json& value);

// The same for another process of the run: any bytes stay what they are. from_msgpack() throws nlohmann::json::exception.
std::string to_msgpack(const nlohmann::json& value);
nlohmann::json from_msgpack(std::string_view bytes);

}  // namespace multinode
