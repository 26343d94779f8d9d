#include "curve.hpp"
#include "nodes.hpp"
#include "report.hpp"
#include "series.hpp"
#include "verdict.hpp"
#include "xml.hpp"

#include <multinode/text.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>
#include <tuple>

namespace image_check {

namespace {

constexpr std::size_t curve_bands = 3;  // fewer are no curve

std::vector<std::string> words_of(std::vector<std::string> words) {
  words.erase(std::remove(words.begin(), words.end(), ""), words.end());
  return words;
}

std::vector<std::string> at_most(std::vector<std::string> words, std::size_t most) {
  if (words.size() > most) {
    const auto more = words.size() - most;
    words.resize(most);
    words.push_back("and " + std::to_string(more) + " more");
  }
  return words;
}

std::string seconds(double value) { return fmt::format("{:.{}f} s", value, value < 10 ? 1 : 0); }

std::string shortened(const std::string& text, std::size_t most = 2000) {
  if (text.size() <= most) return text;
  std::size_t end = most;
  while (end > most - 4 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // not within a character
  return text.substr(0, end) + " ... (" + std::to_string(text.size() - end) + " bytes more)";
}

std::string band_words(double bytes) { return bytes < 0 ? "" : band_name(bytes); }

pugi::xml_node table(pugi::xml_node parent, const std::string& name,
                     const std::vector<std::pair<std::string, bool>>& columns) {  // with: is a number
  const auto scrolled = add(parent, "div", "", "scrolled");
  set(scrolled, "tabindex", "0");
  set(scrolled, "role", "region");
  set(scrolled, "aria-label", name);
  const auto node = add(scrolled, "table");
  const auto row = add(add(node, "thead"), "tr");
  for (const auto& [column, is_number] : columns)
    set(add(row, "th", column, is_number ? "number" : ""), "scope", "col");
  return add(node, "tbody");
}

pugi::xml_node head_cell(pugi::xml_node row, const std::string& text) {
  const auto cell = add(row, "th", text);
  set(cell, "scope", "row");
  return cell;
}

void link(pugi::xml_node parent, const std::string& address, const std::string& text) {
  const auto node = add(parent, "a", text);
  set(node, "href", address);
}

// A log beside the page; never another kind of address.
void log_link(pugi::xml_node parent, const std::string& log, const std::string& text) {
  std::string address = "./";
  for (const char c : log) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) || std::string_view("/._-").find(c) != std::string_view::npos)
      address += c;
    else
      address += fmt::format("%{:02X}", byte);
  }
  link(parent, address, text);
}

pugi::xml_node status_cell(pugi::xml_node row, Status status) {
  switch (status) {
    case Status::pass:
      return add(row, "td", "✓ pass", "pass-text");
    case Status::skip:
      return add(row, "td", "– skip", "soft-text");
    case Status::flaky:
    case Status::not_run:
      return add(row, "td", std::string(status == Status::flaky ? "≈ " : "○ ") + name_of(status), "doubt-text");
    default:
      return add(row, "td", std::string("✗ ") + name_of(status), "fail-text");
  }
}

// A metric of a node, compared.
struct Subject {
  std::string metric, unit, better, node;
  std::vector<const Comparison*> comparisons;
  std::string title() const { return metric + (node.empty() ? "" : ", " + node); }
  std::string worst() const {
    for (const char* found : {"worse", "better", "flaky"})
      if (std::any_of(comparisons.begin(), comparisons.end(), [&](const auto* c) { return c->verdict == found; }))
        return found;
    return "same";
  }
};

class Page {
 public:
  Page(const Results& results, const Results* baseline)
      : results_(results),
        baseline_(baseline),
        run_name_(results.head.suite == "compare" ? "B" : "this run"),
        baseline_name_(results.head.suite == "compare" ? "A" : "baseline"),
        series_(series_of(results.samples)) {
    if (baseline) baseline_series_ = series_of(baseline->samples);
    std::map<std::tuple<std::string, std::string, std::string>, std::size_t> known;
    for (const auto& comparison : results.comparisons) {
      const auto [at, is_new] =
          known.try_emplace({comparison.metric, comparison.unit, comparison.node}, subjects_.size());
      if (is_new) subjects_.push_back({comparison.metric, comparison.unit, comparison.better, comparison.node, {}});
      subjects_[at->second].comparisons.push_back(&comparison);
    }
  }

  std::string text() {
    const auto [outcome, word, why] = verdict(results_);
    body_ = start_page(document_, word + ": image-check " + results_.head.suite + ", " + results_.head.started);
    top(outcome, word, why);
    auto contents = add(body_, "nav");
    set(contents, "aria-label", std::string("sections"));
    failures();
    comparisons();
    checks();
    const std::size_t before = sections_.size();
    section("nodes", "The nodes against each other");
    if (!add_nodes(main_, results_)) {
      body_.remove_child(main_);
      sections_.resize(before);
    }
    curves();
    single_values();
    with_what();
    add(body_, "footer", "Made by image-check from results.jsonl, which holds every value on this page.");
    if (sections_.size() < 2)
      body_.remove_child(contents);
    else
      for (const auto& [id, title] : sections_) {
        link(contents, "#" + id, title);
        add_text(contents, " ");
      }
    std::ostringstream out;
    document_.save(out, "", pugi::format_raw | pugi::format_no_declaration);
    return out.str() + "\n";
  }

 private:
  void section(const std::string& id, const std::string& title) {
    main_ = add(body_, "section");
    set(main_, "id", id);
    add(main_, "h2", title);
    sections_.emplace_back(id, title);
  }

  void top(Outcome outcome, const std::string& word, const std::string& why) {
    const auto banner = add(body_, "header", "",
                            outcome == Outcome::pass   ? "verdict pass"
                            : outcome == Outcome::fail ? "verdict fail"
                                                       : "verdict");
    const auto title = add(banner, "h1");
    add(title, "strong", (outcome == Outcome::pass ? "✓ " : outcome == Outcome::fail ? "✗ " : "? ") + word);
    add(title, "span", why + ".");
    std::string to_do = actions();
    if (!to_do.empty()) add(banner, "p", "To do: " + to_do + ".");
    const std::string worse = changes("worse");
    if (!worse.empty()) add(banner, "p", "Worse: " + worse + ".");
    if (!results_.comparisons.empty()) add(banner, "p", "What differs: " + differing() + ".");
    if (!results_.checks.empty()) counts();
    facts();
  }

  // "all_reduce bus bandwidth, mpi (128 KiB -41 %, 2 MiB -40 %)"
  std::string changes(const std::string& found) const {
    std::vector<std::string> said;
    for (const auto& subject : subjects_) {
      std::vector<std::string> bands;
      for (const auto* comparison : subject.comparisons) {
        if (comparison->verdict != found) continue;
        const auto a = spread(comparison->a), b = spread(comparison->b);
        bands.push_back(band_words(comparison->band_bytes));
        if (a && b) bands.back() += (bands.back().empty() ? "" : " ") + percent(change(*a, *b));
      }
      if (!bands.empty()) said.push_back(subject.title() + " (" + multinode::join(at_most(bands, 4)) + ")");
    }
    return multinode::join(at_most(said, 6), "; ");
  }

  std::string differing() const {
    std::vector<std::string> said;
    for (const auto& each : results_.differences)
      said.push_back(each.name + " " + (each.a.empty() ? "none" : shortened(each.a, 60)) + " → " +
                     (each.b.empty() ? "none" : shortened(each.b, 60)));
    return said.empty() ? "no version, setting or machine" : multinode::join(at_most(said, 6), "; ");
  }

  void counts() {
    const Summary counts = counted(results_.checks);
    const auto list = add(body_, "dl", "", "counts");
    const auto count = [&](int number, const char* name, bool is_bad) {
      const auto item = add(list, "div", "", number == 0 ? "none" : is_bad ? "bad" : "");
      add(item, "dt", name);
      add(item, "dd", std::to_string(number));
    };
    count(static_cast<int>(results_.checks.size()), "checks", false);
    count(counts.passed, "passed", false);
    count(counts.failed, "failed", true);
    count(counts.flaky, "flaky", true);
    count(counts.not_run, "not run", true);
    count(counts.skipped, "skipped", false);
  }

  void facts() {
    const auto facts = add(body_, "dl", "", "facts");
    const auto fact = [&](const char* name, const std::string& value) {
      add(facts, "dt", name);
      return add(facts, "dd", value);
    };
    const Head& head = results_.head;
    fact("suite", head.suite);
    fact("when", head.started);
    std::string nodes = std::to_string(head.nodes.size()) + (head.nodes.size() == 1 ? " node" : " nodes");
    if (head.processes_per_node > 0) nodes += " × " + std::to_string(head.processes_per_node) + " processes";
    if (!head.launcher.empty()) nodes += ", started by " + head.launcher;
    if (!head.nodes.empty()) fact("where", nodes + ": " + multinode::join(head.nodes));
    time_used(fact("time", ""));
    if (baseline_) fact("baseline", baseline_->head.suite + " of " + baseline_->head.started);
    add(fact("command", ""), "code", head.command, "command");
  }

  void time_used(pugi::xml_node parent) {
    double used = results_.summary.seconds;
    if (!results_.complete) {
      used = 0;
      for (const auto& check : results_.checks) used += check.seconds;
    }
    const double budget = results_.head.budget_seconds;
    std::string words = seconds(used) + " used";
    if (!results_.complete) words = "checks of " + seconds(used);
    if (budget > 0) words += " of " + seconds(budget);
    if (budget > 0 && used > budget) words += ": over the budget";
    add_text(parent, words);
    if (budget <= 0) return;
    auto svg = parent.append_child("svg");
    set(svg, "viewBox", std::string("0 0 100 4"));
    set(svg, "preserveAspectRatio", std::string("none"));
    set(svg, "class", std::string("budget"));
    set(svg, "role", std::string("img"));
    add(svg, "title", words);
    for (const auto& [css, width] :
         {std::pair("all", 100.0), std::pair(used > budget ? "over" : "used", std::min(100.0, 100 * used / budget))}) {
      auto bar = svg.append_child("rect");
      set(bar, "class", std::string(css));
      set(bar, "width", width);
      set(bar, "height", 4.0);
    }
  }

  bool several_launches() const {
    return std::any_of(results_.checks.begin(), results_.checks.end(),
                       [&](const auto& check) { return check.launch != results_.checks.front().launch; });
  }

  // Nodes that a failed check blames; where there is one node only, that.
  std::string blamed(const CheckResult& check) const {
    std::vector<std::string> nodes;
    for (const auto& finding : check.findings)
      if (!finding.node.empty() && std::find(nodes.begin(), nodes.end(), finding.node) == nodes.end())
        nodes.push_back(finding.node);
    return nodes.empty() && results_.head.nodes.size() == 1 ? results_.head.nodes.front() : multinode::join(nodes);
  }

  // The most severe first; those that nothing is said about last.
  std::vector<const CheckResult*> failed() const {
    std::vector<const CheckResult*> all;
    for (const auto& check : results_.checks)
      if (is_failure(check.status)) all.push_back(&check);
    const auto rank = [](const CheckResult* check) {
      return std::pair(check->action == Action::none ? static_cast<int>(Action::look) : static_cast<int>(check->action),
                       check->status == Status::flaky);
    };
    std::stable_sort(all.begin(), all.end(), [&](const auto* a, const auto* b) { return rank(a) < rank(b); });
    return all;
  }

  std::string actions() const {
    std::vector<std::string> said;
    for (const auto* check : failed()) {
      if (check->action == Action::none) continue;
      const std::string nodes = blamed(*check);
      std::string what = check->action == Action::look ? "look at " + check->check : words(check->action);
      if (check->action != Action::look) what += nodes.empty() ? " that fails " + check->check : " " + nodes;
      if (std::find(said.begin(), said.end(), what) == said.end()) said.push_back(what);
    }
    return multinode::join(at_most(said, 6));
  }

  void failures() {
    const auto all = failed();
    if (all.empty()) return;
    section("failures", "What failed");
    for (const auto* check : all) {
      const auto card = add(main_, "article", "", check->status == Status::flaky ? "failure doubt" : "failure");
      const auto title = add(card, "h3");
      std::string to_do = words(check->action);
      if (!to_do.empty()) {
        const std::string nodes = blamed(*check);
        to_do[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(to_do[0])));
        if (check->action == Action::look && !nodes.empty()) to_do += " at";
        add(title, "span", to_do + (nodes.empty() ? "" : " " + nodes) + ":", "do");
        add_text(title, " ");
      }
      add_text(title, check->check);
      std::vector<std::string> where_words = {std::string(name_of(check->status)) + " after " +
                                              seconds(check->seconds)};
      if (!check->title.empty()) where_words.push_back("shows: " + check->title);
      if (several_launches()) where_words.push_back("launch " + std::to_string(check->launch));
      if (!check->nodes.empty())
        where_words.push_back("on " + (check->nodes.size() <= 8 ? multinode::join(check->nodes)
                                                                : std::to_string(check->nodes.size()) + " nodes"));
      const auto where = add(card, "p", multinode::join(where_words, " · "), "where");
      if (!check->log.empty()) {
        add_text(where, " · log ");
        log_link(where, check->log, check->log);
      }
      const auto list = add(card, "ul");
      for (const auto& finding : check->findings) {
        const auto item = add(list, "li");
        add(item, "b", finding.detector + (finding.node.empty() ? "" : ", " + finding.node) + ": ");
        add_text(item, shortened(finding.text));
      }
      if (check->findings.empty())
        add(list, "li", check->reason.empty() ? "No finding says why." : shortened(check->reason));
      if (!check->command.empty()) add(card, "code", check->command, "command");
    }
  }

  const Bands* bands_of(const std::vector<Series>& all, const Subject& subject) const {
    for (const auto& series : all)
      if (series.metric == subject.metric && series.node == subject.node && series.unit == subject.unit)
        return &series.bands;
    return nullptr;
  }

  void comparisons() {
    if (results_.comparisons.empty()) return;
    section("comparison", "Against the baseline");
    add(main_, "p",
        "A is the baseline, B is what was tested. What was suspect was measured again in fresh launches, A and B in "
        "turn. Up to the limit a change is noise. Sees: the smallest loss that is found in 95 of 100 cases. A metric "
        "that does not see 30 % is blind, and no evidence.");
    differences();
    for (const char* found : {"worse", "better", "flaky"})
      for (const auto& subject : subjects_)
        if (subject.worst() == found) suspect(subject);
    const auto all = add(main_, "details");
    add(all, "summary", "All " + std::to_string(results_.comparisons.size()) + " metrics and sizes that were compared");
    std::vector<const Subject*> everything;
    for (const auto& subject : subjects_) everything.push_back(&subject);
    comparison_table(all, "all comparisons", everything, true);
  }

  void suspect(const Subject& subject) {
    const auto block = add(main_, "article", "", "suspect");
    const auto header = add(block, "header");
    add(header, "h3", subject.title() + (subject.unit.empty() ? "" : ", " + subject.unit));
    Curve curve{subject.title(), subject.unit, {"A", {}}, {"B", {}}, {}, {}};
    if (const Bands* bands = bands_of(baseline_series_, subject)) curve.baseline.bands = *bands;
    if (const Bands* bands = bands_of(series_, subject)) curve.run.bands = *bands;
    for (const auto* comparison : subject.comparisons) {
      const auto a = spread(comparison->a), b = spread(comparison->b);
      if (a) curve.baseline.bands[comparison->band_bytes] = *a;
      if (b) curve.run.bands[comparison->band_bytes] = *b;
      if (const auto limit = worse_from(*comparison)) curve.limits[comparison->band_bytes] = *limit;
      if (comparison->verdict != "same" && comparison->verdict != "blind")
        curve.marked[comparison->band_bytes] = {
            band_words(comparison->band_bytes) + (a && b ? " " + percent(change(*a, *b)) : ""),
            comparison->verdict == "worse"};
    }
    const auto figure = add(block, "figure");
    if (curve.run.bands.size() >= 2 || curve.baseline.bands.size() >= 2) {
      curve.title = subject.title() + ": A, the baseline, and B by size; in question: " + marks(curve);
      draw(figure, curve);
    } else {
      const Comparison& only = *subject.comparisons.front();
      draw(figure, Dots{subject.title() + ": every value of A, the baseline, and of B", subject.unit, "A", "B", only.a,
                        only.b, worse_from(only)});
    }
    comparison_table(block, subject.title(), {&subject}, false);
  }

  static std::string marks(const Curve& curve) {
    std::vector<std::string> words;
    for (const auto& [band, mark] : curve.marked) words.push_back(mark.words);
    return multinode::join(words);
  }

  void comparison_table(pugi::xml_node parent, const std::string& name, const std::vector<const Subject*>& subjects,
                        bool all) {
    std::vector<std::pair<std::string, bool>> columns = {{"size", false}, {"verdict", false}, {"A", true},
                                                         {"B", true},     {"change", true},   {"limit", true},
                                                         {"sees", true},  {"again A", true},  {"again B", true}};
    if (all) columns.insert(columns.begin(), {"metric", false});
    const auto body = table(parent, name, columns);
    const auto cell = [](pugi::xml_node row, const std::optional<Spread>& values) {
      const auto node = add(row, "td", values ? number(values->median) : "–", "number");
      if (values && values->least < values->most)
        add(node, "small", number(values->least) + " to " + number(values->most));
    };
    for (const auto* subject : subjects)
      for (const auto* comparison : subject->comparisons) {
        const std::string& found = comparison->verdict;
        if (!all && (found == "same" || found == "blind")) continue;
        const auto row = add(body, "tr");
        const std::string size = comparison->band_bytes < 0 ? "–" : band_name(comparison->band_bytes);
        if (all) {
          head_cell(row, subject->title() + (subject->unit.empty() ? "" : ", " + subject->unit));
          add(row, "td", size);
        } else {
          head_cell(row, size);
        }
        const bool is_bad = found == "worse";
        add(row, "td",
            (is_bad             ? "✗ "
             : found == "same"  ? "✓ "
             : found == "blind" ? "– "
                                : "≈ ") +
                found,
            is_bad             ? "fail-text"
            : found == "same"  ? "pass-text"
            : found == "blind" ? "soft-text"
                               : "doubt-text");
        const auto a = spread(comparison->a), b = spread(comparison->b);
        cell(row, a);
        cell(row, b);
        add(row, "td", a && b ? percent(change(*a, *b)) : "–", "number");
        const auto limit = worse_from(*comparison);
        add(row, "td", limit ? percent(change(*a, {*limit})) : "–", "number");
        const double visible = as_share(comparison->visible, comparison->better);
        add(row, "td", visible > 0 && visible < 1 ? std::to_string(std::lround(100 * visible)) + " %" : "–", "number");
        cell(row, spread(comparison->again_a));
        cell(row, spread(comparison->again_b));
      }
  }

  void differences() {
    add(main_, "h3", "What differs between A and B");
    if (results_.differences.empty()) {
      add(main_, "p", "No version, setting or machine differs.");
      return;
    }
    const auto body = table(main_, "differences", {{"kind", false}, {"name", false}, {"A", false}, {"B", false}});
    for (const auto& difference : results_.differences) {
      const auto row = add(body, "tr");
      add(row, "td", difference.kind);
      head_cell(row, difference.name);
      add(row, "td", difference.a.empty() ? "–" : shortened(difference.a), "value");
      add(row, "td", difference.b.empty() ? "–" : shortened(difference.b), "value");
    }
  }

  void checks() {
    if (results_.checks.empty()) return;
    const std::set<std::string> everywhere(results_.head.nodes.begin(), results_.head.nodes.end());
    // Of the metrics that are as they were, the section above has a table.
    std::set<std::string> compared;
    for (const auto& subject : subjects_)
      for (const auto* comparison : subject.comparisons)
        compared.insert(multinode::join(words_of({subject.metric, band_words(comparison->band_bytes), subject.node})));
    const auto in_comparisons = [&](const CheckResult& check) {
      return compared.count(check.check) && (check.status == Status::pass || check.status == Status::skip);
    };
    if (std::all_of(results_.checks.begin(), results_.checks.end(), in_comparisons)) return;
    section("checks", compared.empty() ? "All checks" : "All other checks");
    const bool launches = several_launches();
    std::vector<std::pair<std::string, bool>> columns = {
        {"check", false}, {"status", false}, {"time", true}, {"log", false}};
    if (everywhere.size() > 1) columns.insert(columns.begin() + 3, {"nodes", false});
    if (launches) columns.insert(columns.begin() + 2, {"launch", true});
    set(main_, "class", std::string("checks"));
    const auto body = table(main_, "all checks", columns);
    for (const auto& check : results_.checks) {
      if (in_comparisons(check)) continue;
      const auto row = add(body, "tr");
      const auto name = head_cell(row, check.check);
      if (!check.title.empty()) add(name, "small", check.title);
      const auto status = status_cell(row, check.status);
      if (!check.reason.empty()) add(status, "small", shortened(check.reason), "reason");
      if (launches) add(row, "td", std::to_string(check.launch), "number");
      add(row, "td", check.status == Status::not_run || check.status == Status::skip ? "" : seconds(check.seconds),
          "number");
      const std::set<std::string> here(check.nodes.begin(), check.nodes.end());
      if (everywhere.size() > 1)
        add(row, "td",
            here == everywhere ? "all " + std::to_string(here.size())
            : here.size() <= 4
                ? multinode::join(check.nodes)
                : std::to_string(here.size()) + ": " + check.nodes.front() + " ... " + check.nodes.back());
      const auto log = add(row, "td");
      if (!check.log.empty()) log_link(log, check.log, std::filesystem::path(check.log).filename().string());
    }
  }

  // A metric of single nodes: the median and the range over the nodes.
  static std::vector<Series> over_nodes(const std::vector<Series>& all) {
    std::vector<Series> result;
    std::vector<std::map<double, std::vector<const Spread*>>> parts;
    for (const auto& series : all) {
      if (is_pair(series.node)) continue;
      auto at = std::find_if(result.begin(), result.end(), [&](const auto& known) {
        return known.metric == series.metric && known.unit == series.unit && known.node.empty() == series.node.empty();
      });
      if (at == result.end()) {
        at = result.insert(at, series);
        at->bands.clear();
        parts.emplace_back();
      }
      for (const auto& [band, spread] : series.bands)
        parts[static_cast<std::size_t>(at - result.begin())][band].push_back(&spread);
    }
    for (std::size_t i = 0; i < result.size(); ++i)
      for (const auto& [band, spreads] : parts[i]) {
        std::vector<double> medians;
        Spread of_band = *spreads.front();
        of_band.values = 0;
        for (const auto* spread : spreads) {
          medians.push_back(spread->median);
          of_band.least = std::min(of_band.least, spread->least);
          of_band.most = std::max(of_band.most, spread->most);
          of_band.values += spread->values;
        }
        of_band.median = median(medians);
        result[i].bands[band] = of_band;
      }
    return result;
  }

  static const Series* like(const std::vector<Series>& all, const Series& wanted) {
    for (const auto& series : all)
      if (series.metric == wanted.metric && series.unit == wanted.unit && series.node.empty() == wanted.node.empty())
        return &series;
    return nullptr;
  }

  bool drawn_as_suspect(const Series& series) const {
    return std::any_of(subjects_.begin(), subjects_.end(), [&](const auto& subject) {
      return subject.metric == series.metric && subject.unit == series.unit && subject.node == series.node &&
             subject.worst() != "same";
    });
  }

  void curves() {
    const auto runs = over_nodes(series_), baselines = over_nodes(baseline_series_);
    pugi::xml_node grid;
    for (const auto& series : runs) {
      if (series.bands.size() < curve_bands || drawn_as_suspect(series)) continue;
      if (!grid) {
        section("curves", "Curves");
        add(main_, "p",
            std::string("Lines are medians over the launches, shades reach from the least to the most of all values") +
                (baseline_ ? "; the baseline is dashed." : "."));
        grid = add(main_, "div", "", "curves");
      }
      const auto figure = add(grid, "figure");
      add(figure, "figcaption", series.metric + (series.node.empty() ? "" : ", over the nodes"));
      Curve curve{series.metric + ", " + series.unit + ", by size",
                  series.unit,
                  {baseline_name_, {}},
                  {run_name_, series.bands},
                  {},
                  {}};
      if (const auto* other = like(baselines, series)) curve.baseline.bands = other->bands;
      draw(figure, curve);
      curve_values(figure, curve, series.metric);
    }
  }

  void curve_values(pugi::xml_node parent, const Curve& curve, const std::string& name) {
    const auto details = add(parent, "details");
    add(details, "summary", "Values");
    const bool both = !curve.baseline.bands.empty();
    std::vector<std::pair<std::string, bool>> columns = {{"size", false}, {run_name_, true}};
    if (both) columns.insert(columns.end(), {{baseline_name_, true}, {"change", true}});
    const auto body = table(details, "values of " + name, columns);
    for (const auto& [band, spread] : curve.run.bands) {
      const auto row = add(body, "tr");
      head_cell(row, band_words(band));
      add(row, "td", in_words(spread), "number");
      if (!both) continue;
      const auto at = curve.baseline.bands.find(band);
      const bool known = at != curve.baseline.bands.end();
      add(row, "td", known ? in_words(at->second) : "–", "number");
      add(row, "td", known ? percent(change(at->second, spread)) : "–", "number");
    }
  }

  void single_values() {
    const auto runs = over_nodes(series_), baselines = over_nodes(baseline_series_);
    pugi::xml_node body;
    for (const auto& series : runs) {
      if (series.bands.size() >= curve_bands) continue;
      if (!body) {
        section("values", "Single values");
        std::vector<std::pair<std::string, bool>> columns = {{"metric", false}, {"unit", false}, {run_name_, true}};
        if (baseline_) columns.insert(columns.end(), {{baseline_name_, true}, {"change", true}});
        body = table(main_, "single values", columns);
      }
      const Series* other = like(baselines, series);
      for (const auto& [band, spread] : series.bands) {
        const auto row = add(body, "tr");
        head_cell(row, series.metric + (band < 0 ? "" : ", " + band_name(band)) +
                           (series.node.empty() ? "" : ", over the nodes"));
        add(row, "td", series.unit);
        add(row, "td", in_words(spread), "number");
        if (!baseline_) continue;
        const bool known = other && other->bands.count(band);
        add(row, "td", known ? in_words(other->bands.at(band)) : "–", "number");
        add(row, "td", known ? percent(change(other->bands.at(band), spread)) : "–", "number");
      }
    }
  }

  // Each value with the nodes that have it.
  void facts_of_nodes(pugi::xml_node parent) {
    if (results_.facts.empty()) return;
    std::map<std::string, std::map<std::string, std::set<std::string>>> facts;
    std::set<std::string> everywhere;
    for (const auto& fact : results_.facts)
      facts[fact.name][fact.value].insert(fact.node), everywhere.insert(fact.node);
    const auto part = add(parent, "div");
    add(part, "h3", "What the nodes have");
    const auto body = table(part, "what the nodes have", {{"name", false}, {"value", false}, {"nodes", false}});
    for (const auto& [name, values] : facts)
      for (const auto& [value, nodes] : values) {
        const auto row = add(body, "tr");
        head_cell(row, name);
        add(row, "td", shortened(value), "value");
        const std::vector<std::string> list(nodes.begin(), nodes.end());
        add(row, "td", nodes == everywhere ? "all " + std::to_string(nodes.size()) : multinode::join(at_most(list, 6)),
            values.size() > 1 ? "doubt-text" : "");
      }
  }

  void with_what() {
    const Head& head = results_.head;
    if (head.machine.empty() && head.versions.empty() && head.settings.empty() && results_.facts.empty()) return;
    section("with", "Machine, versions and settings");
    const auto grid = add(main_, "div", "", "tables");
    const auto one = [&](const char* title, const std::map<std::string, std::string>& here,
                         const std::map<std::string, std::string>* there) {
      std::set<std::string> names;
      for (const auto& [name, value] : here) names.insert(name);
      if (there)
        for (const auto& [name, value] : *there) names.insert(name);
      if (names.empty()) return;
      const auto part = add(grid, "div");
      add(part, "h3", title);
      std::vector<std::pair<std::string, bool>> columns = {{"name", false}, {run_name_, false}};
      if (there) columns.insert(columns.end(), {{baseline_name_, false}, {"", false}});
      const auto value_of = [](const std::map<std::string, std::string>& values, const std::string& name) {
        const auto at = values.find(name);
        return at == values.end() ? std::string() : at->second;
      };
      const auto rows = [&](pugi::xml_node parent, const std::vector<std::string>& of_names) {
        if (of_names.empty()) return;
        const auto body = table(parent, title, columns);
        for (const auto& name : of_names) {
          const auto row = add(body, "tr");
          head_cell(row, name);
          const std::string a = value_of(here, name);
          add(row, "td", a.empty() ? "–" : shortened(a), "value");
          if (!there) continue;
          const std::string b = value_of(*there, name);
          add(row, "td", b.empty() ? "–" : shortened(b), "value");
          add(row, "td", a == b ? "" : "≠ differs", "doubt-text");
        }
      };
      // Hundreds of packages are there to be unfolded, but for those that differ.
      std::vector<std::string> first, folded;
      for (const auto& name : names) {
        const bool differs = there && value_of(here, name) != value_of(*there, name);
        (name.rfind("package ", 0) == 0 && !differs ? folded : first).push_back(name);
      }
      rows(part, first);
      if (folded.empty()) return;
      const auto details = add(part, "details");
      add(details, "summary", std::to_string(folded.size()) + (there ? " packages that do not differ" : " packages"));
      rows(details, folded);
    };
    facts_of_nodes(grid);
    one("Machine", head.machine, baseline_ ? &baseline_->head.machine : nullptr);
    one("Versions", head.versions, baseline_ ? &baseline_->head.versions : nullptr);
    one("Settings", head.settings, baseline_ ? &baseline_->head.settings : nullptr);
  }

  const Results& results_;
  const Results* baseline_;
  std::string run_name_, baseline_name_;
  std::vector<Series> series_, baseline_series_;
  std::vector<Subject> subjects_;
  pugi::xml_document document_;
  pugi::xml_node body_, main_;
  std::vector<std::pair<std::string, std::string>> sections_;
};

}  // namespace

std::string html_page(const Results& results, const Results* baseline) { return Page(results, baseline).text(); }

}  // namespace image_check
