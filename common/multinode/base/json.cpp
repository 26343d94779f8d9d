// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/json.hpp>

namespace multinode {

nlohmann::json parse_json(std::string_view text, bool with_comments) {
  struct TooDeep : nlohmann::json::exception {
    TooDeep() : exception(0, "nested more than 64 deep") {}
  };
  const auto check = [](int depth, auto, const auto&) { return depth < 64 ? true : throw TooDeep(); };
  return nlohmann::json::parse(text, check, true, with_comments);
}

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
