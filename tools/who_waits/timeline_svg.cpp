// The picture of a timeline. It is as wide as its window: lengths along the time axis are percentages of the width.
// Texts keep their size, so that the picture can be read on a telephone and on a wall.
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
#include <map>
#include <set>
#include <string_view>

namespace who_waits {

namespace {

constexpr int units = 9600;               // of the picture's width
constexpr std::size_t most_cells = 1600;  // calls narrower than such a part of the width are drawn together
constexpr std::size_t most_arrows = 300, most_alone = 6;

constexpr std::string_view style = R"(<style>
svg{font:12px system-ui,sans-serif;--ink:#1f2328;--soft:#6e7781;--lane:#f3f4f6;--grid:#d5d9de;--r:#cf222e;
--ad:#0b4f9e;--al:#8cbdf2;--bd:#0b6b5d;--bl:#7fd1bf;--cd:#6b3fa0;--cl:#cdb4ee;--dd:#9a4a00;--dl:#f3bd7b;--ed:#57606a;--el:#b9c1c9}
@media(prefers-color-scheme:dark){svg{--ink:#e6edf3;--soft:#9198a1;--lane:#1b2129;--grid:#343b44;--r:#f85149;
--ad:#2f74d0;--al:#a5cdfa;--bd:#178a76;--bl:#93e0d0;--cd:#8a5cd0;--cl:#d9c6f5;--dd:#c26a14;--dl:#f7cf9c;--ed:#6e7781;--el:#c4ccd4}}
text{fill:var(--ink)}.s{fill:var(--soft);font-size:11px}.h{font-size:14px;font-weight:600}.e{text-anchor:end}.m{text-anchor:middle}
.b{fill:#fff;font-size:11px}.k{fill:#1f2328;font-size:11px}.lane{fill:var(--lane)}.grid{stroke:var(--grid)}.r{fill:var(--r)}
.ad{fill:var(--ad)}.al{fill:var(--al)}.bd{fill:var(--bd)}.bl{fill:var(--bl)}.cd{fill:var(--cd)}.cl{fill:var(--cl)}
.dd{fill:var(--dd)}.dl{fill:var(--dl)}.ed{fill:var(--ed)}.el{fill:var(--el)}
.i{fill:var(--ink)}.arrow{stroke:var(--ink);stroke-opacity:.75;marker-end:url(#to)}.wait{stroke:var(--ink);marker-end:url(#to);stroke-width:1.5;stroke-dasharray:4 3}
.wide{display:none}@media(min-width:700px){.wide{display:inline}.narrow{display:none}}
</style>
<defs><marker id="to" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="6" markerHeight="6" orient="auto"><path class="i" d="M0 0L6 3L0 6z"/></marker></defs>
)";

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
    for (std::size_t i = 0; i < timeline.calls.size(); ++i) {
      const TimedCall& call = timeline.calls[i];
      if (call.enter > last || call.leave < first) continue;
      calls_of_[call.rank->rank].push_back(i);
      waits_ = waits_ || call.open;
    }
    make_rows();
    height_ = rows_.size() <= 4 ? 36 : rows_.size() <= 8 ? 28 : rows_.size() <= 16 ? 20 : 14;
  }

  std::string drawn(std::size_t cells) {
    out_.clear(), drawn_alone_.clear(), drawn_ = {}, merged_ = false;
    const int lanes = bottom(static_cast<int>(rows_.size()) - 1) + 4;
    std::string body;
    std::swap(out_, body);
    put(R"(<svg x="9%" y="30" width="89%" height="{0}" overflow="visible">)", lanes);
    const auto ticks = draw_grid(lanes);
    put(R"(<svg width="100%" height="{0}" viewBox="0 0 {1} {0}" preserveAspectRatio="none">)"
        "\n",
        lanes, units);
    for (std::size_t row = 0; row < rows_.size(); ++row) draw_row(row, cells);
    put("</svg>\n");
    draw_labels();
    draw_messages();
    put("{}</svg>\n", ticks);
    for (std::size_t row = 0; row < rows_.size(); ++row)
      put(R"(<text class="e" x="8.2%" y="{}">{}{}</text>)", 30 + top(static_cast<int>(row)) + height_ / 2 + 4,
          R"(<tspan class="wide">rank </tspan>)", multinode::ranges(rows_[row]));
    const int legend = draw_legend(30 + lanes + 40);
    std::swap(out_, body);
    const std::size_t ranks = timeline_.ranks->size();
    const std::string title = escaped(timeline_.name) + fmt::format(", {} rank{}", ranks, ranks == 1 ? "" : "s");
    put(R"(<svg xmlns="http://www.w3.org/2000/svg" width="100%" height="{}" role="img" aria-label="{}">)"
        "\n{}",
        legend, title, style);
    put(R"(<text class="h" x="1%" y="18">{}<tspan class="wide">, {} to {}</tspan></text>)"
        "\n{}</svg>\n",
        title, tick_text(first_, (last_ - first_) / 100), tick_text(last_, (last_ - first_) / 100), body);
    return out_;
  }

 private:
  template <class... A>
  void put(fmt::format_string<A...> format, A&&... a) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<A>(a)...);
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
    long i = static_cast<long>(std::ceil(first_ / step - 1e-6));
    for (; static_cast<double>(i) * step <= last_ + step * 1e-6; ++i) {
      const double at = static_cast<double>(i) * step, x = percent(at);
      put(R"(<line class="grid" x1="{0}%" x2="{0}%" y1="0" y2="{1}"/>)", x, lanes);
      labels += fmt::format(R"(<text class="s {}" x="{}%" y="{}">{}</text>)",
                            i % 2    ? "m wide"
                            : x > 97 ? "e"
                                     : "m",
                            x, lanes + 14, tick_text(at, step));
    }
    return labels;
  }

  struct Cell {
    double late = 0, other = 0;  // s
    std::array<double, 5> of_colour{};
    std::map<Kind, int> calls;
  };

  void draw_row(std::size_t row, std::size_t cells) {
    const std::set<int>& ranks = rows_[row];
    const int y = top(static_cast<int>(row));
    for (std::size_t i = 0; i < timeline_.ranks->size() && ranks.size() == 1; ++i)
      if (const RankTimes& rank = (*timeline_.ranks)[i]; ranks.contains(rank.rank))
        put(R"(<rect class="lane" y="{}" width="{}" height="{}"/>)", y, unit(timeline_.ends[i]), height_);
    if (ranks.size() > 1) put(R"(<rect class="lane" y="{}" width="{}" height="{}"/>)", y, units, height_);
    put("\n");
    std::map<int, int> threads;  // of a single rank: their lane
    for (const int rank : ranks)
      for (const std::size_t i : calls_of_[rank]) threads.emplace(timeline_.calls[i].thread, 0);
    for (int number = 0; auto& [thread, lane] : threads) lane = number++;
    const int shares = static_cast<int>(ranks.size() > 1 ? ranks.size() : std::max<std::size_t>(1, threads.size()));

    std::vector<Cell> merged(cells);
    const double width = (last_ - first_) / static_cast<double>(cells);
    std::vector<std::size_t> alone;
    for (int number = 0; const int rank : ranks) {
      for (const std::size_t i : calls_of_[rank]) {
        const TimedCall& call = timeline_.calls[i];
        const bool wide = std::min(call.leave, last_) - std::max(call.enter, first_) >= width;
        if (call.open || (wide && ranks.size() == 1)) {
          const int lane = ranks.size() > 1 ? number : threads.at(call.thread);
          places_[i] = {y + height_ * lane / shares,
                        std::max(1, height_ * (lane + 1) / shares - height_ * lane / shares)};
          alone.push_back(i);
        } else {
          merge(call, merged, width);
        }
      }
      ++number;
    }
    draw_merged(merged, width * shares, y);
    for (const std::size_t i : alone) draw_alone(i);
  }

  void merge(const TimedCall& call, std::vector<Cell>& cells, double width) {
    const auto cell_at = [&](double time) {
      const double at = std::floor((time - first_) / width);
      return static_cast<std::size_t>(std::clamp(at, 0.0, static_cast<double>(cells.size() - 1)));
    };
    const double change = call.enter + std::max(0.0, call.late);
    for (std::size_t i = cell_at(call.enter); i <= cell_at(call.leave); ++i) {
      const double begin = first_ + static_cast<double>(i) * width;
      const auto inside = [&](double from, double to) {
        return std::max(0.0, std::min(to, begin + width) - std::max(from, begin));
      };
      cells[i].late += inside(call.enter, change);
      cells[i].other += inside(change, call.leave);
      cells[i].of_colour[static_cast<std::size_t>(colour_of(call.place->kind))] +=
          inside(call.enter, call.leave) + 1e-12;
    }
    ++cells[cell_at(std::max(call.enter, first_))].calls[call.place->kind];
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
      std::map<Kind, int> calls;
      std::vector<int> dark, light;  // heights
      int number = 0;
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
      for (const auto& [kind, count] : calls) names.push_back(fmt::format("{} {}", count, name_of(kind)));
      const double time = width * static_cast<double>(i - begin), x = static_cast<double>(begin) * width;
      const double scale = (last_ - first_) / static_cast<double>(cells.size()) / width;
      put("<g><title>{} calls from {} to {}: {:.0f} % of the time wait for a late rank, {:.0f} % in calls otherwise: {}"
          "</title>",
          number, moment(first_ + x * scale), moment(first_ + (x + time) * scale), 100 * late / time,
          100 * other / time, fmt::join(names, ", "));
      const auto steps = [&](char suffix, const std::vector<int>& heights) {
        put(R"(<path class="{}{}" d="M{} {})", name, suffix, static_cast<int>(begin) * wide, y + height_);
        for (std::size_t at = 0, next = 0; at < heights.size(); at = next) {
          while (next < heights.size() && heights[next] == heights[at]) ++next;
          put("V{}h{}", y + height_ - heights[at], static_cast<int>(next - at) * wide);
        }
        put(R"(V{}z"/>)", y + height_);
      };
      steps('l', light);
      if (std::ranges::max(dark) > 0) steps('d', dark);
      put("</g>\n");
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
      put(R"(<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>)", name, from, y, std::max(1, to - from), height);
    };
    if (call.open) {
      bar("r", std::min(x, units - 12), units);
    } else {
      const char name = use(static_cast<int>(colour_of(call.place->kind)), call.leave - call.enter);
      if (change > x) bar(std::string{name, 'd'}, x, change);
      if (end > change || change == x) bar(std::string{name, 'l'}, change, end);
    }
    put("</g>\n");
  }

  // On bars that have room. What does not fit is cut at the bar's end.
  void draw_labels() {
    for (const std::size_t i : drawn_alone_) {
      const TimedCall& call = timeline_.calls[i];
      const auto [y, height] = places_.at(i);
      const double change = call.open ? call.leave : call.enter + std::max(0.0, call.late);
      const bool dark = percent(change) - percent(call.enter) >= 6;
      const double x = percent(dark ? call.enter : change), width = percent(dark ? change : call.leave) - x;
      if (width < 6 || height < 14) continue;
      std::string text = name_of(call.place->kind);
      if (call.met.size() == 1 && call.met[0].peer >= 0)
        text += fmt::format(" {} {}", call.met[0].sends || role_of(call.place->kind) == Role::send ? "to" : "from",
                            call.met[0].peer);
      put(R"(<svg x="{}%" y="{}" width="{:.2f}%" height="{}" pointer-events="none"><text class="{}" x="5" y="{}">{}</text></svg>)"
          "\n",
          x, y, width, height, dark ? "b" : "k", height / 2 + 4, text);
    }
    for (std::size_t i = 0; i < timeline_.ranks->size(); ++i) {
      const RankTimes& rank = (*timeline_.ranks)[i];
      if (rank.ended.value_or(0) == 0 || timeline_.ends[i] > last_) continue;
      const int row = static_cast<int>(row_of_.at(rank.rank));
      put(R"(<text class="r{}" x="{}%" y="{}">{}</text>)", part(timeline_.ends[i]) > 0.5 ? " e" : "",
          percent(timeline_.ends[i]), top(row) + height_ / 2 + 4,
          *rank.ended > 128 ? fmt::format("signal {}", *rank.ended - 128) : fmt::format("exit status {}", *rank.ended));
    }
  }

  void draw_messages() {
    struct Arrow {
      double x1, x2;
      std::size_t from, to;
    };
    std::vector<Arrow> arrows;
    for (const auto& [from, to, what] : timeline_.messages) {
      const TimedCall &sender = timeline_.calls[from], &receiver = timeline_.calls[to];
      if (sender.enter < first_ || receiver.leave > last_) continue;
      const std::size_t rows[] = {row_of_.at(sender.rank->rank), row_of_.at(receiver.rank->rank)};
      if (rows[0] != rows[1]) arrows.push_back({sender.enter, receiver.leave, rows[0], rows[1]});
    }
    without_arrow_ = arrows.size() > most_arrows ? arrows.size() : 0;
    if (without_arrow_) arrows.clear();
    const auto line = [&](const char* name, double x1, double x2, std::size_t from, std::size_t to, int inside) {
      const int a = static_cast<int>(from), b = static_cast<int>(to), down = a < b ? 1 : -1;
      put(R"(<line class="{}" x1="{:.4g}%" y1="{}" x2="{:.4g}%" y2="{}"/>)"
          "\n",
          name, x1, (a < b ? bottom(a) : top(a)) - down * inside, x2, (a < b ? top(b) : bottom(b)) + down * inside);
    };
    for (const Arrow& one : arrows) line("arrow", percent(one.x1), percent(one.x2), one.from, one.to, 0);
    arrows_ = arrows.size();
    for (int number = 0; const std::size_t i : drawn_alone_) {  // for whom a rank still waits
      const TimedCall& call = timeline_.calls[i];
      for (const Meeting& one : call.met) {
        const auto peer = call.open ? row_of_.find(one.peer) : row_of_.end();
        const std::size_t row = row_of_.at(call.rank->rank);
        if (peer == row_of_.end() || peer->second == row) continue;
        const double x = 98 - 1.5 * (number++ % 8);
        line("wait", x, x, row, peer->second, height_ / 3);
      }
    }
  }

  int draw_legend(int y) {
    const auto note = [&](const std::string& text) {
      put(R"(<text class="s" x="2%" y="{}">{}</text>)", y, text);
      y += 15;
    };
    const auto seen = [&](double seconds) { return seconds > 2e-3 * (last_ - first_); };
    if (std::ranges::any_of(drawn_, seen))
      note("Dark: waits for a late rank. Light: the data travel. Gap: outside of calls.");
    if (merged_) note("Low bars are many short calls. Height: their part of the time.");
    if (timeline_.every > 1) note(fmt::format("One in {} messages and collectives was kept.", timeline_.every));
    if (without_arrow_) note(fmt::format("{} messages are too many for arrows: see --from and --to.", without_arrow_));
    std::uint64_t lost = 0;
    for (const RankTimes& one : *timeline_.ranks) lost = std::max(lost, one.lost);
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
      entries.emplace_back(
          fmt::format(R"(<rect class="{0}d" width="9" height="12"/><rect class="{0}l" x="9" width="9" height="12"/>)",
                      name),
          names[colour]);
    }
    if (waits_) entries.emplace_back(R"(<rect class="r" width="18" height="12"/>)", "still waits at the end");
    if (arrows_) entries.emplace_back(R"(<line class="arrow" x1="0" x2="18" y1="6" y2="6"/>)", "message");
    for (const char* const columns : {"narrow", "wide"}) {
      const std::size_t in_row = columns[0] == 'n' ? 2 : 5;
      put(R"(<g class="{}">)", columns);
      for (std::size_t i = 0; i < entries.size(); ++i)
        put(R"(<svg x="{}%" y="{}" width="45%" height="16">{}<text class="s" x="24" y="10">{}</text></svg>)",
            2 + static_cast<int>(i % in_row) * (columns[0] == 'n' ? 48 : 19), y + 18 * static_cast<int>(i / in_row),
            entries[i].first, entries[i].second);
      put("</g>\n");
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
  std::map<int, std::vector<std::size_t>> calls_of_;  // by rank: indices of calls
  std::vector<std::set<int>> rows_;
  std::map<int, std::size_t> row_of_;
  std::map<std::size_t, std::pair<int, int>> places_;  // y and height of a call's bar
  std::set<std::size_t> drawn_alone_;
  std::array<double, 5> drawn_{};  // s of each colour
  std::string out_;
  int height_ = 0;
  bool waits_ = false, merged_ = false;
  std::size_t arrows_ = 0, without_arrow_ = 0;
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
