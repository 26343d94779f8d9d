// xml.hpp: pugixml, with text of any program.
#pragma once

#include <pugixml.hpp>

#include <string>

namespace image_check {

// Text that XML can hold: control bytes become their pictures (U+241B for escape), what is no UTF-8 becomes U+FFFD.
std::string printable(const std::string& text);

// An HTML page with that title and the style of page_style.hpp, which may load nothing: its body.
pugi::xml_node start_page(pugi::xml_document& document, const std::string& title);

// An element with that text; never the short form <p/>, which HTML does not know.
pugi::xml_node add(pugi::xml_node parent, const char* name, const std::string& text = {}, const char* css_class = "");
void add_text(pugi::xml_node parent, const std::string& text);
void set(pugi::xml_node node, const char* attribute, const std::string& value);
void set(pugi::xml_node node, const char* attribute, double value);

}  // namespace image_check
