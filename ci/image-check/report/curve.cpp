#include "curve.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace image_check {

namespace {

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  void take(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

double round_step(double rough) {
  const double power = std::pow(10, std::floor(std::log10(rough)));
  return power * (rough / power > 5 ? 10 : rough / power > 2 ? 5 : rough / power > 1 ? 2 : 1);
}

// A value's place on an axis.
class Axis {
 public:
  // Logarithmic where it is wanted and can be. What is closer together than `least_ratio` does not fill the picture: it
  // is noise.
  Axis(Range range, double from, double to, bool logarithmic = true, double least_ratio = 1.6)
      : log_(logarithmic && range.low > 0), from_(from), to_(to) {
    auto [low, high] = range;
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

  std::vector<double> ticks(std::size_t most) const {
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
          if (ticks.size() <= most) return ticks;
        }
    const double step = round_step((high - low) / static_cast<double>(most - 1));
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
  const std::string text = fmt::format("{:g}", std::abs(value) < 1e-12 ? 0 : value);
  return text.find("e+") != text.npos && std::abs(value) < 1e9 ? std::to_string(std::llround(value)) : text;
}

// So wide about, in the widest font of the page.
double width_of(const std::string& words, bool bold = false) {
  return (bold ? 7.2 : 6.5) * static_cast<double>(words.size());
}

// What is taken of a line.
class Room {
 public:
  // Whether there is room for this width around `middle`, which is then taken.
  bool take(double middle, double width) {
    constexpr double apart = 4;
    const double from = middle - width / 2, to = middle + width / 2;
    for (const auto& [its_from, its_to] : taken_)
      if (from < its_to + apart && its_from < to + apart) return false;
    taken_.emplace_back(from, to);
    return true;
  }

 private:
  std::vector<std::pair<double, double>> taken_;
};

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
    std::string text;
    for (const auto& [x, y] : points)
      text += fmt::format("{:g},{:g} ", std::round(x * 10) / 10, std::round(y * 10) / 10);
    set(shape(kind, css_class), "points", text);
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

}  // namespace

void draw(pugi::xml_node parent, const Curve& curve) {
  constexpr double left = 48, right = 338, top = 24, bottom = 200, change_top = 222, change_bottom = 304;
  constexpr int width = 400;
  const std::pair<const Line*, const char*> lines[] = {{&curve.baseline, "base"}, {&curve.run, "run"}};
  Range sizes, values, changes;
  std::set<double> bands;
  for (const auto& [line, css] : lines)
    for (const auto& [band, spread] : line->bands) {
      bands.insert(band);
      values.take(spread.least), values.take(spread.most);
    }
  for (const auto& [band, limit] : curve.limits) values.take(limit);
  const auto first = bands.upper_bound(0);
  const double least = first == bands.end() ? 1 : *first;
  const auto place = [&](double band) { return std::max(band, least / 4); };  // 0 bytes have no logarithm
  for (const double band : bands) sizes.take(place(band));
  const Axis x_axis(sizes, left, right), y(values, bottom, top);
  const auto x = [&](double band) { return x_axis.at(place(band)); };

  // Below it, the change against the baseline's medians.
  std::map<double, double> base;
  for (const auto& [band, spread] : curve.baseline.bands)
    if (spread.median > 0 && curve.run.bands.count(band)) base[band] = spread.median;
  const auto far = [&](double value, double band) { return value / base.at(band) - 1; };
  for (const double share : {-0.05, 0.05}) changes.take(share);
  for (const auto& [line, css] : lines)
    for (const auto& [band, spread] : line->bands)
      if (base.count(band)) changes.take(far(spread.least, band)), changes.take(far(spread.most, band));
  for (const auto& [band, limit] : curve.limits)
    if (base.count(band)) changes.take(far(limit, band));
  const double step = round_step((changes.high - changes.low) / 2.5);
  changes.take(std::floor(changes.low / step) * step), changes.take(std::ceil(changes.high / step) * step);
  const Axis change(changes, change_bottom, change_top, false);
  const double foot = base.empty() ? bottom : change_bottom;

  Picture picture(parent, curve.title, width, static_cast<int>(foot) + 40);
  for (const double tick : y.ticks(6)) {
    picture.line(left, y.at(tick), right, y.at(tick), "grid");
    picture.text(left - 6, y.at(tick) + 4, round_tick(tick), "tick end");
  }
  picture.text(4, 12, curve.unit, "tick");
  Room sizes_named;
  for (const double band : bands) {
    if (!sizes_named.take(x(band), width_of(band_name(band)))) continue;
    picture.line(x(band), foot, x(band), foot + 4, "axis");
    picture.text(x(band), foot + 17, band_name(band), "tick middle");
  }
  picture.line(left, foot, right, foot, "axis");
  picture.text((left + right) / 2, foot + 34, "size", "tick middle");
  if (!base.empty()) {
    for (double tick = changes.low; tick < changes.high + step / 2; tick += step) {
      picture.line(left, change.at(tick), right, change.at(tick), "grid");
      picture.text(left - 6, change.at(tick) + 4,
                   (tick > step / 2 ? "+" : "") + round_tick(std::round(tick * 1e4) / 100) + " %", "tick end");
    }
    picture.text(right + 6, (change_top + change_bottom) / 2 + 4, "change", "tick");
  }

  // Neighbours in question are one strip. Where two strips have no room for their words, a worse one has them.
  struct Words {
    double x;
    std::string words;
    bool worse;
  };
  std::vector<Words> words_of_strips;
  for (auto band = bands.begin(); band != bands.end(); ++band) {
    const auto mark = curve.marked.find(*band);
    if (mark == curve.marked.end()) continue;
    const auto begin = band;
    const bool worse = mark->second.worse;
    const auto is_alike = [&](double other) {
      const auto at = curve.marked.find(other);
      return at != curve.marked.end() && at->second.worse == worse;
    };
    while (std::next(band) != bands.end() && is_alike(*std::next(band))) ++band;
    const double from = begin == bands.begin() ? left : (x(*std::prev(begin)) + x(*begin)) / 2;
    const double to = std::next(band) == bands.end() ? right : (x(*band) + x(*std::next(band))) / 2;
    picture.box(from, top - 6, to - from, foot - top + 6, worse ? "marked" : "marked doubt");
    std::string words = mark->second.words;
    if (band != begin) words += " ... " + curve.marked.at(*band).words;
    const double half = width_of(words, true) / 2, behind_unit = 10 + width_of(curve.unit);
    words_of_strips.push_back({std::min(std::max((from + to) / 2, behind_unit + half), width - half), words, worse});
  }
  std::stable_sort(words_of_strips.begin(), words_of_strips.end(),
                   [](const auto& a, const auto& b) { return a.worse > b.worse; });
  Room above;
  for (const auto& [at, words, worse] : words_of_strips)
    if (above.take(at, width_of(words, true)))
      picture.text(at, top - 11, words, worse ? "mark middle" : "mark doubt middle");

  const auto both = [&](const auto& draw_on) {
    draw_on([&](double, double value) { return y.at(value); }, [](double) { return true; });
    if (!base.empty())
      draw_on([&](double band, double value) { return change.at(far(value, band)); },
              [&](double band) { return base.count(band) > 0; });
  };
  both([&](const auto& at, const auto& is_there) {
    std::vector<std::pair<double, double>> points;
    for (const auto& [band, limit] : curve.limits)
      if (is_there(band)) points.emplace_back(x(band), at(band, limit));
    if (points.size() == 1)
      points = {{points[0].first - 12, points[0].second}, {points[0].first + 12, points[0].second}};
    if (!points.empty()) picture.through(points, "limit");
    for (const auto& [line, css] : lines) {
      std::vector<std::pair<double, double>> around, middle;
      for (const auto& [band, spread] : line->bands) {
        if (!is_there(band)) continue;
        around.emplace_back(x(band), at(band, spread.most));
        middle.emplace_back(x(band), at(band, spread.median));
      }
      for (auto band = line->bands.rbegin(); band != line->bands.rend(); ++band)
        if (is_there(band->first)) around.emplace_back(x(band->first), at(band->first, band->second.least));
      if (middle.empty()) continue;
      picture.through(around, std::string(css) + " noise", "polygon");
      picture.through(middle, std::string(css) + " line");
    }
  });
  for (const auto& [line, css] : lines)
    for (const auto& [band, spread] : line->bands)
      picture.point(x(band), y.at(spread.median), css,
                    line->name + ", " + band_name(band) + ": " + in_words(spread) + " " + curve.unit);
  for (const auto& [band, median] : base)
    picture.point(x(band), change.at(far(curve.run.bands.at(band).median, band)), "run",
                  band_name(band) + ": " + percent(far(curve.run.bands.at(band).median, band)));

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
  for (std::size_t n = 1; n < names.size(); ++n) names[n].y = std::max(names[n].y, names[n - 1].y + apart);
  double below = bottom;
  for (auto at = names.rbegin(); at != names.rend(); ++at, below -= apart) at->y = std::min(at->y, below);
  for (const auto& [at, words, css] : names) picture.text(right + 6, at + 4, words, css);
}

void draw(pugi::xml_node parent, const Dots& dots) {
  constexpr int width = 400, height = 118;
  constexpr double left = 68, right = width - 16, top = 34, row = 26, bottom = 86;
  Range values;
  for (const auto* some : {&dots.baseline, &dots.run})
    for (const double value : *some) values.take(value);
  if (dots.limit) values.take(*dots.limit);
  const Axis x(values, left, right, true, 1.02);
  Picture picture(parent, dots.title, width, height);
  for (const double tick : x.ticks(6)) {
    picture.line(x.at(tick), top - 12, x.at(tick), bottom, "grid");
    picture.text(x.at(tick), bottom + 14, round_tick(tick), "tick middle");
  }
  picture.text(right, bottom + 29, dots.unit, "tick end");
  if (dots.limit) {
    picture.line(x.at(*dots.limit), top - 12, x.at(*dots.limit), bottom, "limit");
    picture.text(x.at(*dots.limit), top - 17, "limit", "limit label middle");
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
