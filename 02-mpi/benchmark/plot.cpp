#include "plot.hpp"

#include "statistics.hpp"

#include <multinode/check.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <utility>

namespace perf {

namespace {

// Okabe and Ito's colours, which the colour-blind can tell apart, without those too light for lines on white.
constexpr std::array colours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#e69f00", "#56b4e9"};
// Around (0, 0).
constexpr std::array markers = {"M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z", "M-4 -4h8v8h-8z", "M0 -5l5 9h-10z",
                                "M0 -5l5 5l-5 5l-5 -5z", "M0 5l5 -9h-10z"};

constexpr double left = 80, right = 740, panel_height = 240;  // of the panels

using Value = std::optional<double> (*)(const Result&);

struct Tick {
  double value;
  std::string label;
};

struct Axis {
  double low, high;
  bool logarithmic;
  std::vector<Tick> ticks;

  double at(double value) const {  // 0 to 1
    if (!logarithmic) return (value - low) / (high - low);
    return std::log2(value / low) / std::log2(high / low);
  }
};

std::string number(double value) { return fmt::format("{:g}", value); }

std::string time_text(double seconds) {
  if (seconds < 0.9e-6) return number(seconds * 1e9) + " ns";
  if (seconds < 0.9e-3) return number(seconds * 1e6) + " µs";
  return seconds < 0.9 ? number(seconds * 1e3) + " ms" : number(seconds) + " s";
}

std::string escape(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '&')
      escaped += "&amp;";
    else if (c == '<')
      escaped += "&lt;";
    else if (c == '>')
      escaped += "&gt;";
    else
      escaped += static_cast<unsigned char>(c) < ' ' ? ' ' : c;  // XML has no control characters
  }
  return escaped;
}

Axis size_axis(std::span<const Result> results) {
  const auto [least, most] = std::minmax_element(results.begin(), results.end(),
                                                 [](const Result& a, const Result& b) { return a.size < b.size; });
  const auto low = static_cast<double>(std::max<std::size_t>(least->size, 1)),
             high = std::max(static_cast<double>(most->size), low);
  Axis axis{low / std::sqrt(2), high * std::sqrt(2), true, {}};
  const auto last = static_cast<int>(std::floor(std::log2(high)));
  const int count = last - static_cast<int>(std::ceil(std::log2(low))) + 1;
  for (int i = 0; i < count; i += (count + 23) / 24) {
    const std::size_t size = std::size_t{1} << (last - i);
    axis.ticks.push_back({static_cast<double>(size), size_text(size)});
  }
  if (count < 1) axis.ticks = {{low, size_text(least->size)}, {high, size_text(most->size)}};
  return axis;
}

// From 0, with about five round steps.
Axis linear_axis(double most) {
  if (!(most > 0)) most = 1;
  const double power = std::pow(10, std::floor(std::log10(most / 5)));
  double step = power;
  for (const int factor : {2, 5, 10})
    if (5 * step < most) step = factor * power;
  Axis axis{0, step * std::ceil(most / step * 1.02), false, {}};
  for (int i = 0; step * i < axis.high * 1.001; ++i) axis.ticks.push_back({step * i, number(step * i)});
  return axis;
}

// 1, 2, 5, 10, ... around all values.
Axis time_axis(double least, double most) {
  std::vector<double> round;
  for (int power = -9; power < 6; ++power)
    for (const int factor : {1, 2, 5}) round.push_back(factor * std::pow(10, power));
  auto first = std::upper_bound(round.begin() + 1, round.end() - 2, least) - 1;
  auto last = std::lower_bound(first + 1, round.end() - 1, most);
  Axis axis{*first, *last, true, {}};
  for (auto value = first; value <= last; ++value)
    if (last - first < 9 || (value - round.begin()) % 3 == 0) axis.ticks.push_back({*value, time_text(*value)});
  return axis;
}

struct Series {
  std::string name, style;
  const char* marker;
  std::vector<const Result*> results;
};

std::vector<Series> series_of(std::span<const Result> results) {
  std::vector<Series> all;
  std::set<int> roots;
  for (const Result& result : results) roots.insert(result.root);
  for (const Result& result : results) {
    std::string name = result.type + (result.redop == "none" ? "" : " " + result.redop);
    if (roots.size() > 1) name += ", root " + std::to_string(result.root);
    name += result.in_place ? ", in place" : ", out of place";
    auto found = std::find_if(all.begin(), all.end(), [&](const Series& series) { return series.name == name; });
    if (found == all.end()) {
      const std::string colour = colours[all.size() % colours.size()];
      const std::string style = "stroke=\"" + colour + "\" fill=\"" +
                                (result.in_place ? "#ffffff\" stroke-dasharray=\"6 3\"" : colour + "\"");
      found = all.insert(all.end(), {name, style, markers[all.size() % markers.size()], {}});
    }
    found->results.push_back(&result);
  }
  return all;
}

void draw_marker(std::ostream& svg, const Series& series, double x, double y) {
  svg << "<path transform=\"translate(" << x << ' ' << y << ")\" d=\"" << series.marker << "\" " << series.style
      << " style=\"stroke-dasharray:none\"/>";
}

void draw_text(std::ostream& svg, double x, double y, const std::string& attributes, const std::string& text) {
  svg << "<text x=\"" << x << "\" y=\"" << y << "\" " << attributes << '>' << escape(text) << "</text>\n";
}

void draw_panel(std::ostream& svg, double top, const std::string& heading, const Axis& x_axis, const Axis& y_axis,
                const std::vector<Series>& all, Value value_of, std::string (*text_of)(double)) {
  const double bottom = top + panel_height;
  const auto x_of = [&](std::size_t size) {
    return left + (right - left) * x_axis.at(static_cast<double>(std::max<std::size_t>(size, 1)));
  };
  const auto y_of = [&](double value) { return bottom - panel_height * y_axis.at(value); };
  draw_text(svg, left, top - 10, "font-weight=\"bold\"", heading);
  svg << "<g stroke=\"#dddddd\">\n";
  for (const Tick& tick : x_axis.ticks) {
    const double x = x_of(static_cast<std::size_t>(tick.value));
    svg << "<path d=\"M" << x << ' ' << top << 'V' << bottom << "\"/>\n";
  }
  for (const Tick& tick : y_axis.ticks)
    svg << "<path d=\"M" << left << ' ' << y_of(tick.value) << 'H' << right << "\"/>\n";
  svg << "</g>\n";
  for (const Tick& tick : x_axis.ticks) {  // "64 MiB" on two lines, which leaves room for all powers of two
    const double x = x_of(static_cast<std::size_t>(tick.value));
    const std::size_t space = tick.label.find(' ');
    draw_text(svg, x, bottom + 16, "text-anchor=\"middle\" font-size=\"11\"", tick.label.substr(0, space));
    draw_text(svg, x, bottom + 28, "text-anchor=\"middle\" font-size=\"10\" fill=\"#555555\"",
              tick.label.substr(space + 1));
  }
  for (const Tick& tick : y_axis.ticks)
    draw_text(svg, left - 8, y_of(tick.value) + 4, "text-anchor=\"end\" font-size=\"11\"", tick.label);
  svg << "<path d=\"M" << left << ' ' << top << 'V' << bottom << 'H' << right
      << "\" fill=\"none\" stroke=\"#333333\"/>\n";
  for (const Series& series : all) {
    std::map<std::size_t, std::vector<double>> values_of;  // several for a size: cycles
    for (const Result* result : series.results)
      if (const auto value = value_of(*result)) values_of[result->size].push_back(*value);
    svg << "<polyline " << series.style << " style=\"fill:none\" stroke-width=\"1.5\" points=\"";
    for (const auto& [size, values] : values_of) svg << x_of(size) << ',' << y_of(median(values)) << ' ';
    svg << "\"/>\n";
    for (const auto& [size, values] : values_of)
      for (const double value : values) {
        svg << "<g class=\"point\"><title>" << escape(series.name) << ", " << size_text(size) << ": " << text_of(value)
            << "</title>";
        draw_marker(svg, series, x_of(size), y_of(value));
        svg << "</g>\n";
      }
  }
}

}  // namespace

void write_plot(const std::string& path, const std::string& title, std::span<const Result> results) {
  const std::vector<Series> all = series_of(results);
  constexpr double width = 1000, first = 80, second = 410;
  const double height = std::max(720.0, first + 20 * static_cast<double>(all.size()) + 20);
  std::ostringstream svg;
  svg << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " << width << ' ' << height << "\" width=\"" << width
      << "\" height=\"" << height << "\" role=\"img\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#222222\">\n"
      << "<title>" << escape(title) << "</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n";
  draw_text(svg, left, 32, "font-size=\"18\" font-weight=\"bold\"", title);
  if (results.empty()) {
    draw_text(svg, left, first, "", "no results");
  } else {
    const Value busbw = [](const Result& result) {
      return result.busbw ? std::optional(*result.busbw / 1e9) : std::nullopt;
    };
    const Value time = [](const Result& result) { return std::optional(std::max(result.median, 1e-9)); };
    double most_busbw = 0, least_time = 1e5, most_time = 0;
    for (const Result& result : results) {
      most_busbw = std::max(most_busbw, busbw(result).value_or(0));
      least_time = std::min(least_time, *time(result));
      most_time = std::max(most_time, *time(result));
    }
    const Axis x_axis = size_axis(results);
    draw_panel(svg, first, most_busbw > 0 ? "Bus bandwidth (GB/s)" : "Bus bandwidth: n/a, of one rank there is none",
               x_axis, linear_axis(most_busbw), all, busbw, [](double value) { return four_digits(value) + " GB/s"; });
    draw_panel(svg, second, "Median time of a call (logarithmic)", x_axis, time_axis(least_time, most_time), all, time,
               [](double value) { return four_digits(value * 1e6) + " µs"; });
    draw_text(svg, (left + right) / 2, second + panel_height + 50, "text-anchor=\"middle\"", "Size (logarithmic)");
    double y = first;
    for (const Series& series : all) {
      svg << "<path d=\"M" << right + 20 << ' ' << y << "h30\" stroke-width=\"1.5\" " << series.style << "/>\n";
      draw_marker(svg, series, right + 35, y);
      draw_text(svg, right + 58, y + 4, "", series.name);
      y += 20;
    }
  }
  svg << "</svg>\n";

  std::ofstream file(path, std::ios::trunc);
  if (!file) throw multinode::UsageError("--plot: cannot write " + path + ": " + std::strerror(errno));
  file << svg.str() << std::flush;
  if (!file) throw std::runtime_error("cannot write " + path + ": " + std::strerror(errno));
}

}  // namespace perf
