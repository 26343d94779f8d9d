#include "xml.hpp"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <cmath>

namespace image_check {

std::string printable(const std::string& text) {
  using nlohmann::json;
  const auto utf8 =
      json::parse(json(text).dump(-1, ' ', false, json::error_handler_t::replace)).get_ref<const std::string&>();
  std::string result;
  for (std::size_t i = 0; i < utf8.size(); ++i) {
    const auto byte = static_cast<unsigned char>(utf8[i]);
    if (byte < 0x20 && byte != '\n' && byte != '\t') {
      if (byte == '\r' && i + 1 < utf8.size() && utf8[i + 1] == '\n') continue;
      result += "\xE2\x90";
      result += static_cast<char>(0x80 + byte);
    } else if (utf8.compare(i, 3, "\xEF\xBF\xBE") == 0 || utf8.compare(i, 3, "\xEF\xBF\xBF") == 0) {
      result += "\xEF\xBF\xBD";
      i += 2;
    } else {
      result += utf8[i];
    }
  }
  return result;
}

pugi::xml_node add(pugi::xml_node parent, const char* name, const std::string& text, const char* css_class) {
  pugi::xml_node node = parent.append_child(name);
  if (*css_class) set(node, "class", css_class);
  add_text(node, text);
  return node;
}

void add_text(pugi::xml_node parent, const std::string& text) {
  parent.append_child(pugi::node_pcdata).set_value(printable(text).c_str());
}

void set(pugi::xml_node node, const char* attribute, const std::string& value) {
  node.append_attribute(attribute).set_value(printable(value).c_str());
}

void set(pugi::xml_node node, const char* attribute, double value) {
  set(node, attribute, fmt::format("{:g}", std::round(value * 10) / 10));
}

}  // namespace image_check
