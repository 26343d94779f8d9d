#include "report.hpp"

#include "statistics.hpp"

#include <multinode/base/json.hpp>
#include <multinode/base/text.hpp>

#include <fmt/core.h>
#include <pugixml.hpp>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>
#include <ranges>
#include <regex>
#include <set>
#include <sstream>
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
thead th { color: var(--soft); vertical-align: bottom; overflow-wrap: normal; }
td small, th small { display: block; font-weight: 400; white-space: pre-line; }
.number { text-align: right; }
.number, #pairs th { white-space: nowrap; }
td { white-space: pre-line; }
svg { width: 10rem; height: 3rem; }
polyline { fill: none; stroke: var(--soft); stroke-width: 1.5; }
polyline:last-child { stroke: var(--good); stroke-width: 2.5; }
)css";

// Text that XML can hold, without U+FFFE and U+FFFF, too.
std::string printable(const std::string& text) {
  static const std::regex no_characters("\xEF\xBF[\xBE\xBF]");
  return std::regex_replace(multinode::without_controls(text), no_characters, "?");
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
  set(head.append_child("meta"), "charset", "utf-8");
  for (const auto& [attribute, name, content] :
       {std::tuple("http-equiv", "Content-Security-Policy",
                   "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"),
        std::tuple("name", "viewport", "width=device-width, initial-scale=1")}) {
    auto meta = head.append_child("meta");
    set(meta, attribute, name);
    set(meta, "content", content);
  }
  add(head, "title", title);
  add(head, "style", page_style);
  return add(html, "body");
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
    const auto line = add(svg, "polyline");
    set(line, "points", points), set(line, "fill", "none"), set(line, "stroke", "#7c848d");
  }
}

// The first cell of each row is its head. A column is aligned as its cell in the first row is. Of more than 500 rows,
// the first: results.jsonl has them all.
void add_table(pugi::xml_node parent, const std::vector<std::string>& columns,
               const std::vector<std::vector<Cell>>& rows) {
  if (rows.empty()) return;
  const auto scrolled = add(parent, "div", "", "scrolled");
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
      if (!cell.log.empty()) set(add(node, "a", "log"), "href", "./" + cell.log);  // beside the page, whatever it is
      if (!cell.curves.empty()) add_curves(node, cell.curves);
    }
  }
  if (rows.size() > most)
    add(scrolled, "p", std::to_string(rows.size() - most) + " more are in results.jsonl.", "soft");
}

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

// "11.9 to 12.6, n = 3"
std::string range(const std::vector<double>& values) {
  if (values.empty()) return nothing;
  const auto [least, most] = std::ranges::minmax_element(values);
  return number(*least) + (values.size() > 1 ? " to " + number(*most) : "") + ", n = " + std::to_string(values.size());
}

Cell marked(const std::string& word) {
  if (word == "pass" || word == "same") return {"✓ " + word, "good-text"};
  if (word == "fail" || word == "timeout" || word == "worse") return {"✗ " + word, "bad-text"};
  if (word == "skip" || word == "no evidence") return {"– " + word, "soft"};
  return {"≈ " + word, "doubt-text"};
}

std::string sentence(const Finding& finding) {
  return finding.detector + (finding.node.empty() ? "" : " on " + finding.node) + ": " + finding.text;
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
    const Head& head = results_.head;
    add(banner, "p",
        fmt::format("{}, {:.0f} s; {} x {} processes, started by {}: {}", head.started, results_.summary.seconds,
                    head.nodes.size(), head.processes_per_node, head.launcher, few(head.nodes)),
        "soft");
    add(banner, "code", head.command);
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

  // What is to be done about a failed check, and what was found.
  static std::string advice(const CheckResult& check) {
    constexpr std::size_t most = 20;
    std::string text = words(check.action) + ":";
    for (const auto& finding : std::views::take(check.findings, most)) text += "\n" + shortened(sentence(finding));
    if (check.findings.size() > most)
      text += fmt::format("\nand {} more findings in results.jsonl", check.findings.size() - most);
    return text;
  }

  // Of each metric its median and range, of a curve at its largest size, over launches and nodes.
  static std::string measured_by(const std::map<MetricKey, Measured>& metrics, Curves& curves) {
    std::map<std::pair<std::string, std::string>, std::map<double, std::vector<double>>> all;  // by metric, unit; size
    for (const auto& [key, of] : metrics)
      std::ranges::copy(of.values, std::back_inserter(all[{key.metric, of.unit}][key.band_bytes]));
    std::vector<std::string> lines;
    for (const auto& [name, sizes] : all) {
      const auto& [size, values] = *sizes.rbegin();
      lines.push_back(name_of(MetricKey{name.first, size, ""}) + ": " + number(median(values)) + " " + name.second +
                      (values.size() > 1 ? " (" + range(values) + ")" : ""));
      if (sizes.size() < 2) continue;
      for (curves.emplace_back(); const auto& [band, of] : sizes) curves.back()[band] = median(of);
    }
    return few(lines, "\n");
  }

  // A row for each check, with all its launches: first what failed, the most severe first, then metrics that were
  // compared and are in question, each with the size that is worst, then the other checks, then the other metrics.
  void results() {
    std::vector<std::vector<Cell>> rows, as_before;
    std::set<std::string> shown;  // checks
    std::map<std::pair<std::string, std::string>, std::vector<const Comparison*>> by_metric;
    for (const auto& one : results_.comparisons) {
      by_metric[{one.metric, one.node}].push_back(&one);
      shown.insert(name_of(key_of(one)));
    }
    std::map<std::string, std::map<MetricKey, Measured>> metrics;  // by check
    for (const auto& [key, of] : metrics_of(results_.samples)) metrics[of.check][key] = of;
    std::map<std::string, std::vector<const CheckResult*>> launches_of;
    for (const auto& check : results_.checks) launches_of[check.check].push_back(&check);
    const auto add_row = [&](const CheckResult& check) {
      if (!shown.insert(check.check).second) return;
      const CheckResult* worst = &check;  // of its launches
      const auto& launches = launches_of.at(check.check);
      double seconds = 0;
      for (const auto* other : launches) {
        seconds += other->seconds;
        if (worst->status == Status::pass) worst = other;
      }
      Cell status = marked(name_of(worst->status));
      status.note = fmt::format("{:.1f} s", seconds) +
                    (launches.size() > 1 ? fmt::format(", {} launches", launches.size()) : "") +
                    (worst->other_work < 0.05 ? "" : fmt::format(", other work {:.0f} %", 100 * worst->other_work)) +
                    (worst->reason.empty() ? "" : ": " + shortened(worst->reason));
      Curves curves;
      Cell found{measured_by(metrics[check.check], curves)};
      if (is_failure(*worst)) {
        found.text = advice(*worst) + (found.text.empty() ? "" : "\n" + found.text);
        found.note = worst->command;
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
          .push_back({{name_of(key_of(one))},
                      marked(one.verdict),
                      {explain(one), "", "A: " + range(one.a) + ", B: " + range(one.b)},
                      {.curves = curves},
                      {}});
    }
    for (const auto& check : results_.checks) add_row(check);
    std::ranges::move(as_before, std::back_inserter(rows));
    if (rows.empty()) return;
    const auto main = section("results", by_metric.empty() ? "Results" : "Results, and against the baseline");
    add_table(main, {"what", "result", "found", "over the size", "log"}, rows);
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
    add_table(section("pairs", "Bandwidth between nodes"), columns, rows);
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
    if (!rows.empty()) add_table(section("with", "With what"), {"name", "value, or A → B", "nodes"}, rows);
  }

  const Results& results_;
  pugi::xml_document document_;
  pugi::xml_node body_;
};

// A test of JUnit.
void add_test(pugi::xml_node suite, const std::string& class_name, const CheckResult& check) {
  const auto test = suite.append_child("testcase");
  set(test, "name", check.check);
  set(test, "classname", class_name);
  set(test, "time", fmt::format("{:.3f}", check.seconds));
  std::string why = multinode::join(check.findings, "\n", sentence);
  if (why.empty()) why = check.reason;
  if (check.status != Status::pass) {
    const bool skipped = check.status == Status::skip, not_run = check.status == Status::not_run;
    const auto node = add(test, skipped ? "skipped" : not_run ? "error" : "failure", why);
    set(node, "type", name_of(check.status));
    set(node, "message", why.substr(0, why.find('\n')));
  }
  add(test, "system-out",
      fmt::format("{}\nto do: {}\ncommand: {}\nnodes: {}\nlog: {}\n", check.title, words(check.action), check.command,
                  multinode::join(check.nodes), check.log));
}

std::string label_value(const std::string& text) {
  std::string label = "\"";
  for (const char letter : printable(text)) {
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
  std::vector<std::string> said;
  for (const auto& [number_of, what] :
       {std::pair(counts.failed, "failed"), std::pair(counts.flaky, "flaky"), std::pair(counts.not_run, "not run"),
        std::pair(counts.passed, "passed"), std::pair(counts.skipped, "skipped")})
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
    add_test(suite, name + (launches ? ", launch " + std::to_string(check.launch) : ""), check);
  const auto [word, why] = verdict(results);
  add_test(suite, name,
           {.check = "the whole run",
            .title = word + ": " + why,
            .status = word == "PASS"   ? Status::pass
                      : word == "FAIL" ? Status::fail
                                       : Status::not_run,
            .seconds = results.summary.seconds,
            .nodes = head.nodes,
            .command = head.command,
            .reason = why});
  set(suite, "time", fmt::format("{:.3f}", results.summary.seconds));
  for (const auto& [count, path] : {std::pair("tests", "testcase"), std::pair("failures", "testcase/failure"),
                                    std::pair("errors", "testcase/error"), std::pair("skipped", "testcase/skipped")})
    set(suite, count, std::to_string(suite.select_nodes(path).size()));

  std::ostringstream text;
  document.save(text, " ");
  return text.str();
}

}  // namespace image_check
