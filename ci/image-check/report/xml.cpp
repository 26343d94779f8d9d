#include "xml.hpp"

#include "page_style.hpp"

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

pugi::xml_node start_page(pugi::xml_document& document, const std::string& title) {
  document.append_child(pugi::node_doctype).set_value("html");
  auto html = document.append_child("html");
  set(html, "lang", "en");
  set(html, "xmlns", "http://www.w3.org/1999/xhtml");
  auto head = add(html, "head");
  const auto meta = [&](const char* name, const char* value, const std::string& content) {
    auto tag = head.append_child("meta");
    set(tag, name, std::string(value));
    if (!content.empty()) set(tag, "content", content);
  };
  meta("charset", "utf-8", "");
  meta("http-equiv", "Content-Security-Policy",
       "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'");
  meta("name", "viewport", "width=device-width, initial-scale=1");
  add(head, "title", title);
  add(head, "style", page_style);
  return add(html, "body");
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
