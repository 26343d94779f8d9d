#include "report.hpp"
#include "series.hpp"
#include "xml.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <sstream>

namespace image_check {

namespace {

constexpr double width = 480, height = 110, margin = 6;

struct Metric {
  std::string unit, better;
  std::map<std::string, std::vector<const HistoryLine*>> nodes;  // in the order of their runs
};

std::vector<double> values_of(const std::vector<const HistoryLine*>& lines) {
  std::vector<double> values;
  for (const auto* line : lines) values.push_back(line->value);
  return values;
}

// The last value against the median of those before it, as a share; more than 0 is worse.
double last_worse(const Metric& metric, std::vector<double> values) {
  if (values.size() < 2) return 0;
  const double last = values.back();
  values.pop_back();
  const double before = median(values);
  if (before == last) return 0;
  return (metric.better == "less" ? last - before : before - last) / std::abs(before);
}

// A line for each node, over the runs; all from the lowest to the highest value.
void draw(pugi::xml_node parent, const std::string& name, const Metric& metric,
          const std::map<std::string, double>& place) {
  double least = std::numeric_limits<double>::infinity(), most = -least;
  for (const auto& [node, lines] : metric.nodes)
    for (const auto* line : lines) least = std::min(least, line->value), most = std::max(most, line->value);
  if (metric.unit.empty()) least = 0, most = 1;
  const double range = most > least ? most - least : 1;
  auto svg = parent.append_child("svg");
  set(svg, "class", std::string("drawing"));
  set(svg, "viewBox", fmt::format("0 0 {} {}", width, height));
  set(svg, "role", std::string("img"));
  add(svg, "title", name + ": " + number(least) + " to " + number(most) + " " + metric.unit);
  for (const auto& [node, lines] : metric.nodes) {
    std::string points;
    for (const auto* line : lines)
      points += fmt::format("{:.1f},{:.1f} ", margin + place.at(line->time) * (width - 2 * margin),
                            height - margin - (line->value - least) / range * (height - 2 * margin));
    auto drawn = add(svg, lines.size() > 1 ? "polyline" : "circle", "", lines.size() > 1 ? "run line" : "run");
    add(drawn, "title", node);
    if (lines.size() > 1) {
      set(drawn, "points", points);
    } else {
      const auto comma = points.find(',');
      set(drawn, "cx", points.substr(0, comma));
      set(drawn, "cy", points.substr(comma + 1, points.find(' ') - comma - 1));
      set(drawn, "r", std::string("3"));
    }
  }
}

}  // namespace

std::string history_page(const History& history) {
  std::map<std::string, Metric> metrics;
  std::set<std::string> times;
  for (const auto& [node, lines] : history)
    for (const auto& line : lines) {
      auto& metric = metrics[line.name];
      metric.unit = line.unit;
      metric.better = line.better;
      metric.nodes[node].push_back(&line);
      times.insert(line.time);
    }
  std::map<std::string, double> place;
  for (const auto& time : times)
    place[time] = times.size() < 2 ? 0.5 : static_cast<double>(place.size()) / static_cast<double>(times.size() - 1);

  pugi::xml_document document;
  const auto body = start_page(document, "image-check: history");
  add(body, "h1",
      "History of " + std::to_string(history.size()) + (history.size() == 1 ? " node" : " nodes") + ", " +
          std::to_string(times.size()) + (times.size() == 1 ? " run" : " runs"));
  add(body, "p",
      "From " + *times.begin() + " to " + *times.rbegin() +
          ". Each run has the same room, from left to right, and each node a line. A node is marked if its last "
          "value is 10 % or more worse than the median of those before it.");
  auto grid = add(body, "div", "", "curves");
  for (const bool of_checks : {false, true})
    for (const auto& [name, metric] : metrics) {
      if (metric.unit.empty() != of_checks) continue;
      double worst = 0;
      std::string worst_node;
      std::vector<double> last;
      bool failed = false;
      for (const auto& [node, lines] : metric.nodes) {
        const auto values = values_of(lines);
        last.push_back(values.back());
        failed = failed || (of_checks && std::count(values.begin(), values.end(), 0.0) > 0);
        if (const double worse = last_worse(metric, values); worse > worst) worst = worse, worst_node = node;
      }
      if (of_checks && !failed) continue;  // always passed
      const auto figure = add(grid, "figure");
      const auto caption = add(figure, "figcaption", name + (of_checks ? ": passed or failed" : ""));
      const auto [least, most] = std::minmax_element(last.begin(), last.end());
      if (!of_checks)
        add(caption, "small",
            " last: " + number(*least) + (*most > *least ? " to " + number(*most) : "") + " " + metric.unit);
      draw(figure, name, metric, place);
      if (worst >= 0.10)
        add(figure, "p",
            "✗ " + worst_node +
                (of_checks ? " failed now" : fmt::format(": {:.0f} % worse than its median", 100 * worst)),
            "fail-text");
    }
  if (!grid.first_child().next_sibling()) add(grid, "p", "Nothing was measured, and every check passed in every run.");
  std::ostringstream out;
  document.save(out, "", pugi::format_raw | pugi::format_no_declaration);
  return out.str() + "\n";
}

}  // namespace image_check
