#include "time.hpp"

#include "verdict.hpp"

#include <multinode/base/median.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace who_waits {

namespace {

// Of the time of all ranks.
constexpr double late_worth_naming = 0.1, network_worth_naming = 0.05;
constexpr std::size_t most_lines = 12;

struct Sum {  // of a place, on all ranks
  const Place* place = nullptr;
  double calls = 0, in = 0, meetings = 0, late = 0, data = 0;  // in, late, data: s
  int ranks = 0;
  std::map<int, double> for_rank;           // of `late`, by the rank that is waited for
  std::map<std::uint64_t, double> data_of;  // `data` of all ranks, by meeting
};
using Key = std::tuple<Kind, std::uint64_t, std::string, std::uint64_t>;
Key key_of(const Place& place) { return {place.kind, place.bytes, place.object.data(), place.site}; }

struct Analysis {
  std::map<Key, Sum> places;
  std::map<int, double> worked;  // s that others wait because this rank worked longer
  double all_worked = 0, data = 0, all = 0;

  Analysis(const std::vector<RankTimes>& ranks, double error) {
    for (const RankTimes& rank : ranks)
      for (const Place& place : rank.places) {
        if (place.kind == Kind::none) continue;
        Sum& sum = places[key_of(place)];
        sum.place = &place;
        sum.calls += static_cast<double>(place.calls);
        sum.in += static_cast<double>(place.nanoseconds) / 1e9;
        ++sum.ranks;
      }
    const Timeline timeline = timeline_of(ranks, error);
    const auto every = static_cast<double>(timeline.every);
    for (const RankTimes& rank : ranks) all += static_cast<double>(rank.until - rank.first.clock) / 1e9;
    for (const TimedCall& call : timeline.calls) {
      if (call.late < 0 || call.open || colour_of(call.place->kind) == Colour::other) continue;
      Sum& sum = places.at(key_of(*call.place));
      ++sum.meetings;
      sum.late += call.late;
      sum.data += call.data();
      sum.for_rank[call.waits_for] += call.late;
      sum.data_of[call.number] += call.data();
      worked[call.waits_for] += call.worked * every;
      all_worked += call.worked * every;
    }
    for (const auto& [key, sum] : places) {  // the median: what every call takes, not the pauses of a busy machine
      if (sum.meetings == 0) continue;
      std::vector<double> values;
      for (const auto& [number, one] : sum.data_of) values.push_back(one);
      data += multinode::median(values) * static_cast<double>(values.size()) * every;
    }
  }
};

}  // namespace

TimeReport report(const std::vector<RankTimes>& ranks, const Where& where) {
  const Analysis middle(ranks, 0), least(ranks, -1), most(ranks, 1);
  std::int64_t uncertainty = 0;
  for (const RankTimes& one : ranks) uncertainty = std::max({uncertainty, one.first.uncertainty, one.last.uncertainty});
  std::vector<const Sum*> sorted;
  for (const auto& [key, sum] : middle.places) sorted.push_back(&sum);
  std::ranges::sort(sorted, std::greater<>(), &Sum::in);

  TimeReport out;
  for (std::size_t i = 0; i < sorted.size() && i < most_lines; ++i) {
    const Sum& sum = *sorted[i];
    const Place& place = *sum.place;
    std::string text = fmt::format("{}{}, {}: {:.0f} calls on {} ranks, {} each", name_of(place.kind),
                                   place.bytes ? " " + size_of(place.bytes) : "", where(place), sum.calls, sum.ranks,
                                   time_text(sum.in / sum.calls));
    if (sum.meetings > 0) {
      const auto by_late = [](const auto& one) { return one.second; };
      const auto [rank, seconds] = *std::ranges::max_element(sum.for_rank, {}, by_late);
      text += fmt::format(", of which {} waiting for {} and {} for the data", time_text(sum.late / sum.meetings),
                          seconds > 0.8 * sum.late ? fmt::format("rank {}", rank) : "one rank or another",
                          time_text(sum.data / sum.meetings));
    }
    out.lines.push_back(std::move(text));
  }
  if (sorted.size() > most_lines)
    out.lines.push_back(fmt::format("... and {} more places", sorted.size() - most_lines));

  const double all = middle.all;
  const auto percent = [&](double Analysis::*what) {  // with the range that the clocks leave
    const auto [low, high] = std::minmax({middle.*what, least.*what, most.*what});
    std::string text = fmt::format("{:.0f} %", 100 * middle.*what / all);
    if (high - low > 0.01 * all) text += fmt::format(" ({:.0f} to {:.0f} %)", 100 * low / all, 100 * high / all);
    return text;
  };
  if (middle.all_worked >= late_worth_naming * all) {
    out.cause = "late";
    std::multimap<double, int, std::greater<>> by_time;
    for (const auto& [rank, worked] : middle.worked) by_time.emplace(worked, rank);
    for (double named = 0; const auto& [worked, rank] : by_time) {
      if (named > 0.8 * middle.all_worked) break;
      named += worked;
      out.late.push_back(rank);
    }
    out.lines.push_back(fmt::format("{} of the time, ranks wait because {} {} longer than the others between the calls",
                                    percent(&Analysis::all_worked), rank_text({out.late.begin(), out.late.end()}),
                                    out.late.size() == 1 ? "works or sleeps" : "work or sleep"));
  }
  if (middle.data >= network_worth_naming * all) {
    out.cause += out.cause.empty() ? "network" : " and network";
    out.lines.push_back(
        fmt::format("{} of the time, ranks wait although the rank that they wait for has arrived: for "
                    "the network or the library",
                    percent(&Analysis::data)));
  }
  if (out.cause.empty()) {
    out.cause = "neither";
    out.lines.push_back("neither late ranks nor the network take much of the time");
  }
  out.lines.push_back(uncertainty == 0 ? "all ranks share a clock"
                                       : fmt::format("the nodes' clocks are known to +- {}",
                                                     time_text(static_cast<double>(uncertainty) / 1e9)));
  return out;
}

}  // namespace who_waits
