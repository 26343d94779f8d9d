// The picture of a timeline. In a browser it is as wide as its window: lengths along the time axis are percentages of
// the width. Texts keep their size, so that the picture can be read on a telephone and on a wall.
#include "timeline.hpp"

#include "verdict.hpp"

#include <multinode/base/options.hpp>
#include <multinode/base/text.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <sstream>
#include <string_view>

namespace who_waits {

namespace {

constexpr int units = 9600;               // of the picture's width
constexpr std::size_t most_cells = 1600;  // calls narrower than such a part of the width are drawn together
constexpr std::size_t most_arrows = 300, most_alone = 6;
constexpr std::size_t most_colours = 6;  // of regions

// Browsers alone know variables of CSS: the colours stand in the elements, and CSS only changes them for a dark page.
// Of each class that is filled, the colour on a light and on a dark page.
constexpr char colours[] =
    "t 1f2328 e6edf3 s 6e7781 9198a1 b ffffff ffffff k 1f2328 1f2328 lane f3f4f6 1b2129 r cf222e f85149 "
    "ad 0b4f9e 2f74d0 al 8cbdf2 a5cdfa bd 0b6b5d 178a76 bl 7fd1bf 93e0d0 cd 6b3fa0 8a5cd0 cl cdb4ee d9c6f5 "
    "dd 9a4a00 c26a14 dl f3bd7b f7cf9c ed 57606a 6e7781 el b9c1c9 c4ccd4 "
    "g0 fdf0b8 4d4614 g1 fbd9e0 552a37 g2 dcefc8 2f4a20 g3 d8e8fb 203d5c g4 e8dff8 3b3058 g5 ecdfcc 4a3d29";
constexpr char wide[] = R"(class="wide" display="none")";
constexpr char arrow[] = R"x(class="arrow" stroke="#1f2328" stroke-opacity=".75" marker-end="url(#to)")x";

// The attributes of an element of the class.
std::string looks(std::string_view name) {
  std::istringstream words(colours);
  std::string known, light, dark;
  while (words >> known >> light >> dark && known != name) continue;
  return fmt::format(R"(class="{}" fill="#{}")", name, light);
}

std::string style() {
  std::string rules, name, light, dark;
  for (std::istringstream words(colours); words >> name >> light >> dark;)
    rules += fmt::format(".{}{{fill:#{}}}", name, dark);
  return fmt::format(
      "<style>\n@media(prefers-color-scheme:dark){{{}.grid{{stroke:#343b44}}.arrow{{stroke:#e6edf3}}}}\n"
      ":root{{width:800px}}@media(min-width:1px){{:root{{width:100%}}}}\n"
      "@media(min-width:700px){{.wide{{display:inline}}.narrow{{display:none}}}}\n</style>\n"
      R"(<defs><marker id="to" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="6" markerHeight="6" orient="auto">)"
      "<path {} d=\"M0 0L6 3L0 6z\"/></marker></defs>\n",
      rules, looks("t"));
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : multinode::one_line(text))
    out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : c == '"' ? "&quot;" : std::string(1, c);
  return out;
}

class Picture {
 public:
  Picture(const Timeline& timeline, double first, double last, const Where& where)
      : timeline_(timeline), first_(first), last_(last), where_(where) {
    std::map<const RankTimes*, double> sampled;  // calls that stand for others
    for (std::size_t i = 0; i < timeline.calls.size(); ++i) {
      const TimedCall& call = timeline.calls[i];
      if (call.enter > last || call.leave < first) continue;
      calls_of_[call.rank->rank].push_back(i);
      waits_ = waits_ || call.open;
      sampled[call.rank] += call.stands_for > 1;
    }
    for (const auto& [rank, number] : sampled) spread_[rank] = 8 * (last - first) / std::max(1.0, number);
    for (const TimedCall& region : timeline.regions) {
      // Also those outside: each part of a timeline has the same colours.
      if (std::ranges::find(names_, name_of_region(region)) == names_.end()) names_.push_back(name_of_region(region));
      if (region.enter < last && region.leave > first) regions_of_[region.rank->rank].push_back(region);
    }
    if (names_.size() > most_colours) names_.resize(most_colours), names_.back() = "other regions";
    for (const auto& [rank, regions] : regions_of_)
      for (const TimedCall& region : regions) drawn_regions_.insert(colour_of_region(region));
    for (std::size_t i = 0; i < timeline.ends.size(); ++i) end_of_[(*timeline.ranks)[i].rank] = timeline.ends[i];
    make_rows();
    height_ = rows_.size() <= 4 ? 36 : rows_.size() <= 8 ? 28 : rows_.size() <= 16 ? 20 : 14;
  }

  std::string drawn(std::size_t cells) {
    out_.clear(), drawn_alone_.clear(), drawn_ = {}, merged_ = false, narrow_regions_ = 0;
    const int lanes = bottom(static_cast<int>(rows_.size()) - 1) + 4;
    std::string body;
    std::swap(out_, body);
    put(R"(<svg x="9%" y="30" width="89%" height="{0}" overflow="visible">)", lanes);
    const auto ticks = draw_grid(lanes);
    put(R"(<svg width="100%" height="{0}" viewBox="0 0 {1} {0}" preserveAspectRatio="none">)", lanes, units);
    for (std::size_t row = 0; row < rows_.size(); ++row) draw_row(row, cells);
    put("</svg>");
    draw_labels();
    draw_messages();
    put("{}</svg>", ticks);
    for (std::size_t row = 0; row < rows_.size(); ++row)
      put(R"(<text {} text-anchor="end" x="8.2%" y="{}"><tspan {}>rank </tspan>{}</text>)", looks("t"),
          30 + top(static_cast<int>(row)) + height_ / 2 + 4, wide, multinode::ranges(rows_[row]));
    const int legend = draw_legend(30 + lanes + 40);
    std::swap(out_, body);
    const std::size_t ranks = timeline_.ranks->size();
    const std::string title = escaped(timeline_.name) + fmt::format(", {} rank{}", ranks, ranks == 1 ? "" : "s");
    put(R"(<svg xmlns="http://www.w3.org/2000/svg" width="100%" height="{}" font-family="system-ui,sans-serif" )"
        R"(font-size="11" role="img" aria-label="{}">)"
        "\n{}",
        legend, title, style());
    put(R"(<text {} x="1%" y="18" font-size="14" font-weight="600">{}<tspan {}>, {} to {}</tspan></text>{}</svg>)",
        looks("t"), title, wide, tick_text(first_, (last_ - first_) / 100), tick_text(last_, (last_ - first_) / 100),
        body);
    return out_;
  }

 private:
  // A line of the picture.
  template <class... A>
  void put(fmt::format_string<A...> format, A&&... a) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<A>(a)...);
    out_ += '\n';
  }
  int top(int row) const { return row * (height_ + 6); }
  int bottom(int row) const { return top(row) + height_; }
  double part(double seconds) const { return std::clamp((seconds - first_) / (last_ - first_), 0.0, 1.0); }
  int unit(double seconds) const { return static_cast<int>(std::lround(units * part(seconds))); }
  double percent(double seconds) const { return std::round(1e4 * part(seconds)) / 100; }

  // One for each rank. Beyond most_rows, neighbours share one, except those for which the others wait longest.
  void make_rows() {
    const std::vector<RankTimes>& ranks = *timeline_.ranks;
    std::set<int> alone;
    std::size_t each = 1;
    if (ranks.size() > most_rows) {
      std::map<int, double> cost;
      std::set<int> open;
      for (const auto& [rank, calls] : calls_of_)
        for (const std::size_t i : calls) {
          const TimedCall& call = timeline_.calls[i];
          if (call.open) open.insert(rank);
          if (call.late > 0) cost[call.waits_for] += call.late;
        }
      for (const RankTimes& one : ranks)
        if (!open.empty() && !open.contains(one.rank)) cost[one.rank] += 1e9;
      std::multimap<double, int, std::greater<>> sorted;
      for (const auto& [rank, seconds] : cost) sorted.emplace(seconds, rank);
      for (const auto& [seconds, rank] : sorted)
        if (alone.size() < most_alone && seconds > 0.01 * (last_ - first_)) alone.insert(rank);
      const std::size_t rows = most_rows - 2 * alone.size();
      each = (ranks.size() + rows - 1) / rows;
    }
    for (const RankTimes& one : ranks) {
      const bool joins = !rows_.empty() && rows_.back().size() < each && !alone.contains(one.rank) &&
                         !alone.contains(*rows_.back().rbegin());
      if (!joins) rows_.emplace_back();
      rows_.back().insert(one.rank);
      row_of_[one.rank] = rows_.size() - 1;
    }
  }

  // In the unit of the last second shown, with as many digits as `step` needs.
  std::string tick_text(double seconds, double step) const {
    const auto [scale, name] = last_ >= 1      ? std::pair{1.0, "s"}
                               : last_ >= 1e-3 ? std::pair{1e3, "ms"}
                                               : std::pair{1e6, "us"};
    const int digits = std::max(0, static_cast<int>(std::ceil(-std::log10(step * scale) - 1e-6)));
    return fmt::format("{:.{}f} {}", std::abs(seconds) < step / 100 ? 0.0 : seconds * scale, digits, name);
  }

  std::string moment(double seconds) const { return tick_text(seconds, (last_ - first_) / 1000); }

  std::string draw_grid(int lanes) {
    const double raw = (last_ - first_) / 8, power = std::pow(10, std::floor(std::log10(raw)));
    const double step = power * (raw / power > 5 ? 10 : raw / power > 2 ? 5 : raw / power > 1 ? 2 : 1);
    std::string labels;
    put(R"(<g class="grid" stroke="#d5d9de">)");
    long i = static_cast<long>(std::ceil(first_ / step - 1e-6));
    for (; static_cast<double>(i) * step <= last_ + step * 1e-6; ++i) {
      const double at = static_cast<double>(i) * step, x = percent(at);
      put(R"(<line x1="{0}%" x2="{0}%" y1="0" y2="{1}"/>)", x, lanes);
      labels += fmt::format(R"(<g {}><text {} text-anchor="{}" x="{}%" y="{}">{}</text></g>)", i % 2 ? wide : "",
                            looks("s"), x > 97 ? "end" : "middle", x, lanes + 14, tick_text(at, step));
    }
    put("</g>");
    return labels;
  }

  static std::string name_of_region(const TimedCall& region) { return region.place->object.data(); }
  std::size_t colour_of_region(const TimedCall& region) const {
    const auto at = std::ranges::find(names_, name_of_region(region)) - names_.begin();
    return std::min(static_cast<std::size_t>(at), most_colours - 1);
  }

  // Where a bar lies: of a single rank each thread has a lane, of several each rank.
  std::pair<int, int> place_of(std::size_t row, int rank, int thread) const {  // y, height
    const auto& lanes = lanes_.at(row);
    const int shares = static_cast<int>(lanes.size());
    const auto lane = std::distance(lanes.begin(), lanes.find(rows_[row].size() > 1 ? rank : thread));
    const int y = height_ * static_cast<int>(lane) / shares, end = height_ * (static_cast<int>(lane) + 1) / shares;
    return {top(static_cast<int>(row)) + y, std::max(1, end - y)};
  }

  // Behind the calls, each on those that began before it.
  void draw_regions(std::size_t row, double narrow) {
    for (const int rank : rows_[row])
      for (const TimedCall& one : regions_of_[rank]) {
        if (std::min(one.leave, last_) - std::max(one.enter, first_) < narrow && ++narrow_regions_) continue;
        const auto [y, height] = place_of(row, rank, one.thread);
        put("<g><title>rank {}: {}: {}, from {}</title>", rank, escaped(name_of_region(one)),
            time_text(one.leave - one.enter), moment(one.enter));
        put(R"(<rect {} x="{}" y="{}" width="{}" height="{}"/></g>)", looks(fmt::format("g{}", colour_of_region(one))),
            unit(one.enter), y, unit(one.leave) - unit(one.enter), height);
      }
  }

  struct Cell {
    double late = 0, other = 0;  // s
    std::array<double, 5> of_colour{};
    std::map<Kind, double> calls;
  };

  void draw_row(std::size_t row, std::size_t cells) {
    const std::set<int>& ranks = rows_[row];
    const int y = top(static_cast<int>(row));
    std::set<int>& lanes = lanes_[row];
    int end = units;
    if (ranks.size() > 1) {
      lanes = ranks;
    } else {
      const int rank = *ranks.begin();
      end = unit(end_of_.at(rank));
      for (const std::size_t i : calls_of_[rank]) lanes.insert(timeline_.calls[i].thread);
      for (const TimedCall& region : regions_of_[rank]) lanes.insert(region.thread);
    }
    put(R"(<rect {} y="{}" width="{}" height="{}"/>)", looks("lane"), y, end, height_);

    std::vector<Cell> merged(cells);
    const double width = (last_ - first_) / static_cast<double>(cells);
    draw_regions(row, width);
    std::vector<std::size_t> alone;
    for (const int rank : ranks) {
      for (const std::size_t i : calls_of_[rank]) {
        const TimedCall& call = timeline_.calls[i];
        const bool wide = std::min(call.leave, last_) - std::max(call.enter, first_) >= width;
        if (call.open || (wide && ranks.size() == 1)) {
          places_[i] = place_of(row, rank, call.thread);
          alone.push_back(i);
        } else {
          merge(call, merged, width);
        }
      }
    }
    draw_merged(merged, width * static_cast<double>(std::max<std::size_t>(1, lanes.size())), y);
    for (const std::size_t i : alone) draw_alone(i);
  }

  void merge(const TimedCall& call, std::vector<Cell>& cells, double width) {
    const auto cell_at = [&](double time) {
      const double at = std::floor((time - first_) / width);
      return static_cast<std::size_t>(std::clamp(at, 0.0, static_cast<double>(cells.size() - 1)));
    };
    const double change = call.enter + std::max(0.0, call.late);
    // A call that stands for others is drawn as wide as the time from which it was taken.
    const double length = std::max(1e-12, call.leave - call.enter);
    const double more = call.stands_for > 1 ? spread_.at(call.rank) : 0;
    const double from = call.enter - more, to = call.leave + more, part = call.stands_for * length / (to - from);
    for (std::size_t i = cell_at(from); i <= cell_at(to); ++i) {
      const double begin = first_ + static_cast<double>(i) * width;
      const auto inside = [&](double enter, double leave) {
        return std::max(0.0, std::min(leave, begin + width) - std::max(enter, begin));
      };
      const double all = more > 0 ? part * inside(from, to) : inside(call.enter, call.leave);
      const double late = more > 0 ? all * (change - call.enter) / length : inside(call.enter, change);
      cells[i].late += late;
      cells[i].other += all - late;
      cells[i].of_colour[static_cast<std::size_t>(colour_of(call.place->kind))] += all + 1e-12;
    }
    cells[cell_at(std::max(call.enter, first_))].calls[call.place->kind] += call.stands_for;
  }

  // Calls that are too narrow for bars of their own: the height is the part of the time that they take.
  void draw_merged(const std::vector<Cell>& cells, double width, int y) {
    const auto colour = [&](std::size_t i) {
      const auto& of = cells[i].of_colour;
      return *std::ranges::max_element(of) > 0 ? static_cast<int>(std::ranges::max_element(of) - of.begin()) : -1;
    };
    const int wide = units / static_cast<int>(cells.size());
    for (std::size_t i = 0; i < cells.size();) {
      const std::size_t begin = i;
      const int of = colour(i);
      double late = 0, other = 0;
      std::map<Kind, double> calls;
      std::vector<int> dark, light;  // heights
      double number = 0;
      for (; i < cells.size() && colour(i) == of && i - begin < std::max<std::size_t>(1, cells.size() / 20); ++i) {
        const auto high = [&](double seconds) {
          return static_cast<int>(std::lround(height_ * std::min(1.0, seconds / width)));
        };
        dark.push_back(high(cells[i].late));
        light.push_back(std::max(2, high(cells[i].late + cells[i].other)));
        late += cells[i].late, other += cells[i].other;
        for (const auto& [kind, count] : cells[i].calls) calls[kind] += count, number += count;
      }
      if (of < 0) continue;
      merged_ = merged_ || number > 2;
      const char name = use(of, late + other);
      std::vector<std::string> names;
      for (const auto& [kind, count] : calls) names.push_back(fmt::format("{:.0f} {}", count, name_of(kind)));
      const double time = width * static_cast<double>(i - begin), x = static_cast<double>(begin) * width;
      const double scale = (last_ - first_) / static_cast<double>(cells.size()) / width;
      put("<g><title>{:.0f} calls from {} to {}: {:.0f} % of the time wait for a late rank, {:.0f} % in calls "
          "otherwise: {}</title>",
          number, moment(first_ + x * scale), moment(first_ + (x + time) * scale), 100 * late / time,
          100 * other / time, fmt::join(names, ", "));
      const auto steps = [&](char suffix, const std::vector<int>& heights) {
        std::string path = fmt::format("M{} {}", static_cast<int>(begin) * wide, y + height_);
        for (std::size_t at = 0, next = 0; at < heights.size(); at = next) {
          while (next < heights.size() && heights[next] == heights[at]) ++next;
          path += fmt::format("V{}h{}", y + height_ - heights[at], static_cast<int>(next - at) * wide);
        }
        put(R"(<path {} d="{}V{}z"/>)", looks(std::string{name, suffix}), path, y + height_);
      };
      steps('l', light);
      if (std::ranges::max(dark) > 0) steps('d', dark);
      put("</g>");
    }
  }

  void draw_alone(std::size_t i) {
    const TimedCall& call = timeline_.calls[i];
    const auto [y, height] = places_.at(i);
    const int x = unit(call.enter), change = unit(call.enter + std::max(0.0, call.late)), end = unit(call.leave);
    drawn_alone_.insert(i);
    put("<g><title>rank {}: {}, from {}</title>", call.rank->rank, escaped(title_of(call, where_(*call.place))),
        moment(call.enter));
    const auto bar = [&](std::string_view name, int from, int to) {
      put(R"(<rect {} x="{}" y="{}" width="{}" height="{}"/>)", looks(name), from, y, std::max(1, to - from), height);
    };
    if (call.open) {
      bar("r", std::min(x, units - 12), units);
    } else {
      const char name = use(static_cast<int>(colour_of(call.place->kind)), call.leave - call.enter);
      if (change > x) bar(std::string{name, 'd'}, x, change);
      if (end > change || change == x) bar(std::string{name, 'l'}, change, end);
    }
    put("</g>");
  }

  void draw_label(double x, int y, double width, int height, const char* name, const std::string& text) {
    if (width < 6 || height < 14) return;
    put(R"(<svg x="{:.4g}%" y="{}" width="{:.2f}%" height="{}" pointer-events="none"><text {} x="5" y="{}">{}</text></svg>)",
        x, y, width, height, looks(name), height / 2 + 4, text);
  }

  // In the widest gap between calls and regions that lie on it.
  void label_regions(int rank) {
    const std::vector<TimedCall>& regions = regions_of_[rank];
    for (std::size_t i = 0; i < regions.size(); ++i) {
      if (percent(regions[i].leave) - percent(regions[i].enter) < 6) continue;
      std::set<std::pair<double, double>> on_it{{regions[i].leave, 0}};
      for (const std::size_t call : calls_of_[rank])
        if (drawn_alone_.contains(call) && timeline_.calls[call].thread == regions[i].thread)
          on_it.emplace(timeline_.calls[call].enter, timeline_.calls[call].leave);
      for (std::size_t next = i + 1; next < regions.size(); ++next)
        on_it.emplace(regions[next].enter, regions[next].leave);
      double from = regions[i].enter, begin = from, end = from;
      for (const auto& [enter, leave] : on_it) {
        const double to = std::min(enter, regions[i].leave);
        if (to - from > end - begin) begin = from, end = to;
        from = std::max(from, leave);
      }
      const auto [y, height] = place_of(static_cast<std::size_t>(row_of_.at(rank)), rank, regions[i].thread);
      draw_label(percent(begin), y, percent(end) - percent(begin), height, "t",
                 escaped(names_[colour_of_region(regions[i])]));
    }
  }

  // On bars that have room. What does not fit is cut at the bar's end.
  void draw_labels() {
    for (const std::size_t i : drawn_alone_) {
      const TimedCall& call = timeline_.calls[i];
      const auto [y, height] = places_.at(i);
      const double change = call.open ? call.leave : call.enter + std::max(0.0, call.late);
      const bool dark = percent(change) - percent(call.enter) >= 6;
      const double x = percent(dark ? call.enter : change), width = percent(dark ? change : call.leave) - x;
      std::string text = name_of(call.place->kind);
      if (call.met.size() == 1 && call.met[0].peer >= 0)
        text += fmt::format(" {} {}", call.met[0].sends || role_of(call.place->kind) == Role::send ? "to" : "from",
                            call.met[0].peer);
      draw_label(x, y, width, height, dark ? "b" : "k", text);
    }
    for (const auto& [rank, row] : row_of_)
      if (rows_[row].size() == 1) label_regions(rank);
    for (const RankTimes& rank : *timeline_.ranks) {
      const double end = end_of_.at(rank.rank);
      if (rank.ended.value_or(0) == 0 || end > last_) continue;
      const int row = static_cast<int>(row_of_.at(rank.rank));
      put(R"(<text {} text-anchor="{}" x="{}%" y="{}">{}</text>)", looks("r"), part(end) > 0.5 ? "end" : "start",
          percent(end), top(row) + height_ / 2 + 4,
          *rank.ended > 128 ? fmt::format("signal {}", *rank.ended - 128) : fmt::format("exit status {}", *rank.ended));
    }
  }

  void draw_messages() {
    std::string arrows;
    const auto line = [&](double x1, double x2, std::size_t from, std::size_t to, int inside) {
      const int a = static_cast<int>(from), b = static_cast<int>(to), down = a < b ? 1 : -1;
      arrows += fmt::format(R"(<line x1="{:.4g}%" y1="{}" x2="{:.4g}%" y2="{}"/>)"
                            "\n",
                            x1, (a < b ? bottom(a) : top(a)) - down * inside, x2,
                            (a < b ? top(b) : bottom(b)) + down * inside);
    };
    arrows_ = 0;
    for (const auto& [from, to, what] : timeline_.messages) {
      const TimedCall &sender = timeline_.calls[from], &receiver = timeline_.calls[to];
      if (sender.enter < first_ || receiver.leave > last_) continue;
      const std::size_t from_row = row_of_.at(sender.rank->rank), to_row = row_of_.at(receiver.rank->rank);
      if (from_row == to_row || ++arrows_ > most_arrows) continue;
      line(percent(sender.enter), percent(receiver.leave), from_row, to_row, 0);
    }
    without_arrow_ = arrows_ > most_arrows ? std::exchange(arrows_, 0) : 0;
    put("<g {}>{}", arrow, arrows_ ? arrows : "");
    arrows = fmt::format(R"(</g><g {} stroke-width="1.5" stroke-dasharray="4 3">)", arrow);
    for (int number = 0; const std::size_t i : drawn_alone_) {  // for whom a rank still waits
      const TimedCall& call = timeline_.calls[i];
      std::set<int> peers{call.waits_for};
      for (const Meeting& one : call.met)
        if (one.peer >= 0) peers.insert(one.peer);
      for (const int rank : peers) {
        const auto peer = call.open ? row_of_.find(rank) : row_of_.end();
        const std::size_t row = row_of_.at(call.rank->rank);
        if (peer == row_of_.end() || peer->second == row) continue;
        const double x = 98 - 1.5 * (number++ % 8);
        line(x, x, row, peer->second, height_ / 3);
      }
    }
    put("{}</g>", arrows);
  }

  int draw_legend(int y) {
    const auto note = [&](const std::string& text) {
      put(R"(<text {} x="2%" y="{}">{}</text>)", looks("s"), y, text);
      y += 15;
    };
    const auto seen = [&](double seconds) { return seconds > 2e-3 * (last_ - first_); };
    if (std::ranges::any_of(drawn_, seen))
      note("Dark: waits for a late rank. Light: the data travel. Gap: outside of calls.");
    if (!drawn_regions_.empty()) note("Pale: a region of the program, by the name that it has there.");
    std::uint64_t odd = 0, lost = 0;
    for (const RankTimes& one : *timeline_.ranks) odd += one.odd_regions, lost = std::max(lost, one.lost);
    const auto open = std::ranges::count(timeline_.regions, true, &TimedCall::open);
    if (open) note(fmt::format("Regions that had not ended: {}.", open));
    if (narrow_regions_) note(fmt::format("{} regions are too narrow: see --from and --to.", narrow_regions_));
    if (odd) note(fmt::format("Regions begun or ended without the other: {}.", odd));
    if (merged_) note("Low bars are many short calls. Height: their part of the time.");
    if (const Sample& sample = timeline_.sample; sample.shift > 0)
      note(fmt::format("Of calls shorter than {}, one in {} was kept.",
                       time_text(std::ldexp(1e-9, static_cast<int>(sample.level) - 1)), 1 << sample.shift));
    if (without_arrow_) note(fmt::format("{} messages are too many for arrows: see --from and --to.", without_arrow_));
    if (lost) note(fmt::format("The first {} calls of a rank were not kept.", lost));
    if (const std::string clocks = uncertainty_of(*timeline_.ranks); !clocks.empty())
      note("T" + clocks.substr(1) + ".");
    y += 6;
    constexpr const char* names[] = {"messages", "collectives", "waits for requests", "NCCL and CUDA",
                                     "start and end of MPI"};
    std::vector<std::pair<std::string, std::string>> entries;  // swatch, text
    for (int colour = 0; colour < static_cast<int>(drawn_.size()); ++colour) {
      if (!seen(drawn_[static_cast<std::size_t>(colour)])) continue;
      const char name = static_cast<char>('a' + colour);
      entries.emplace_back(fmt::format(R"(<rect {} width="9" height="12"/><rect {} x="9" width="9" height="12"/>)",
                                       looks(std::string{name, 'd'}), looks(std::string{name, 'l'})),
                           names[colour]);
    }
    for (const std::size_t i : drawn_regions_)
      entries.emplace_back(fmt::format(R"(<rect {} width="18" height="12"/>)", looks(fmt::format("g{}", i))),
                           escaped(names_[i]));
    if (waits_)
      entries.emplace_back(fmt::format(R"(<rect {} width="18" height="12"/>)", looks("r")), "still waits at the end");
    if (arrows_) entries.emplace_back(fmt::format(R"(<line {} x1="0" x2="18" y1="6" y2="6"/>)", arrow), "message");
    for (const auto& [form, columns, apart] : {std::tuple{R"(class="narrow")", 2u, 48u}, {wide, 5u, 19u}}) {
      put("<g {}>", form);
      for (std::size_t i = 0; i < entries.size(); ++i)
        put(R"(<svg x="{}%" y="{}" width="45%" height="16">{}<text {} x="24" y="10">{}</text></svg>)",
            2 + i % columns * apart, y + 18 * static_cast<int>(i / columns), entries[i].first, looks("s"),
            entries[i].second);
      put("</g>");
    }
    return y + 18 * static_cast<int>((entries.size() + 1) / 2);
  }

  char use(int colour, double seconds) {
    drawn_[static_cast<std::size_t>(colour)] += seconds;
    return static_cast<char>('a' + colour);
  }

  const Timeline& timeline_;
  const double first_, last_;
  const Where& where_;
  std::map<const RankTimes*, double> spread_;         // s to both sides of a call that stands for others
  std::map<int, std::vector<std::size_t>> calls_of_;  // by rank: indices of calls
  std::map<int, double> end_of_;                      // by rank: of its process
  std::set<std::size_t> drawn_regions_;               // their colours
  std::map<int, std::vector<TimedCall>> regions_of_;
  std::map<std::size_t, std::set<int>> lanes_;  // by row: a rank's threads, or ranks
  std::vector<std::string> names_;              // of the regions, by their colour
  std::vector<std::set<int>> rows_;
  std::map<int, std::size_t> row_of_;
  std::map<std::size_t, std::pair<int, int>> places_;  // y and height of a call's bar
  std::set<std::size_t> drawn_alone_;
  std::array<double, 5> drawn_{};  // s of each colour
  std::string out_;
  int height_ = 0;
  bool waits_ = false, merged_ = false;
  std::size_t arrows_ = 0, without_arrow_ = 0, narrow_regions_ = 0;
};

}  // namespace

std::string svg_of(const Timeline& timeline, std::optional<Moment> from, std::optional<Moment> to, const Where& where) {
  const double first = from ? timeline.at(*from) : timeline.first, last = to ? timeline.at(*to) : timeline.last;
  if (!(last > first))
    throw multinode::UsageError(fmt::format("no time lies between --from {} and --to {}: the program lasted {}",
                                            time_text(first), time_text(last), time_text(timeline.last)));
  Picture picture(timeline, first, last, where);
  std::string text = picture.drawn(most_cells);
  for (std::size_t cells = most_cells; text.size() > most_bytes && cells > 12; cells /= 2)
    text = picture.drawn(cells / 2);
  return text;
}

}  // namespace who_waits
