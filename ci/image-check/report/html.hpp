// html.hpp: pages of tables, by pugixml, with text of any program.
#pragma once

#include <pugixml.hpp>

#include <map>
#include <string>
#include <vector>

namespace image_check {

// An HTML page with that title, which may load nothing: its body.
pugi::xml_node start_page(pugi::xml_document& document, const std::string& title);
std::string page_text(const pugi::xml_document& document);

// An element with that text; never the short form <p/>, which HTML does not know.
pugi::xml_node add(pugi::xml_node parent, const char* name, const std::string& text = {}, const char* css_class = "");
void add_text(pugi::xml_node parent, const std::string& text);
void set(pugi::xml_node node, const char* attribute, const std::string& value);

// A log beside the page; never another kind of address.
void add_log(pugi::xml_node parent, const std::string& log);

using Curve = std::map<double, double>;  // values by size
using Curves = std::vector<Curve>;

struct Cell {
  std::string text{}, css{}, note{}, log{};
  Curves curves{};  // drawn on logarithmic scales; the last one is emphasised
};
// The first cell of each row is its head. A column is aligned as its cell in the first row is. Of more than 500 rows,
// the first: results.jsonl has them all.
void add_table(pugi::xml_node parent, const std::string& name, const std::vector<std::string>& columns,
               const std::vector<std::vector<Cell>>& rows);

}  // namespace image_check
