#include "html.hpp"
#include "report.hpp"
#include "statistics.hpp"

#include <multinode/base/text.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <ranges>
#include <set>

namespace image_check {

namespace {

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

// "11.9 to 12.6, n = 3"; "" of one value
std::string range(const std::vector<double>& values) {
  if (values.size() < 2) return "";
  const auto [least, most] = std::ranges::minmax_element(values);
  return number(*least) + " to " + number(*most) + ", n = " + std::to_string(values.size());
}
Cell values_cell(const std::vector<double>& values) {
  return values.empty() ? Cell{nothing, "number"} : Cell{number(median(values)), "number", range(values)};
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
    failures();
    comparisons();
    checks();
    metrics();
    with_what();
    add(body_, "footer", "Made by image-check from results.jsonl, which holds every value on this page.");
    return page_text(document_);
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
    std::vector<std::vector<Cell>> facts{{{"when"}, {head.started}}};
    if (!head.nodes.empty())
      facts.push_back(
          {{"where"},
           {fmt::format("{} node{} × {} processes, started by {}: {}", head.nodes.size(),
                        head.nodes.size() == 1 ? "" : "s", head.processes_per_node, head.launcher, few(head.nodes))}});
    facts.push_back({{"time"},
                     {fmt::format("{:.0f} s", results_.summary.seconds) +
                      (head.budget_seconds > 0 ? fmt::format(" of {:.0f} s", head.budget_seconds) : "")}});
    facts.push_back({{"command"}, {head.command}});
    add_table(body_, "the run", {"suite", head.suite}, facts);
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
        what = words(check->action) + (nodes.empty() ? " that fails " + check->check : " " + nodes);
      if (std::ranges::find(said, what) == said.end()) said.push_back(what);
    }
    return few(said);
  }

  void failures() {
    const auto all = failed();
    if (all.empty()) return;
    const auto main = section("failures", "What failed");
    constexpr std::size_t most = 100, most_findings = 20;
    for (const auto* check : std::views::take(all, most)) {
      const auto card = add(main, "article", "", check->status == Status::flaky ? "" : "bad");
      std::string to_do = words(check->action);
      to_do[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(to_do[0])));
      const std::string nodes = blamed(*check);
      add(card, "h3", to_do + (nodes.empty() ? "" : " " + nodes) + ": " + check->check);
      if (!check->log.empty()) {  // else it is no run, but a comparison
        const auto where = add(card, "p", "", "soft");
        add_text(where, fmt::format("{} after {:.1f} s, launch {} · {} · ", name_of(check->status), check->seconds,
                                    check->launch + 1, check->title));
        add_log(where, check->log);
      }
      const auto& findings = check->findings;
      for (const auto& finding : std::views::take(findings, most_findings)) {
        const auto item = add(card, "p");
        add(item, "b", finding.detector + (finding.node.empty() ? "" : ", " + finding.node) + ": ");
        add_text(item, shortened(finding.text));
      }
      if (findings.size() > most_findings)
        add(card, "p", fmt::format("and {} more findings in results.jsonl", findings.size() - most_findings));
      if (findings.empty()) add(card, "p", or_nothing(check->reason));
      if (!check->command.empty()) add(card, "code", check->command);
    }
    if (all.size() > most) add(main, "p", fmt::format("{} more failures are in results.jsonl.", all.size() - most));
  }

  void comparisons() {
    if (results_.comparisons.empty()) return;
    const auto main = section("comparison", "Against the baseline");
    add(main, "p",
        "A is the baseline, B is what was tested. Again: what was suspect was measured again in fresh launches. Up to "
        "the limit a change is noise. Sees: the smallest loss that is found in 95 of 100 cases. A metric that does not "
        "see the loss that must be found is no evidence.");
    std::vector<std::vector<Cell>> rows;
    for (const auto& one : results_.differences)
      rows.push_back({{one.name}, {one.kind}, {or_nothing(one.a)}, {or_nothing(one.b)}});
    add_table(main, "what differs between A and B", {"what differs", "", "A", "B"}, rows);

    std::vector<std::vector<Cell>> in_question, others;
    for (const auto& one : results_.comparisons) {
      const std::string name = one.metric + (one.node.empty() ? "" : ", " + one.node);
      const double limit = std::exp(one.better == "less" ? one.limit : -one.limit);  // as a factor of A's median: 0.95
      auto& of = one.verdict == "same" || !is_evidence(one) ? others : in_question;
      of.push_back({{name + (one.unit.empty() ? "" : ", " + one.unit)},
                    {one.band_bytes < 0 ? nothing : band_name(one.band_bytes)},
                    marked(one.verdict),
                    values_cell(one.a),
                    values_cell(one.b),
                    {percent(change(median(one.a), median(one.b))), "number"},
                    {percent(limit - 1), "number"},
                    {one.visible > 0 && one.visible < std::log(10)
                         ? fmt::format("{:.0f} %", 100 * as_share(one.visible, one.better))
                         : nothing,
                     "number"},
                    values_cell(one.again_a),
                    values_cell(one.again_b)});
    }
    const std::vector<std::string> columns{"metric", "size",  "verdict", "A",       "B",
                                           "change", "limit", "sees",    "again A", "again B"};
    add_table(main, "comparisons in question", columns, in_question);
    const auto details = add(main, "details");
    add(details, "summary",
        std::to_string(others.size()) + " metrics and sizes that are as they were, or without evidence");
    add_table(details, "other comparisons", columns, others);
  }

  void checks() {
    std::set<std::string> compared;
    for (const auto& one : results_.comparisons)
      compared.insert(name_of(MetricKey{one.metric, one.band_bytes, one.node}));
    std::vector<std::vector<Cell>> rows;
    for (const auto& check : results_.checks) {
      if (compared.contains(check.check)) continue;  // in the tables above
      Cell status = marked(name_of(check.status));
      status.note = shortened(check.reason);
      const bool everywhere = check.nodes == results_.head.nodes;
      rows.push_back({{check.check, "", check.title},
                      status,
                      {fmt::format("{:.1f} s", check.seconds), "number"},
                      {std::to_string(check.launch + 1), "number"},
                      {everywhere ? "all " + std::to_string(check.nodes.size()) : few(check.nodes)},
                      {"", "", "", check.log}});
    }
    if (!rows.empty())
      add_table(section("checks", "Checks"), "checks", {"check", "status", "time", "launch", "nodes", "log"}, rows);
  }

  // Of each metric and size, the nodes that are worse than their median; those rows first.
  void metrics() {
    std::map<std::pair<std::string, double>, std::map<std::string, Measured>> measured;  // by node
    for (auto& [key, of_node] : metrics_of(results_.samples))
      measured[{key.metric, key.band_bytes}][key.node] = of_node;
    if (measured.empty()) return;
    std::vector<std::vector<Cell>> rows;
    for (const auto& [metric, nodes] : measured) {
      std::vector<double> all, medians;
      for (const auto& [node, of_node] : nodes) {
        all.insert(all.end(), of_node.values.begin(), of_node.values.end());
        medians.push_back(median(of_node.values));
      }
      std::vector<std::string> outliers;
      for (const auto& [node, of_node] : nodes) {
        const double by = change(median(medians), median(of_node.values));
        if ((of_node.better == "more" ? -by : by) >= stands_out)
          outliers.push_back(node + ": " + number(median(of_node.values)) + " (" + percent(by) + ")");
      }
      rows.push_back({{metric.first + (metric.second < 0 ? "" : ", " + band_name(metric.second))},
                      {nodes.begin()->second.unit},
                      values_cell(all),
                      {few(outliers, "; "), outliers.empty() ? "" : "bad-text"}});
    }
    std::ranges::stable_partition(rows, [](const auto& row) { return !row.back().text.empty(); });
    const auto main = section("values", "What was measured");
    add(main, "p",
        "Medians over the launches and nodes; in small print the range. Nodes stand out if they are 10 % worse than "
        "the median of the nodes.");
    add_table(main, "values", {"metric", "unit", "value", "nodes that stand out"}, rows);
  }

  void with_what() {
    std::map<std::string, std::map<std::string, std::vector<std::string>>> facts;  // name, value, nodes
    for (const auto& fact : results_.facts) facts[fact.name][fact.value].push_back(fact.node);
    std::vector<std::vector<Cell>> rows;
    for (const auto& [name, values] : facts)
      for (const auto& [value, nodes] : values)
        rows.push_back(
            {{name},
             {value == "null" ? nothing : shortened(value)},
             values.size() == 1 ? Cell{"all " + std::to_string(nodes.size())} : Cell{few(nodes), "doubt-text"}});
    const Head& head = results_.head;
    if (rows.empty() && head.machine.empty() && head.versions.empty() && head.settings.empty()) return;
    const auto main = section("with", "Machine, versions and settings");
    add_table(main, "what the nodes have", {"what the nodes have", "value", "nodes"}, rows);

    rows.clear();
    for (const auto& of : {head.machine, head.versions, head.settings})
      for (const auto& [name, value] : of) rows.push_back({{name}, {or_nothing(value)}});
    std::ranges::stable_partition(rows, [](const auto& row) { return !row.front().text.starts_with("package "); });
    const auto details = add(main, "details");
    add(details, "summary", std::to_string(rows.size()) + " names of hardware, versions, settings and packages");
    add_table(details, "hardware, versions, settings and packages", {"name", "value"}, rows);
  }

  const Results& results_;
  pugi::xml_document document_;
  pugi::xml_node body_;
};

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
  const std::string why = said.empty() ? "nothing was checked" : multinode::join(said);
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

}  // namespace image_check
