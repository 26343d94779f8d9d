// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/json.hpp>

namespace multinode {

nlohmann::json parse_json(std::string_view text) { return nlohmann::json::parse(text); }

std::string json_text(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string to_msgpack(const nlohmann::json& value) {
  std::string bytes;
  nlohmann::json::to_msgpack(value, bytes);
  return bytes;
}

nlohmann::json from_msgpack(std::string_view bytes) { return nlohmann::json::from_msgpack(bytes); }

}  // namespace multinode
