#include "curve.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

namespace image_check {

namespace {

// A value's place on an axis: logarithmic, unless a value is not positive.
class Axis {
 public:
  Axis(double low, double high, double from, double to) : log_(low > 0), from_(from), to_(to) {
    constexpr double least_ratio = 1.6;  // noise of a few percent must not fill the picture
    if (log_ && high / low < least_ratio) {
      const double middle = std::sqrt(low * high);
      low = std::min(low, middle / std::sqrt(least_ratio));
      high = std::max(high, middle * std::sqrt(least_ratio));
    } else if (!log_ && low == high) {
      high = low + 1;
    }
    const double margin = (scale(high) - scale(low)) * 0.06;
    low_ = scale(low) - margin;
    high_ = scale(high) + margin;
  }

  double at(double value) const { return from_ + (scale(value) - low_) / (high_ - low_) * (to_ - from_); }

  std::vector<double> ticks() const {
    const double low = log_ ? std::exp(low_) : low_, high = log_ ? std::exp(high_) : high_;
    if (log_ && high / low > 6)
      for (int decades = 1;; ++decades)
        for (const bool between : {true, false}) {
          if (between && decades > 1) continue;
          std::vector<double> ticks;
          for (int power = static_cast<int>(std::floor(std::log10(low))); std::pow(10, power) <= high; power += decades)
            for (const int digit : {1, 2, 5})
              if (const double tick = digit * std::pow(10, power);
                  (digit == 1 || between) && tick >= low && tick <= high)
                ticks.push_back(tick);
          if (ticks.size() <= 6) return ticks;
        }
    const double rough = (high - low) / 4, power = std::pow(10, std::floor(std::log10(rough)));
    const double step = power * (rough / power > 5 ? 10 : rough / power > 2 ? 5 : rough / power > 1 ? 2 : 1);
    std::vector<double> ticks;
    for (double i = std::ceil(low / step); i * step <= high; ++i) ticks.push_back(i * step);
    return ticks;
  }

 private:
  double scale(double value) const { return log_ ? std::log(value) : value; }

  bool log_;
  double from_, to_, low_ = 0, high_ = 1;
};

std::string round_tick(double value) {
  std::ostringstream text;
  text << (std::abs(value) < 1e-12 ? 0 : value);
  if (text.str().find("e+") != std::string::npos && std::abs(value) < 1e9) {
    text.str("");
    text << std::llround(value);
  }
  return text.str();
}

class Picture {
 public:
  Picture(pugi::xml_node parent, const std::string& title, int width, int height) : svg_(parent.append_child("svg")) {
    set(svg_, "viewBox", "0 0 " + std::to_string(width) + " " + std::to_string(height));
    set(svg_, "role", "img");
    set(svg_, "class", "drawing");
    add(svg_, "title", title);
  }
  void line(double x1, double y1, double x2, double y2, const char* css_class) {
    const auto node = shape("line", css_class);
    set(node, "x1", x1), set(node, "y1", y1), set(node, "x2", x2), set(node, "y2", y2);
  }
  void box(double x, double y, double width, double height, const char* css_class) {
    const auto node = shape("rect", css_class);
    set(node, "x", x), set(node, "y", y), set(node, "width", width), set(node, "height", height);
  }
  void point(double x, double y, const std::string& css_class, const std::string& title) {
    const bool is_run = css_class == "run";
    const auto node = shape(is_run ? "circle" : "rect", css_class + " point");
    if (is_run)
      set(node, "cx", x), set(node, "cy", y), set(node, "r", 3.2);
    else
      set(node, "x", x - 2.8), set(node, "y", y - 2.8), set(node, "width", 5.6), set(node, "height", 5.6);
    add(node, "title", title);
  }
  void through(const std::vector<std::pair<double, double>>& points, const std::string& css_class,
               const char* kind = "polyline") {
    std::ostringstream text;
    for (const auto& [x, y] : points) text << std::round(x * 10) / 10 << ',' << std::round(y * 10) / 10 << ' ';
    set(shape(kind, css_class), "points", text.str());
  }
  void text(double x, double y, const std::string& words, const std::string& css_class) {
    const auto node = add(svg_, "text", words, css_class.c_str());
    set(node, "x", x), set(node, "y", y);
  }

 private:
  pugi::xml_node shape(const char* kind, const std::string& css_class) {
    const auto node = svg_.append_child(kind);
    set(node, "class", css_class);
    return node;
  }

  pugi::xml_node svg_;
};

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  void take(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

}  // namespace

void draw(pugi::xml_node parent, const Curve& curve) {
  constexpr int width = 400, height = 250;
  constexpr double left = 46, right = width - 62, top = 24, bottom = height - 40;
  Range sizes, values;
  std::vector<double> bands;
  for (const Line* line : {&curve.baseline, &curve.run})
    for (const auto& [band, spread] : line->bands) {
      bands.push_back(band);
      values.take(spread.least), values.take(spread.most);
    }
  for (const auto& [band, limit] : curve.limits) values.take(limit);
  std::sort(bands.begin(), bands.end());
  bands.erase(std::unique(bands.begin(), bands.end()), bands.end());
  const auto first = std::find_if(bands.begin(), bands.end(), [](double band) { return band > 0; });
  const double least = first == bands.end() ? 1 : *first;
  const auto place = [&](double band) { return std::max(band, least / 4); };  // 0 bytes have no logarithm
  for (const double band : bands) sizes.take(place(band));
  const Axis x(sizes.low, sizes.high, left, right), y(values.low, values.high, bottom, top);

  Picture picture(parent, curve.title, width, height);
  for (const double tick : y.ticks()) {
    picture.line(left, y.at(tick), right, y.at(tick), "grid");
    picture.text(left - 6, y.at(tick) + 4, round_tick(tick), "tick end");
  }
  picture.text(4, 12, curve.unit, "tick");
  const std::size_t every = (bands.size() + 5) / 6;
  for (std::size_t i = 0; i < bands.size(); i += every) {
    picture.line(x.at(place(bands[i])), bottom, x.at(place(bands[i])), bottom + 4, "axis");
    picture.text(x.at(place(bands[i])), bottom + 17, band_name(bands[i]), "tick middle");
  }
  picture.line(left, bottom, right, bottom, "axis");
  picture.text((left + right) / 2, height - 6, "message size", "tick middle");

  // Neighbours in question are one strip.
  for (std::size_t i = 0; i < bands.size(); ++i) {
    if (!curve.marked.count(bands[i])) continue;
    std::size_t last = i;
    while (last + 1 < bands.size() && curve.marked.count(bands[last + 1])) ++last;
    const auto edge = [&](std::size_t a, std::size_t b) { return (x.at(place(bands[a])) + x.at(place(bands[b]))) / 2; };
    const double from = i == 0 ? left : edge(i - 1, i), to = last + 1 == bands.size() ? right : edge(last, last + 1);
    picture.box(from, top - 6, to - from, bottom - top + 6, "marked");
    std::string words = curve.marked.at(bands[i]);
    if (last > i) words += " ... " + curve.marked.at(bands[last]);
    picture.text(std::clamp((from + to) / 2, left + 60, right - 40), top - 11, words, "mark middle");
    i = last;
  }

  if (!curve.limits.empty()) {
    std::vector<std::pair<double, double>> points;
    for (const auto& [band, limit] : curve.limits) points.emplace_back(x.at(place(band)), y.at(limit));
    if (points.size() == 1)
      points = {{points[0].first - 12, points[0].second}, {points[0].first + 12, points[0].second}};
    picture.through(points, "limit");
  }
  for (const auto& [line, css] : {std::pair(&curve.baseline, "base"), std::pair(&curve.run, "run")}) {
    if (line->bands.empty()) continue;
    std::vector<std::pair<double, double>> around, middle;
    for (const auto& [band, spread] : line->bands) {
      around.emplace_back(x.at(place(band)), y.at(spread.most));
      middle.emplace_back(x.at(place(band)), y.at(spread.median));
    }
    for (auto band = line->bands.rbegin(); band != line->bands.rend(); ++band)
      around.emplace_back(x.at(place(band->first)), y.at(band->second.least));
    picture.through(around, std::string(css) + " noise", "polygon");
    picture.through(middle, std::string(css) + " line");
  }
  for (const auto& [line, css] : {std::pair(&curve.baseline, "base"), std::pair(&curve.run, "run")})
    for (const auto& [band, spread] : line->bands)
      picture.point(x.at(place(band)), y.at(spread.median), css,
                    line->name + ", " + band_name(band) + ": " + in_words(spread) + " " + curve.unit);

  // The lines' names at their ends, one above the other.
  constexpr double apart = 14;
  struct Name {
    double y;
    std::string words;
    const char* css;
  };
  std::vector<Name> names;
  const auto name = [&](double at, const std::string& words, const char* css) { names.push_back({at, words, css}); };
  if (!curve.baseline.bands.empty())
    name(y.at(curve.baseline.bands.rbegin()->second.median), curve.baseline.name, "base label");
  if (!curve.run.bands.empty()) name(y.at(curve.run.bands.rbegin()->second.median), curve.run.name, "run label");
  if (!curve.limits.empty()) name(y.at(curve.limits.rbegin()->second), "limit", "limit label");
  std::stable_sort(names.begin(), names.end(), [](const auto& a, const auto& b) { return a.y < b.y; });
  for (std::size_t i = 1; i < names.size(); ++i) names[i].y = std::max(names[i].y, names[i - 1].y + apart);
  double below = bottom;
  for (auto at = names.rbegin(); at != names.rend(); ++at, below -= apart) at->y = std::min(at->y, below);
  for (const auto& [at, words, css] : names) picture.text(right + 6, at + 4, words, css);
}

void draw(pugi::xml_node parent, const Dots& dots) {
  constexpr int width = 400, height = 118;
  constexpr double left = 68, right = width - 16, top = 34, row = 26, bottom = 86;
  Range values;
  for (const auto* some : {&dots.baseline, &dots.run, &dots.limits})
    for (const double value : *some) values.take(value);
  const Axis x(values.low, values.high, left, right);
  Picture picture(parent, dots.title, width, height);
  for (const double tick : x.ticks()) {
    picture.line(x.at(tick), top - 12, x.at(tick), bottom, "grid");
    picture.text(x.at(tick), bottom + 14, round_tick(tick), "tick middle");
  }
  picture.text(right, bottom + 29, dots.unit, "tick end");
  for (const double limit : dots.limits) {
    picture.line(x.at(limit), top - 12, x.at(limit), bottom, "limit");
    picture.text(x.at(limit), top - 17, "limit", "limit label middle");
  }
  double at = top + 4;
  for (const auto& [some, name, css] :
       {std::tuple(&dots.baseline, &dots.baseline_name, "base"), std::tuple(&dots.run, &dots.run_name, "run")}) {
    picture.text(4, at + 4, *name, std::string(css) + " label");
    for (const double value : *some) picture.point(x.at(value), at, css, number(value) + " " + dots.unit);
    if (const auto of_all = spread(*some))
      picture.line(x.at(of_all->median), at - 8, x.at(of_all->median), at + 8, (std::string(css) + " line").c_str());
    at += row;
  }
}

}  // namespace image_check
