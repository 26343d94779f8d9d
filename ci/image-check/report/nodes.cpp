#include "nodes.hpp"

#include "series.hpp"
#include "verdict.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <sstream>

namespace image_check {

namespace {

struct Cell {
  std::string text, note;
  double worse = 0;  // how much worse than the median, as a share of it; below 0: better
};
struct Column {
  std::string name, unit;
  std::map<std::string, Cell> cells;  // by node, or by pair
};
constexpr double bad = 0.10;

const char* colour(double worse) {
  if (worse >= 0.25) return "worse3";
  if (worse >= bad) return "worse2";
  if (worse >= 0.05) return "worse1";
  if (worse <= -0.25) return "better2";
  return worse <= -bad ? "better1" : "";
}

double worse_by(const std::string& better, double value, double middle) {
  if (value == middle) return 0;
  const double more =
      middle == 0 ? std::copysign(std::numeric_limits<double>::infinity(), value) : (value - middle) / std::abs(middle);
  return better == "more" ? -more : better == "less" ? more : std::abs(more);
}

// A bad node spoils all of its pairs, of few nodes half of all: so of each node its usual pair, the better one of two
// in the middle, and of those the median.
std::map<double, double> usual_of_pairs(const std::vector<const Series*>& pairs) {
  std::map<double, std::map<std::string, std::vector<double>>> by_node;
  for (const Series* series : pairs)
    for (const auto& [band, spread] : series->bands) {
      const auto dash = series->node.find(" - ");
      for (const auto& node : {series->node.substr(0, dash), series->node.substr(dash + 3)})
        by_node[band][node].push_back(spread.median);
    }
  std::map<double, double> usual;
  for (auto& [band, nodes] : by_node) {
    std::vector<double> of_nodes;
    for (auto& [node, values] : nodes) {
      std::sort(values.begin(), values.end());
      of_nodes.push_back(values[pairs.front()->better == "less" ? (values.size() - 1) / 2 : values.size() / 2]);
    }
    usual[band] = median(of_nodes);
  }
  return usual;
}

// Of a metric with size bands, each node shows the band in which it is worst.
std::vector<Column> columns_of(const std::vector<Series>& all, bool pairs) {
  std::map<std::pair<std::string, std::string>, std::vector<const Series*>> metrics;
  std::vector<std::pair<std::string, std::string>> order;
  for (const Series& series : all) {
    if (series.node.empty() || is_pair(series.node) != pairs) continue;
    auto& of_metric = metrics[{series.metric, series.unit}];
    if (of_metric.empty()) order.emplace_back(series.metric, series.unit);
    of_metric.push_back(&series);
  }
  std::vector<Column> columns;
  for (const auto& key : order) {
    std::map<double, std::vector<double>> by_band;
    for (const Series* series : metrics[key])
      for (const auto& [band, spread] : series->bands) by_band[band].push_back(spread.median);
    std::map<double, double> middle;
    for (const auto& [band, values] : by_band) middle[band] = median(values);
    if (pairs) middle = usual_of_pairs(metrics[key]);
    Column column{key.first, key.second, {}};
    for (const Series* series : metrics[key]) {
      auto worst = series->bands.end();
      double most = 0;
      for (auto at = series->bands.begin(); at != series->bands.end(); ++at)
        if (const double worse = worse_by(series->better, at->second.median, middle[at->first]);
            worst == series->bands.end() || worse > most)
          worst = at, most = worse;
      Cell cell{number(worst->second.median), "", most};
      if (std::abs(most) >= 0.05) cell.note = percent(change({middle[worst->first]}, {worst->second.median}));
      if (series->bands.size() > 1) cell.note += (cell.note.empty() ? "at " : " at ") + band_name(worst->first);
      column.cells[series->node] = cell;
    }
    columns.push_back(column);
  }
  return columns;
}

// Checks that ran on single nodes, or that blame one.
std::vector<Column> check_columns(const std::vector<CheckResult>& checks) {
  std::vector<Column> columns;
  const auto column = [&](const std::string& name) -> Column& {
    for (Column& known : columns)
      if (known.name == name) return known;
    columns.push_back({name, "", {}});
    return columns.back();
  };
  const auto mark = [&](Column& of_check, const std::string& node, const Cell& cell) {
    const auto [at, is_new] = of_check.cells.try_emplace(node, cell);
    if (!is_new && cell.worse > at->second.worse) at->second = cell;
  };
  std::map<std::string, std::set<std::string>> alone_on;
  for (const auto& check : checks)
    if (check.nodes.size() == 1) alone_on[check.check].insert(check.nodes.front());
  for (const auto& check : checks) {
    std::set<std::string> blamed;
    for (const auto& finding : check.findings)
      if (!finding.node.empty() && !is_pair(finding.node)) blamed.insert(finding.node);
    if (!is_failure(check.status)) blamed.clear();
    if (alone_on[check.check].size() < 2 && blamed.empty()) continue;
    Column& of_check = column(check.check);
    for (const auto& node : check.nodes)
      if (blamed.empty())
        mark(of_check, node,
             {name_of(check.status), "",
              is_failure(check.status)       ? 1.0
              : check.status == Status::pass ? -0.01
                                             : 0});
      else
        mark(of_check, node, {"–", "", 0});
    for (const auto& node : blamed) mark(of_check, node, {name_of(check.status), "", 1});
  }
  return columns;
}

void add_cell(pugi::xml_node row, const Column& column, const std::string& node) {
  const auto at = column.cells.find(node);
  if (at == column.cells.end()) {
    add(row, "td", "");
    return;
  }
  const auto cell = add(row, "td", at->second.text, colour(at->second.worse));
  if (!at->second.note.empty()) add(cell, "small", at->second.note);
}

pugi::xml_node scrolled_table(pugi::xml_node parent, const std::string& title) {
  add(parent, "h3", title);
  const auto scrolled = add(parent, "div", "", "scrolled");
  set(scrolled, "tabindex", "0");
  set(scrolled, "role", "region");
  set(scrolled, "aria-label", title);
  return add(scrolled, "table", "", "heat");
}

void add_tables(pugi::xml_node parent, const std::vector<Column>& columns, const std::vector<std::string>& nodes) {
  constexpr std::size_t widest = 10;  // columns that fit a window or a sheet of paper
  const std::size_t tables = (columns.size() + widest - 1) / widest;
  for (std::size_t t = 0, from = 0; t < tables; ++t) {
    const std::size_t to = columns.size() * (t + 1) / tables;
    std::string title = "Node by node";
    if (tables > 1)
      title += ", columns " + std::to_string(from + 1) + " to " + std::to_string(to) + " of " +
               std::to_string(columns.size());
    const auto table = scrolled_table(parent, title);
    const auto head = add(add(table, "thead"), "tr");
    set(add(head, "th", "node"), "scope", "col");
    for (std::size_t c = from; c < to; ++c) {
      const auto name = add(head, "th", columns[c].name);
      set(name, "scope", "col");
      if (!columns[c].unit.empty()) add(name, "small", columns[c].unit);
    }
    const auto body = add(table, "tbody");
    for (const auto& node : nodes) {
      const auto row = add(body, "tr");
      set(add(row, "th", node), "scope", "row");
      for (std::size_t c = from; c < to; ++c) add_cell(row, columns[c], node);
    }
    from = to;
  }
}

void add_matrix(pugi::xml_node parent, const Column& column, const std::vector<std::string>& nodes) {
  const auto table =
      scrolled_table(parent, column.name + (column.unit.empty() ? "" : ", " + column.unit) + ": node to node");
  const auto head = add(add(table, "thead"), "tr");
  set(add(head, "th", "node"), "scope", "col");
  for (const auto& node : nodes) set(add(head, "th", node), "scope", "col");
  const auto body = add(table, "tbody");
  for (const auto& a : nodes) {
    const auto row = add(body, "tr");
    set(add(row, "th", a), "scope", "row");
    for (const auto& b : nodes)
      add_cell(row, column, column.cells.count(a + " - " + b) ? a + " - " + b : b + " - " + a);
  }
}

}  // namespace

bool add_nodes(pugi::xml_node parent, const Results& results) {
  const auto all = series_of(results.samples);
  const auto metrics = columns_of(all, false), pairs = columns_of(all, true);
  auto columns = check_columns(results.checks);
  columns.insert(columns.end(), metrics.begin(), metrics.end());
  if (columns.empty() && pairs.empty()) return false;

  std::vector<std::string> nodes = results.head.nodes;
  const auto take = [&](const std::string& node) {
    if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) nodes.push_back(node);
  };
  for (const auto& column : columns)
    for (const auto& [node, cell] : column.cells) take(node);
  for (const auto& column : pairs)
    for (const auto& [pair, cell] : column.cells) {
      take(pair.substr(0, pair.find(" - ")));
      take(pair.substr(pair.find(" - ") + 3));
    }

  if (nodes.size() < 2) return false;

  std::map<std::string, int> bad_of, count_of;
  for (const auto& column : columns)
    for (const auto& [node, cell] : column.cells) ++count_of[node], bad_of[node] += cell.worse >= bad;
  std::string sentence;
  for (const auto& node : nodes)
    if (bad_of[node] > 0)
      sentence += (sentence.empty() ? "" : ", ") + node + " (" + std::to_string(bad_of[node]) + " of " +
                  std::to_string(count_of[node]) + ")";
  if (!columns.empty())
    add(parent, "p",
        sentence.empty() ? "No node failed a check, or is 10 % or more worse than the median of the nodes."
                         : "Failed, or 10 % or more worse than the median of the nodes: " + sentence + ".");
  const auto legend = add(parent, "p", "Against the median of the nodes: ", "legend");
  for (const auto& [css, words] :
       {std::pair("worse3", "25 % worse or more, or failed"), std::pair("worse2", "10 %"), std::pair("worse1", "5 %"),
        std::pair("better1", "10 % better"), std::pair("better2", "25 % better")}) {
    add(legend, "span", words, css);
    add_text(legend, " ");
  }

  // Columns with something bad first; the others of many nodes are there to be unfolded.
  const auto has_bad = [](const Column& column) {
    return std::any_of(column.cells.begin(), column.cells.end(),
                       [](const auto& cell) { return cell.second.worse >= bad; });
  };
  std::stable_partition(columns.begin(), columns.end(), has_bad);
  const auto split = std::partition_point(columns.begin(), columns.end(), has_bad);
  const std::vector<Column> first(columns.begin(), split), rest(split, columns.end());
  constexpr std::size_t few = 8;
  if (nodes.size() <= few || first.empty() || rest.empty()) {
    add_tables(parent, columns, nodes);
  } else {
    add_tables(parent, first, nodes);
    const auto details = add(parent, "details");
    add(details, "summary", "The other " + std::to_string(rest.size()) + ", where no node is 10 % worse");
    add_tables(details, rest, nodes);
  }
  for (const auto& column : pairs) add_matrix(parent, column, nodes);
  return true;
}

}  // namespace image_check
