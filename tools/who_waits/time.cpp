#include "timeline.hpp"
#include "verdict.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace who_waits {

namespace {

constexpr double late_worth_naming = 0.1;  // of the time of all ranks
constexpr std::size_t most_lines = 12;

struct Sum {  // of a place, on all ranks
  const Place* place = nullptr;
  double calls = 0, in = 0, late = -1;  // in, late: s; -1: not known
  int ranks = 0;
  std::map<int, double> for_rank{};  // of `late`, by the rank that is waited for
};

std::string line_of(const Sum& sum, const Where& where) {
  const Place& place = *sum.place;
  std::string text = fmt::format("{}{}, {}: {:.0f} calls on {} ranks, {} each", name_of(place.kind),
                                 place.bytes ? " " + size_of(place.bytes) : "", where(place), sum.calls, sum.ranks,
                                 time_text(sum.in / sum.calls));
  if (sum.late < 0) return text;
  const auto [rank, seconds] = *std::ranges::max_element(sum.for_rank, {}, [](const auto& one) { return one.second; });
  return text + fmt::format(", of which {} waiting for {} and {} for the data", time_text(sum.late / sum.calls),
                            seconds > 0.8 * sum.late ? fmt::format("rank {}", rank) : "one rank or another",
                            time_text(std::max(0.0, sum.in - sum.late) / sum.calls));
}

}  // namespace

TimeReport report(const std::vector<RankTimes>& ranks, const Where& where) {
  const auto key_of = [](const Place& one) {
    return std::tuple(one.kind, one.bytes, std::string(one.object.data()), one.site);
  };
  std::map<decltype(key_of(Place{})), Sum> places;
  double all = 0, all_worked = 0;  // s
  for (const RankTimes& rank : ranks) {
    all += static_cast<double>(rank.until - rank.first.clock) / 1e9;
    for (const Place& place : rank.places) {
      if (place.kind == Kind::none || place.kind == Kind::region) continue;
      Sum& sum = places[key_of(place)];
      sum.place = &place;
      sum.calls += static_cast<double>(place.calls);
      sum.in += static_cast<double>(place.nanoseconds) / 1e9;
      ++sum.ranks;
    }
  }
  const Timeline timeline = timeline_of(ranks);
  std::map<int, double> worked;  // s that others wait because this rank worked longer
  for (const TimedCall& call : timeline.calls) {
    if (call.late < 0 || call.open || colour_of(call.place->kind) == Colour::other) continue;
    Sum& sum = places.at(key_of(*call.place));
    sum.late = std::max(0.0, sum.late) + call.late * call.waits_like_it;
    sum.for_rank[call.waits_for] += call.late * call.waits_like_it;
    for (const auto& [late_rank, seconds] : call.worked) {
      worked[late_rank] += seconds * call.waits_like_it;
      all_worked += seconds * call.waits_like_it;
    }
  }
  std::vector<const Sum*> sorted;
  for (const auto& [key, sum] : places) sorted.push_back(&sum);
  std::ranges::sort(sorted, std::greater<>(), &Sum::in);

  TimeReport out;
  for (std::size_t i = 0; i < sorted.size() && i < most_lines; ++i) out.lines.push_back(line_of(*sorted[i], where));
  if (sorted.size() > most_lines)
    out.lines.push_back(fmt::format("... and {} more places", sorted.size() - most_lines));
  if (all_worked >= late_worth_naming * all) {
    std::multimap<double, int, std::greater<>> by_time;
    for (const auto& [rank, seconds] : worked) by_time.emplace(seconds, rank);
    for (double named = 0; const auto& [seconds, rank] : by_time) {
      if (named > 0.8 * all_worked) break;
      named += seconds;
      out.late.push_back(rank);
    }
    out.lines.push_back(
        fmt::format("{:.0f} % of the time, ranks wait because {} {} longer than the others between the calls",
                    100 * all_worked / all, rank_text({out.late.begin(), out.late.end()}),
                    out.late.size() == 1 ? "works or sleeps" : "work or sleep"));
  } else {
    out.lines.push_back("no rank makes the others wait for much of the time by working longer");
  }
  const std::string clocks = uncertainty_of(ranks);
  out.lines.push_back(clocks.empty() ? "all ranks share a clock" : clocks);
  return out;
}

}  // namespace who_waits
