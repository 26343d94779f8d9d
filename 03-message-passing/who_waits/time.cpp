#include "time.hpp"
#include "verdict.hpp"

#include <multinode/base/median.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>

namespace who_waits {

namespace {

// Of the time of all ranks.
constexpr double late_worth_naming = 0.1, network_worth_naming = 0.05;
constexpr std::size_t most_meetings = 2 << 20;  // on rank 0
constexpr std::size_t most_lines = 12;

using Key = std::tuple<Kind, std::uint64_t, std::string, std::uint64_t>;  // of a place, on all ranks
Key key_of(const Place& place) { return {place.kind, place.bytes, place.object.data(), place.site}; }

struct Sum {
  const Place* place = nullptr;  // one rank's
  double calls = 0, in = 0;      // in: ns, as below
  int ranks = 0;
  double meetings = 0, late = 0, data = 0;
  std::map<int, double> for_rank;           // of `late`, by the rank that is waited for
  std::map<std::uint64_t, double> data_of;  // `data` of all ranks, by meeting
};
struct Analysis {
  std::map<Key, Sum> places;
  std::map<int, double> worked;  // ns that others wait because this rank worked longer
  double all_worked = 0, data = 0;
};

double offset_at(const RankTimes& rank_times, std::int64_t clock, double error) {
  const auto span = static_cast<double>(rank_times.last.clock - rank_times.first.clock);
  const double part = span > 0 ? static_cast<double>(clock - rank_times.first.clock) / span : 0;
  const auto mix = [&](std::int64_t a, std::int64_t b) {
    return static_cast<double>(a) + part * static_cast<double>(b - a);
  };
  return mix(rank_times.first.offset, rank_times.last.offset) +
         error * mix(rank_times.first.uncertainty, rank_times.last.uncertainty);
}

// `error`: of the clocks of other nodes, from -1 to 1 times their uncertainty.
Analysis analyse(const std::vector<RankTimes>& ranks, double error) {
  struct At {
    const RankTimes* rank;
    const Meeting* meeting;
    double enter;
  };
  std::uint32_t shift = 0;
  for (const RankTimes& rank_times : ranks) shift = std::max(shift, rank_times.shift);
  const std::uint64_t every = std::uint64_t{1} << shift;
  std::unordered_map<std::uint64_t, std::vector<At>> meetings;
  for (const RankTimes& rank_times : ranks)
    for (const Meeting& one : rank_times.meetings)
      if (one.number % every == 0)
        meetings[one.number].push_back(
            {&rank_times, &one, static_cast<double>(one.enter) + offset_at(rank_times, one.enter, error)});

  struct Waited {
    double late = -1, worked = 0, data = 0;
    int for_rank = -1;
    std::uint64_t number = 0;
    const Place* place = nullptr;
  };
  std::map<std::pair<int, std::int64_t>, Waited> calls;  // by rank and start
  for (const auto& [number, there] : meetings) {
    std::vector<const At*> givers;
    for (const At& one : there)
      if (one.meeting->gives) givers.push_back(&one);
    std::ranges::sort(givers, std::greater<>(), &At::enter);
    for (const At& one : there) {
      const auto giver = std::ranges::find_if(givers, [&](const At* other) { return other != &one; });  // came last
      if (!one.meeting->waits || giver == givers.end()) continue;
      const auto duration = static_cast<double>(one.meeting->leave - one.meeting->enter);
      const double late = std::clamp((*giver)->enter - one.enter, 0.0, duration);
      Waited& waited = calls[{one.rank->rank, one.meeting->enter}];
      if (late <= waited.late) continue;  // of the messages of one call, that which came last
      const auto worked_longer = static_cast<double>((*giver)->meeting->outside - one.meeting->outside);
      waited = {late,   std::clamp(worked_longer, 0.0, late),    duration - late, (*giver)->rank->rank,
                number, &one.rank->places.at(one.meeting->place)};
    }
  }

  Analysis all;
  for (const RankTimes& rank_times : ranks)
    for (const Place& place : rank_times.places) {
      Sum& sum = all.places[key_of(place)];
      sum.place = &place;
      sum.calls += static_cast<double>(place.calls);
      sum.in += static_cast<double>(place.nanoseconds);
      ++sum.ranks;
    }
  for (const auto& [call, waited] : calls) {
    Sum& sum = all.places.at(key_of(*waited.place));
    ++sum.meetings;
    sum.late += waited.late;
    sum.data += waited.data;
    sum.for_rank[waited.for_rank] += waited.late;
    sum.data_of[waited.number] += waited.data;
    all.worked[waited.for_rank] += waited.worked * static_cast<double>(every);
    all.all_worked += waited.worked * static_cast<double>(every);
  }
  for (const auto& [key, sum] : all.places) {  // the median: what every call takes, not the pauses of a busy machine
    if (sum.meetings == 0) continue;
    std::vector<double> values;
    for (const auto& [number, data] : sum.data_of) values.push_back(data);
    all.data += multinode::median(values) * static_cast<double>(values.size() * every);
  }
  return all;
}

std::string time_text(double ns) {
  for (const auto& [unit, name] : {std::pair{1e9, "s"}, {1e6, "ms"}})
    if (ns >= unit) return fmt::format("{:.3g} {}", ns / unit, name);
  return fmt::format("{:.3g} us", ns / 1e3);
}

}  // namespace

RankTimes times_of(const Times& times, int ranks) {
  RankTimes rank_times{.shift = times.shift};
  std::map<std::uint16_t, std::uint16_t> number;
  for (std::size_t i = 0; i < times.places.size(); ++i)
    if (times.places[i].kind != Kind::none) {
      number[static_cast<std::uint16_t>(i)] = static_cast<std::uint16_t>(rank_times.places.size());
      rank_times.places.push_back(times.places[i]);
    }
  rank_times.meetings.assign(times.meetings.begin(), times.meetings.begin() + times.meetings_used);
  for (Meeting& one : rank_times.meetings) one.place = number.at(one.place);
  while (rank_times.meetings.size() * static_cast<std::size_t>(ranks) > most_meetings) {
    ++rank_times.shift;
    std::erase_if(rank_times.meetings, [&](const Meeting& one) { return one.number >> (rank_times.shift - 1) & 1; });
  }
  return rank_times;
}

TimeReport report(const std::vector<RankTimes>& ranks, const std::function<std::string(const Place&)>& where) {
  const Analysis middle = analyse(ranks, 0), least = analyse(ranks, -1), most = analyse(ranks, 1);
  double all = 0;
  std::int64_t uncertainty = 0;
  for (const RankTimes& one : ranks) {
    all += static_cast<double>(one.lasted);
    uncertainty = std::max({uncertainty, one.first.uncertainty, one.last.uncertainty});
  }
  std::vector<const Sum*> sorted;
  for (const auto& [key, sum] : middle.places) sorted.push_back(&sum);
  std::ranges::sort(sorted, std::greater<>(), &Sum::in);

  TimeReport out;
  for (const Sum* const sum : sorted) {
    if (out.lines.size() == most_lines) {
      out.lines.push_back(fmt::format("... and {} more places", sorted.size() - most_lines));
      break;
    }
    const Place& place = *sum->place;
    std::string text = fmt::format("{}{}, {}: {:.0f} calls on {} ranks, {} each", name_of(place.kind),
                                   place.bytes ? " " + size_of(place.bytes) : "", where(place), sum->calls, sum->ranks,
                                   time_text(sum->in / sum->calls));
    if (sum->meetings > 0) {
      const auto late_in = [&](const Analysis& one) { return one.places.at(key_of(place)).late / sum->meetings; };
      const double late = late_in(middle);
      const double error = std::max(std::abs(late_in(least) - late), std::abs(late_in(most) - late));
      const auto [rank, nanoseconds] =
          *std::ranges::max_element(sum->for_rank, {}, [](const auto& one) { return one.second; });
      text += fmt::format(", of which {}{} waiting for {}", time_text(late),
                          error > 0.01 * late && error > 1e3 ? " (+- " + time_text(error) + ")" : "",
                          nanoseconds > 0.8 * sum->late ? fmt::format("rank {}", rank) : "one rank or another");
      text += fmt::format(" and {} for the data", time_text(sum->data / sum->meetings));
    }
    out.lines.push_back(std::move(text));
  }

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
                                                     time_text(static_cast<double>(uncertainty))));
  return out;
}

}  // namespace who_waits
