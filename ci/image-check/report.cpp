#include "report.hpp"

#include "statistics.hpp"

#include <multinode/base/text.hpp>

#include <fmt/core.h>
#include <nlohmann/json.hpp>
#include <pugixml.hpp>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <ctime>
#include <map>
#include <ranges>
#include <set>
#include <sstream>
#include <string_view>
#include <tuple>
#include <utility>

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
p { margin: 0.3rem 0 0.75rem; }
small, footer, .soft { font-size: 0.85rem; color: var(--soft); }
code { display: block; font: 0.85rem/1.45 ui-monospace, "DejaVu Sans Mono", monospace; white-space: pre-wrap; user-select: all;
  border: 1px solid var(--rule); padding: 0.4rem 0.6rem; }
header { border: 1px solid var(--rule); border-left: 0.4rem solid var(--doubt); padding: 0.8rem 1rem; margin: 0 0 1rem; }
header h1 { font-size: 1.3rem; font-weight: 400; margin: 0; }
header strong { font-size: 1.7rem; margin-right: 0.6rem; }
header.good { border-left-color: var(--good); }
header.bad { border-left-color: var(--bad); }
.good-text { color: var(--good); }
.bad-text { color: var(--bad); font-weight: 700; }
.doubt-text { color: var(--doubt); font-weight: 700; }
.scrolled { overflow-x: auto; margin: 0 0 1.25rem; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: 0.3rem 0.9rem 0.3rem 0; border-bottom: 1px solid var(--rule);
  max-width: 34rem; }
@media (min-width: 50rem) { #results td:nth-child(3) { width: 45%; } }
@media (max-width: 50rem) {  /* a telephone: the cells of a row below each other */
  #results thead, #results td:empty { display: none; }
  #results table, #results tbody, #results tr, #results th, #results td { display: block; }
  #results th { border: 0; padding-bottom: 0; }
  #results td { border: 0; padding: 0.1rem 0; }
  #results tr { border-bottom: 1px solid var(--rule); padding: 0.3rem 0; }
}
thead th { color: var(--soft); vertical-align: bottom; overflow-wrap: normal; }
td small, th small { display: block; font-weight: 400; white-space: pre-line; }
.number { text-align: right; }
.number, #pairs th { white-space: nowrap; }
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

void set(pugi::xml_node node, const char* attribute, const std::string& value) {
  node.append_attribute(attribute).set_value(printable(value).c_str());
}

void add_text(pugi::xml_node parent, const std::string& text) {
  parent.append_child(pugi::node_pcdata).set_value(printable(text).c_str());
}

// Never the short form <p/>, which HTML does not know.
pugi::xml_node add(pugi::xml_node parent, const char* name, const std::string& text = {}, const char* css_class = "") {
  pugi::xml_node node = parent.append_child(name);
  if (*css_class) set(node, "class", css_class);
  add_text(node, text);
  return node;
}

// A page that may load nothing: its body.
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

// A log beside the page; never another kind of address.
void add_log(pugi::xml_node parent, const std::string& log) {
  std::string address = "./";
  for (const char c : log)
    if (std::isalnum(static_cast<unsigned char>(c)) || std::string_view("/._-").find(c) != std::string_view::npos)
      address += c;
    else
      address += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  set(add(parent, "a", "log"), "href", address);
}

using Curves = std::vector<std::map<double, double>>;  // of each the values by size

struct Cell {
  std::string text{}, css{}, note{}, log{};
  Curves curves{};  // drawn on logarithmic scales; the last one is emphasised
};

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

// The first cell of each row is its head. A column is aligned as its cell in the first row is. Of more than 500 rows,
// the first: results.jsonl has them all.
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

constexpr double stands_out = 0.10;  // a node this much worse than the median of the nodes
const std::string nothing = "–";

std::string shortened(const std::string& text, std::size_t most = 2000) {
  if (text.size() <= most) return text;
  return text.substr(0, most) + " ... (" + std::to_string(text.size() - most) + " bytes more)";
}
std::string or_nothing(const std::string& text) { return text.empty() ? nothing : shortened(text); }

std::string few(const std::vector<std::string>& words, const char* between = ", ") {
  constexpr std::size_t most = 6;
  if (words.size() <= most) return multinode::join(words, between);
  return multinode::join(std::vector(words.begin(), words.begin() + most), between) + between + "and " +
         std::to_string(words.size() - most) + " more";
}

std::string number(double value) {
  return std::abs(value) >= 1000 && std::abs(value) < 1e9 ? std::to_string(std::llround(value))
                                                          : fmt::format("{:.4g}", value);
}

// "+3.2 %", "-40 %"
std::string percent(double share) {
  if (!std::isfinite(share)) return "from zero";
  return fmt::format("{:+.{}f} %", 100 * share, std::abs(share) >= 0.0995 ? 0 : 1);
}
double change(double from, double to) { return from == to ? 0 : (to - from) / std::abs(from); }

// "11.9 to 12.6, n = 3"
std::string range(const std::vector<double>& values) {
  if (values.empty()) return nothing;
  const auto [least, most] = std::ranges::minmax_element(values);
  return number(*least) + (values.size() > 1 ? " to " + number(*most) : "") + ", n = " + std::to_string(values.size());
}

Cell marked(const std::string& word) {
  if (word == "pass" || word == "same") return {"✓ " + word, "good-text"};
  if (word == "fail" || word == "timeout" || word == "worse") return {"✗ " + word, "bad-text"};
  if (word == "skip" || word == "no evidence" || word == "drifts") return {"– " + word, "soft"};
  return {"≈ " + word, "doubt-text"};
}

bool is_failure(const CheckResult& check) {
  return check.status == Status::fail || check.status == Status::timeout || check.status == Status::flaky;
}

class Page {
 public:
  explicit Page(const Results& results) : results_(results) {}

  std::string text() {
    const auto [word, why] = verdict(results_);
    body_ = start_page(document_, word + ": image-check " + results_.head.suite + ", " + results_.head.started);
    top(word, why);
    results();
    pairs();
    with_what();
    add(body_, "footer", "Made by image-check from results.jsonl, which holds every value on this page.");
    std::ostringstream out;
    document_.save(out, "", pugi::format_raw | pugi::format_no_declaration);
    return out.str() + "\n";
  }

 private:
  pugi::xml_node section(const char* id, const char* title) {
    const auto node = add(body_, "section");
    set(node, "id", id);
    add(node, "h2", title);
    return node;
  }

  void top(const std::string& word, const std::string& why) {
    const auto banner = add(body_, "header", "", word == "PASS" ? "good" : word == "FAIL" ? "bad" : "");
    const auto title = add(banner, "h1");
    add(title, "strong", (word == "PASS" ? "✓ " : word == "FAIL" ? "✗ " : "? ") + word);
    add_text(title, why + ".");
    if (const auto to_do = actions(); !to_do.empty()) add(banner, "p", "To do: " + to_do + ".");

    const Head& head = results_.head;
    add(banner, "p",
        fmt::format("{}, {:.0f} s{}; {} node{} × {} processes, started by {}: {}", head.started,
                    results_.summary.seconds,
                    head.budget_seconds > 0 ? fmt::format(" of {:.0f} s", head.budget_seconds) : "", head.nodes.size(),
                    head.nodes.size() == 1 ? "" : "s", head.processes_per_node, head.launcher, few(head.nodes)),
        "soft");
    add(banner, "code", head.command);
  }

  // Nodes that a failed check blames; if there is one node only, that.
  std::string blamed(const CheckResult& check) const {
    std::set<std::string> nodes;
    for (const auto& finding : check.findings)
      if (!finding.node.empty()) nodes.insert(finding.node);
    return nodes.empty() && results_.head.nodes.size() == 1 ? results_.head.nodes.front()
                                                            : few({nodes.begin(), nodes.end()});
  }

  // The most severe first.
  std::vector<const CheckResult*> failed() const {
    std::vector<const CheckResult*> all;
    for (const auto& check : results_.checks)
      if (is_failure(check)) all.push_back(&check);
    const auto rank = [](const CheckResult* check) { return std::pair(check->action, check->status == Status::flaky); };
    std::ranges::stable_sort(all, [&](const auto* a, const auto* b) { return rank(a) < rank(b); });
    return all;
  }

  std::string actions() const {
    std::vector<std::string> said;
    for (const auto* check : failed()) {
      const std::string nodes = blamed(*check);
      std::string what = "investigate " + check->check;
      if (check->action != Action::investigate)
        what = to_do(*check) + (nodes.empty() ? " that fails " + check->check : "");
      if (std::ranges::find(said, what) == said.end()) said.push_back(what);
    }
    return few(said);
  }

  // "drain node3"
  std::string to_do(const CheckResult& check) const {
    std::string text = words(check.action);
    const std::string nodes = blamed(check), any = "the node";
    if (nodes.empty()) return text;
    const auto at = text.find(any);
    return at == text.npos ? text + " " + nodes : text.replace(at, any.size(), nodes);
  }

  // What is to be done about a failed check, and what was found.
  std::string advice(const CheckResult& check) const {
    constexpr std::size_t most = 20;
    std::string text = to_do(check) + ":";
    text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
    for (const auto& finding : std::views::take(check.findings, most)) {
      const bool names_it = finding.node.empty() || finding.text.starts_with(finding.node + ": ");
      text += "\n" + finding.detector + (names_it ? "" : ", " + finding.node) + ": " + shortened(finding.text);
    }
    if (check.findings.size() > most)
      text += fmt::format("\nand {} more findings in results.jsonl", check.findings.size() - most);
    return text;
  }

  // Of each metric its median and range, of a curve at its largest size, and the nodes that are worse than the median.
  static Cell measured_by(const std::string& check, const std::map<MetricKey, Measured>& metrics, Curves& curves) {
    std::map<std::string, std::map<double, std::map<std::string, Measured>>> all;  // by metric, size and node
    for (const auto& [key, of] : metrics)
      if (of.check == check) all[key.metric][key.band_bytes][key.node] = of;
    Cell cell;
    std::vector<std::string> lines, outliers;
    for (const auto& [metric, sizes] : all) {
      std::vector<double> medians, values;
      Curves::value_type curve;
      for (const auto& [size, nodes] : sizes) {
        medians.clear(), values.clear();
        for (const auto& [node, of] : nodes) {
          medians.push_back(median(of.values));
          values.insert(values.end(), of.values.begin(), of.values.end());
        }
        if (size > 0) curve[size] = median(medians);
      }
      const auto& [size, nodes] = *sizes.rbegin();
      lines.push_back(metric + (size < 0 ? "" : ", " + band_name(size)) + ": " + number(median(values)) + " " +
                      nodes.begin()->second.unit + (values.size() > 1 ? " (" + range(values) + ")" : ""));
      if (curve.size() > 1) curves.push_back(curve);
      for (const auto& [node, of] : nodes) {
        const double by = change(median(medians), median(of.values));
        if ((of.better == "more" ? -by : by) >= stands_out)
          outliers.push_back(node + ": " + number(median(of.values)) + " (" + percent(by) + ")");
      }
    }
    cell.text = few(lines, "\n");
    if (!outliers.empty()) cell.note = "✗ far from the median: " + few(outliers, "; ");
    return cell;
  }

  // A row for each check, with all its launches: first what failed, the most severe first, then metrics that were
  // compared and are in question, each with the size that is worst, then the other checks, then the other metrics.
  void results() {
    std::vector<std::vector<Cell>> rows, as_before;
    std::set<std::string> shown;  // checks
    std::map<std::pair<std::string, std::string>, std::vector<const Comparison*>> by_metric;
    for (const auto& one : results_.comparisons) {
      by_metric[{one.metric, one.node}].push_back(&one);
      shown.insert(name_of(MetricKey{one.metric, one.band_bytes, one.node}));
    }
    const auto metrics = metrics_of(results_.samples);
    const auto add_row = [&](const CheckResult& check) {
      if (!shown.insert(check.check).second) return;
      const CheckResult* worst = &check;  // of its launches
      int launches = 0;
      double seconds = 0;
      for (const auto& other : results_.checks)
        if (other.check == check.check) {
          ++launches, seconds += other.seconds;
          if (worst->status == Status::pass) worst = &other;
        }
      Cell status = marked(name_of(worst->status));
      status.note = fmt::format("{:.1f} s", seconds) + (launches > 1 ? fmt::format(", {} launches", launches) : "") +
                    (worst->reason.empty() ? "" : ": " + shortened(worst->reason));
      Curves curves;
      Cell found = measured_by(check.check, metrics, curves);
      if (is_failure(*worst)) {
        found.text = advice(*worst) + (found.text.empty() ? "" : "\n" + found.text);
        found.note += (found.note.empty() || worst->command.empty() ? "" : "\n") + worst->command;
      }
      rows.push_back({{check.check, "", check.title}, status, found, {.curves = curves}, {"", "", "", worst->log}});
    };
    for (const auto* check : failed()) add_row(*check);
    const auto in_question = [](const Comparison& one) { return one.verdict != "same" && is_evidence(one); };
    for (const auto& [key, of] : by_metric) {
      const auto& one = **std::ranges::max_element(of, {}, [&](const Comparison* each) {
        return std::tuple(each->verdict == "worse", in_question(*each), worse_by(*each));
      });
      Curves curves(2);  // A and B
      for (const auto* each : of)
        if (each->band_bytes > 0)
          for (const bool is_b : {false, true}) curves[is_b][each->band_bytes] = median(is_b ? each->b : each->a);
      (in_question(one) ? rows : as_before)
          .push_back({{name_of(MetricKey{one.metric, one.band_bytes, one.node})},
                      marked(one.verdict),
                      {explain(one), "", "A: " + range(one.a) + ", B: " + range(one.b)},
                      {.curves = curves},
                      {}});
    }
    for (const auto& check : results_.checks) add_row(check);
    std::ranges::move(as_before, std::back_inserter(rows));
    if (rows.empty()) return;
    const auto main = section("results", by_metric.empty() ? "Results" : "Results, and against the baseline");
    add_table(main, "results", {"what", "result", "found", "over the size", "log"}, rows);
  }

  // Bandwidths between nodes.
  void pairs() {
    std::map<std::string, std::map<std::string, double>> matrix;
    std::vector<double> values;
    for (const auto& sample : results_.samples)
      if (const auto at = sample.node.find(" - "); at != std::string::npos && sample.metric == "bandwidth of a pair") {
        const auto a = sample.node.substr(0, at), b = sample.node.substr(at + 3);
        matrix[a][b] = matrix[b][a] = sample.value;
        values.push_back(sample.value);
      }
    constexpr std::size_t most = 64;
    if (matrix.empty() || matrix.size() > most) return;
    std::ranges::sort(values);
    const double good = values[values.size() * 3 / 4];
    std::vector<std::string> columns{"GB/s"};
    std::vector<std::vector<Cell>> rows;
    for (const auto& [a, of] : matrix) {
      columns.push_back(a);
      rows.push_back({{a}});
      for (const auto& [b, ignored] : matrix)
        rows.back().push_back(of.contains(b)
                                  ? Cell{number(of.at(b)), of.at(b) < good / 2 ? "number bad-text" : "number"}
                                  : Cell{nothing, "number"});
    }
    add_table(section("pairs", "Bandwidth between nodes"), "bandwidth between nodes", columns, rows);
  }

  void with_what() {
    std::vector<std::vector<Cell>> rows;
    for (const auto& one : results_.differences)
      rows.push_back({{one.name}, {or_nothing(one.a) + " → " + or_nothing(one.b), "doubt-text"}, {one.kind}});
    std::map<std::string, std::map<std::string, std::vector<std::string>>> facts;  // name, value, nodes
    for (const auto& fact : results_.facts) facts[fact.name][fact.value].push_back(fact.node);
    for (const auto& [name, values] : facts)
      for (const auto& [value, nodes] : values)
        rows.push_back({{name},
                        {value == "null" ? nothing : shortened(value)},
                        values.size() == 1 ? Cell{nodes.size() == 1 ? "" : "all " + std::to_string(nodes.size())}
                                           : Cell{few(nodes), "doubt-text"}});
    const Head& head = results_.head;
    for (const auto& of : {head.machine, head.settings, head.versions})
      for (const auto& [name, value] : of)
        if (!name.starts_with("package ")) rows.push_back({{name}, {or_nothing(value)}, {}});
    if (!rows.empty()) add_table(section("with", "With what"), "with what", {"name", "value, or A → B", "nodes"}, rows);
  }

  const Results& results_;
  pugi::xml_document document_;
  pugi::xml_node body_;
};

std::string fixed(double seconds) { return fmt::format("{:.3f}", seconds); }

pugi::xml_node add_test(pugi::xml_node suite, const std::string& name, const std::string& class_name, double seconds) {
  auto test = suite.append_child("testcase");
  set(test, "name", name);
  set(test, "classname", class_name);
  set(test, "time", fixed(seconds));
  return test;
}

void not_passed(pugi::xml_node test, const char* element, const std::string& type, const std::string& message,
                const std::string& text = {}) {
  const auto node = add(test, element, text);
  set(node, "type", type);
  set(node, "message", message);
}

std::string sentence(const Finding& finding) {
  return finding.detector + (finding.node.empty() ? "" : " on " + finding.node) + ": " + finding.text;
}

void add_check(pugi::xml_node suite, const std::string& class_name, const CheckResult& check) {
  const auto test = add_test(suite, check.check, class_name, check.seconds);
  const auto first_line = [](const std::string& text) { return text.substr(0, text.find('\n')); };
  std::string message = check.findings.empty() ? check.reason : first_line(sentence(check.findings.front()));
  if (message.empty()) message = name_of(check.status);
  std::string all;
  for (const auto& finding : check.findings) all += sentence(finding) + '\n';
  if (check.action != Action::none) all += std::string("to do: ") + words(check.action) + '\n';
  if (check.status == Status::skip)
    not_passed(test, "skipped", name_of(check.status), message);
  else if (check.status != Status::pass)
    not_passed(test, check.status == Status::not_run ? "error" : "failure", name_of(check.status), message, all);
  std::string out;
  if (!check.title.empty()) out += check.title + '\n';
  if (!check.command.empty()) out += "command: " + check.command + '\n';
  if (!check.nodes.empty()) out += "nodes: " + multinode::join(check.nodes) + '\n';
  if (!check.log.empty()) out += "log: " + check.log + '\n';
  if (!out.empty()) add(test, "system-out", out);
}

std::string label_value(const std::string& text) {
  std::string label = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') label += '\\';
    label += letter == '\n' ? std::string("\\n") : std::string(1, letter);
  }
  return label + "\"";
}

// In the text format that node_exporter's textfile collector reads.
std::string prometheus_text(const Results& results) {
  std::string text;
  const auto metric = [&](const char* name, const char* help) {
    text += fmt::format("# HELP {} {}\n# TYPE {} gauge\n", name, help, name);
  };
  metric("image_check_passed",
         "1 if the check passed, 0 if it failed, was flaky or did not run. Skipped checks are left out.");
  std::map<std::string, bool> passed;  // in all launches
  for (const auto& check : results.checks)
    if (check.status != Status::skip)
      passed[check.check] = passed.try_emplace(check.check, true).first->second && check.status == Status::pass;
  for (const auto& [name, value] : passed)
    text += fmt::format("image_check_passed{{check={}}} {:d}\n", label_value(name), value);
  metric("image_check_value", "What was measured: the median over the launches.");
  for (const auto& [key, measured] : metrics_of(results.samples))
    text += fmt::format("image_check_value{{metric={},size_bytes={},node={},unit={}}} {:g}\n", label_value(key.metric),
                        label_value(key.band_bytes < 0 ? "" : fmt::format("{:.0f}", key.band_bytes)),
                        label_value(key.node), label_value(measured.unit), median(measured.values));
  metric("image_check_exit_status", "0 right, 1 something failed, 3 could not test.");
  text += fmt::format("image_check_exit_status {}\n", results.summary.exit_status);
  metric("image_check_end_time_seconds", "When it ended, in seconds since 1970; if it was killed, when it started.");
  std::tm started{};  // of a report that is made later, too
  const bool known = strptime(results.head.started.c_str(), "%Y-%m-%dT%H:%M:%SZ", &started) != nullptr;
  const auto end = known ? timegm(&started) + std::lround(results.summary.seconds) : std::time(nullptr);
  return text + fmt::format("image_check_end_time_seconds {}\n", end);
}

}  // namespace

Verdict verdict(const Results& results) {
  Summary counts;
  for (const auto& check : results.checks) count(counts, check.status);
  std::map<std::string, int> of;
  for (const auto& comparison : results.comparisons) ++of[comparison.verdict];
  std::vector<std::string> said;
  for (const auto& [number_of, what] :
       {std::pair(counts.failed, "failed"), std::pair(counts.flaky, "flaky"), std::pair(counts.not_run, "not run"),
        std::pair(counts.passed, "passed"), std::pair(counts.skipped, "skipped"),
        std::pair(of["worse"], "worse than the baseline"), std::pair(of["flaky"], "suspect, then not"),
        std::pair(of["no evidence"], "too noisy to be evidence"), std::pair(of["drifts"], "of a baseline that drifts"),
        std::pair(of["better"], "better without an explanation")})
    if (number_of > 0) said.push_back(std::to_string(number_of) + " " + what);
  std::string why = said.empty() ? "nothing was checked" : multinode::join(said);
  if (!results.summary.cause.empty()) why = "likely cause: " + results.summary.cause + "; " + why;
  if (!results.complete) return {"INCOMPLETE", "the run did not come to its end; " + why};
  conclude(counts);
  return {counts.exit_status == 0 ? "PASS" : counts.exit_status == 3 ? "COULD NOT TEST" : "FAIL", why};
}

std::string html_page(const Results& results) { return Page(results).text(); }

void write_reports(const std::filesystem::path& folder, const Results& results) {
  write_whole(folder / "report.html", html_page(results));
  write_whole(folder / "junit.xml", junit_xml(results));
  write_whole(folder / "metrics.prom", prometheus_text(results));
}

std::string junit_xml(const Results& results) {
  pugi::xml_document document;
  auto declaration = document.append_child(pugi::node_declaration);
  set(declaration, "version", "1.0");
  set(declaration, "encoding", "UTF-8");
  const Head& head = results.head;
  const std::string name = "image-check " + head.suite;
  const auto suite = document.append_child("testsuites").append_child("testsuite");
  set(suite, "name", name);
  set(suite, "timestamp", head.started.substr(0, head.started.find('Z')));  // as the format has it
  const bool launches = std::ranges::any_of(results.checks, [](const auto& check) { return check.launch > 0; });
  for (const auto& check : results.checks)
    add_check(suite, name + (launches ? ", launch " + std::to_string(check.launch) : ""), check);
  const auto whole = add_test(suite, "the whole run", name, results.summary.seconds);
  const auto [word, why] = verdict(results);
  if (word != "PASS") not_passed(whole, word == "FAIL" ? "failure" : "error", word, why);
  add(whole, "system-out", word + ": " + why + "\ncommand: " + head.command + '\n');
  set(suite, "time", fixed(results.summary.seconds));
  for (const auto& [count, path] : {std::pair("tests", "testcase"), std::pair("failures", "testcase/failure"),
                                    std::pair("errors", "testcase/error"), std::pair("skipped", "testcase/skipped")})
    set(suite, count, std::to_string(suite.select_nodes(path).size()));

  std::ostringstream text;
  document.save(text, " ");
  return text.str();
}

}  // namespace image_check
