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
#include <tuple>

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
    pairs();
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

  // One row for each metric, with the size that is worst; those in question first.
  void comparisons() {
    if (results_.comparisons.empty()) return;
    const auto main = section("comparison", "Against the baseline");
    add(main, "p",
        "A is the baseline, B is what was tested; of a curve, the size that is worst. Up to the limit a change is "
        "noise. "
        "Sees: the smallest loss that is found in 95 of 100 cases. A metric that does not see the loss that must be "
        "found is no evidence.");
    std::vector<std::vector<Cell>> rows;
    for (const auto& one : results_.differences)
      rows.push_back({{one.name}, {one.kind}, {or_nothing(one.a)}, {or_nothing(one.b)}});
    add_table(main, "what differs between A and B", {"what differs", "", "A", "B"}, rows);

    const auto in_question = [](const Comparison& one) { return one.verdict != "same" && is_evidence(one); };
    std::map<std::pair<std::string, std::string>, std::vector<const Comparison*>> by_metric;
    for (const auto& one : results_.comparisons) by_metric[{one.metric, one.node}].push_back(&one);
    rows.clear();
    std::vector<std::vector<Cell>> others;
    for (const auto& [key, of] : by_metric) {
      const auto& one = **std::ranges::max_element(of, {}, [&](const Comparison* each) {
        return std::tuple(each->verdict == "worse", in_question(*each), worse_by(*each));
      });
      Curves curves(2);  // A and B
      for (const auto* each : of)
        if (each->band_bytes > 0)
          for (const bool is_b : {false, true}) curves[is_b][each->band_bytes] = median(is_b ? each->b : each->a);
      const double limit = std::exp(one.better == "less" ? one.limit : -one.limit);  // as a factor of A's median: 0.95
      (in_question(one) ? rows : others)
          .push_back(
              {{key.first + (key.second.empty() ? "" : ", " + key.second) + (one.unit.empty() ? "" : ", " + one.unit)},
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
               values_cell(one.again_b),
               {.curves = curves}});
    }
    std::ranges::move(others, std::back_inserter(rows));
    add_table(main, "comparisons",
              {"metric", "size", "verdict", "A", "B", "change", "limit", "sees", "again B", "over the size"}, rows);
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
      Curve curve;
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

  // A row for each check, with all its launches.
  void checks() {
    const auto metrics = metrics_of(results_.samples);
    std::set<std::string> compared, shown;
    for (const auto& one : results_.comparisons)
      compared.insert(name_of(MetricKey{one.metric, one.band_bytes, one.node}));
    std::vector<std::vector<Cell>> rows;
    for (const auto& check : results_.checks) {
      if (compared.contains(check.check) || !shown.insert(check.check).second) continue;
      const CheckResult* worst = &check;  // of its launches
      int launches = 0;
      double seconds = 0;
      for (const auto& other : results_.checks)
        if (other.check == check.check) {
          ++launches, seconds += other.seconds;
          if (worst->status == Status::pass || is_failure(other)) worst = &other;
        }
      Cell status = marked(name_of(worst->status));
      status.note = shortened(worst->reason);
      Curves curves;
      Cell measured = measured_by(check.check, metrics, curves);
      rows.push_back(
          {{check.check, "", check.title},
           status,
           {fmt::format("{:.1f} s", seconds), "number", launches > 1 ? fmt::format("{} launches", launches) : ""},
           {check.nodes == results_.head.nodes ? "all " + std::to_string(check.nodes.size()) : few(check.nodes)},
           measured,
           {.curves = curves},
           {"", "", "", worst->log}});
    }
    if (!rows.empty())
      add_table(section("checks", "Checks"), "checks",
                {"check", "status", "time", "nodes", "measured", "over the size", "log"}, rows);
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

}  // namespace image_check
