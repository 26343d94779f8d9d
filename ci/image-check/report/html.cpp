#include "html.hpp"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <ranges>
#include <sstream>
#include <string_view>

namespace image_check {

namespace {

// No '<', '>' or '&': HTML and XML read them differently here.
const char* const page_style = R"css(
:root { color-scheme: light dark;  /* colours that can be read on white and on black */
  --rule: #8886; --soft: #7c848d; --bad: #d4521c; --good: #2a9471; --doubt: #a37c00; }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, "DejaVu Sans", sans-serif; max-width: 76rem; margin: 0 auto; padding: 1.25rem 1rem 4rem;
  overflow-wrap: anywhere; }
h2 { font-size: 1.3rem; margin: 2.5rem 0 0.75rem; }
h3 { font-size: 1rem; margin: 0 0 0.25rem; }
p { margin: 0.3rem 0 0.75rem; }
small, summary, footer, .soft { font-size: 0.85rem; color: var(--soft); }
code { display: block; font: 0.85rem/1.45 ui-monospace, "DejaVu Sans Mono", monospace; white-space: pre-wrap; user-select: all;
  border: 1px solid var(--rule); padding: 0.4rem 0.6rem; }
header, article { border: 1px solid var(--rule); border-left: 0.4rem solid var(--doubt); padding: 0.8rem 1rem; margin: 0 0 1rem; }
header h1 { font-size: 1.3rem; font-weight: 400; margin: 0; }
header strong { font-size: 1.7rem; margin-right: 0.6rem; }
header.good { border-left-color: var(--good); }
header.bad, article.bad { border-left-color: var(--bad); }
article p { white-space: pre-wrap; }
.good-text { color: var(--good); }
.bad-text { color: var(--bad); font-weight: 700; }
.doubt-text { color: var(--doubt); font-weight: 700; }
.scrolled { overflow-x: auto; margin: 0 0 1.25rem; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: 0.3rem 0.9rem 0.3rem 0; border-bottom: 1px solid var(--rule);
  min-width: 5.5rem; max-width: 34rem; }
thead th { color: var(--soft); vertical-align: bottom; overflow-wrap: normal; }
td small, th small { display: block; font-weight: 400; }
.number { text-align: right; white-space: nowrap; }
td { white-space: pre-line; }
svg { width: 10rem; height: 3rem; }
polyline { fill: none; stroke: var(--soft); stroke-width: 1.5; }
polyline:last-child { stroke: var(--good); stroke-width: 2.5; }
)css";

// Text that XML can hold: control bytes become their pictures (U+241B for escape), invalid UTF-8 becomes U+FFFD.
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

}  // namespace

pugi::xml_node start_page(pugi::xml_document& document, const std::string& title) {
  document.append_child(pugi::node_doctype).set_value("html");
  auto html = document.append_child("html");
  set(html, "lang", "en");
  set(html, "xmlns", "http://www.w3.org/1999/xhtml");
  auto head = add(html, "head");
  const auto meta = [&](const char* name, const char* value, const std::string& content) {
    auto tag = head.append_child("meta");
    set(tag, name, value);
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

std::string page_text(const pugi::xml_document& document) {
  std::ostringstream out;
  document.save(out, "", pugi::format_raw | pugi::format_no_declaration);
  return out.str() + "\n";
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

void add_log(pugi::xml_node parent, const std::string& log) {
  std::string address = "./";
  for (const char c : log)
    if (std::isalnum(static_cast<unsigned char>(c)) || std::string_view("/._-").find(c) != std::string_view::npos)
      address += c;
    else
      address += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  set(add(parent, "a", log), "href", address);
}

namespace {

void add_curves(pugi::xml_node parent, const Curves& curves) {
  double left = HUGE_VAL, right = 0, low = HUGE_VAL, high = 0;
  for (const auto& curve : curves)
    for (const auto& [size, value] : curve)
      if (value > 0)
        left = std::min(left, size), right = std::max(right, size), low = std::min(low, value),
        high = std::max(high, value);
  if (!(right > left)) return;
  const auto svg = add(parent, "svg");
  set(svg, "viewBox", "0 0 160 48");
  set(svg, "role", "img");
  add(svg, "title", fmt::format("{:.3g} to {:.3g}, over sizes from {:.0f} to {:.0f} bytes", low, high, left, right));
  for (const auto& curve : curves) {
    std::string points;
    for (const auto& [size, value] : curve)
      if (value > 0)
        points += fmt::format("{:.1f},{:.1f} ", 4 + 152 * std::log(size / left) / std::log(right / left),
                              high > low ? 44 - 40 * std::log(value / low) / std::log(high / low) : 24.0);
    set(add(svg, "polyline"), "points", points);
  }
}

}  // namespace

void add_table(pugi::xml_node parent, const std::string& name, const std::vector<std::string>& columns,
               const std::vector<std::vector<Cell>>& rows) {
  if (rows.empty()) return;
  const auto scrolled = add(parent, "div", "", "scrolled");
  set(scrolled, "tabindex", "0");
  set(scrolled, "role", "region");
  set(scrolled, "aria-label", name);
  const auto table = add(scrolled, "table");
  const auto head = add(add(table, "thead"), "tr");
  for (std::size_t i = 0; i < columns.size(); ++i)
    set(add(head, "th", columns[i], rows.front()[i].css == "number" ? "number" : ""), "scope", "col");
  const auto body = add(table, "tbody");
  constexpr std::size_t most = 500;
  for (const auto& row : std::views::take(rows, most)) {
    const auto line = add(body, "tr");
    for (const auto& cell : row) {
      const bool first = &cell == &row.front();
      const auto node = add(line, first ? "th" : "td", cell.text, cell.css.c_str());
      if (first) set(node, "scope", "row");
      if (!cell.note.empty()) add(node, "small", cell.note);
      if (!cell.log.empty()) add_log(node, cell.log);
      if (!cell.curves.empty()) add_curves(node, cell.curves);
    }
  }
  if (rows.size() > most)
    add(scrolled, "p", std::to_string(rows.size() - most) + " more are in results.jsonl.", "soft");
}

}  // namespace image_check
