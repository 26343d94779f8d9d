// json.hpp: nlohmann::json, and its macro for members with defaults where it is older than 3.11.
#pragma once

#include <nlohmann/json.hpp>

#ifndef NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT  // Ubuntu 22.04 has 3.10.5
#define NLOHMANN_JSON_FROM_WITH_DEFAULT(v) t.v = j.value(#v, by_default.v);
#define NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Type, ...)                          \
  inline void from_json(const nlohmann::json& j, Type& t) {                                 \
    const Type by_default{};                                                                \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(NLOHMANN_JSON_FROM_WITH_DEFAULT, __VA_ARGS__)) \
  }                                                                                         \
  inline void to_json(nlohmann::json& nlohmann_json_j, const Type& nlohmann_json_t) {       \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(NLOHMANN_JSON_TO, __VA_ARGS__))                \
  }
#endif
