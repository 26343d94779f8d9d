#include "timeline.hpp"
#include "verdict.hpp"

#include <multinode/base/json.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_map>

namespace who_waits {

namespace {

constexpr std::size_t most_meetings = 2 << 20;  // on rank 0

double offset_at(const RankTimes& rank, std::int64_t clock) {
  const auto span = static_cast<double>(rank.last.clock - rank.first.clock);
  const double part = span > 0 ? static_cast<double>(clock - rank.first.clock) / span : 0;
  return static_cast<double>(rank.first.offset) + part * static_cast<double>(rank.last.offset - rank.first.offset);
}

bool starts_mpi(Kind kind) { return kind == Kind::MPI_Init || kind == Kind::MPI_Init_thread; }

}  // namespace

RankTimes times_of(const Times& times, int ranks) {
  RankTimes out;
  for (std::uint32_t before = 1, after = 0; before != after || before % 2 != 0;) {  // the program may be running
    before = times.thinned;
    out.sample = times.sample;
    const std::uint64_t used = times.used.load(std::memory_order_acquire), kept = std::min(used, times.most);
    out.lost = used - kept;
    out.meetings.assign(times.meetings.begin(), times.meetings.begin() + static_cast<std::ptrdiff_t>(kept));
    std::atomic_thread_fence(std::memory_order_acquire);
    after = times.thinned;
  }
  out.odd_regions = times.odd_regions;
  out.places.assign(times.places.begin(), times.places.end());
  while (out.meetings.size() * static_cast<std::size_t>(ranks) > most_meetings) {
    out.sample.thin(out.meetings);
    std::erase_if(out.meetings, [&](const Meeting& one) { return !out.sample.has(one); });
  }
  return out;
}

Timeline timeline_of(const std::vector<RankTimes>& ranks) {
  Timeline out;
  out.ranks = &ranks;
  for (const RankTimes& one : ranks) {
    out.sample.shift = std::max(out.sample.shift, one.sample.shift);
    out.sample.level = std::max(out.sample.level, one.sample.level);
  }
  const auto every = static_cast<double>(std::uint64_t{1} << out.sample.shift);
  const std::int64_t origin = ranks.at(0).first.clock;
  const auto seconds = [&](const RankTimes& rank, std::int64_t clock) {
    return (static_cast<double>(clock - origin) + offset_at(rank, clock)) / 1e9;
  };
  std::map<std::tuple<const RankTimes*, int, std::int64_t>, TimedCall> calls;
  for (const RankTimes& rank : ranks) {
    out.ends.push_back(seconds(rank, rank.until));
    const auto add = [&](const Meeting& one, bool open) {
      if (!open && !out.sample.has(one)) return;
      const Place* const place = &rank.places.at(one.place);
      const bool region = place->kind == Kind::region;
      TimedCall& call = region ? out.regions.emplace_back() : calls[{&rank, one.thread, one.enter}];
      call.rank = &rank;
      call.place = place;
      call.thread = one.thread;
      call.enter = seconds(rank, one.enter);
      call.leave = open ? out.ends.back() : seconds(rank, one.leave);
      call.open = open;
      call.met.push_back(one);
    };
    for (const Meeting& one : rank.meetings) add(one, false);
    for (const Meeting& one : rank.open) add(one, true);
  }
  for (auto& [key, call] : calls) out.calls.push_back(std::move(call));
  std::ranges::stable_sort(out.calls, {}, &TimedCall::enter);
  std::ranges::stable_sort(out.regions, {}, &TimedCall::enter);

  struct At {
    std::size_t call = 0;
    const Meeting* meeting = nullptr;
  };
  struct Wait {
    double until = 0;
    std::size_t call = 0;
    At giver{}, own{};
  };
  std::vector<Wait> waits_of(out.calls.size());  // by call
  std::unordered_map<std::uint64_t, std::vector<At>> meetings;
  for (std::size_t i = 0; i < out.calls.size(); ++i)
    for (const Meeting& one : out.calls[i].met)
      if (!out.calls[i].open) meetings[one.number].push_back({i, &one});  // in the order of their start
  for (const auto& [number, there] : meetings) {
    for (const At& one : there) {
      TimedCall& call = out.calls[one.call];
      const auto giver = std::find_if(there.rbegin(), there.rend(), [&](const At& other) {
        return other.meeting->gives && out.calls[other.call].rank != call.rank;
      });
      if (!one.meeting->waits || giver == there.rend()) continue;
      const TimedCall& last = out.calls[giver->call];
      // A buffered send, or MPI_Init, may return before the other comes: then it has not waited.
      const bool may_return = one.meeting->sends || number == start_meeting || number == end_meeting;
      const double late =
          may_return && last.enter > call.leave ? 0 : std::clamp(last.enter - call.enter, 0.0, call.leave - call.enter);
      if (late <= call.late) continue;  // of the messages of one call, that which came last
      call.late = late;
      call.waits_for = last.rank->rank;
      // Of a long wait, both ranks have kept their calls.
      const bool is_long = level_of(std::llround(1e9 * late)) >= out.sample.level;
      call.waits_like_it = is_long ? 1 : Sample{out.sample.shift, 65}.has(*one.meeting) ? every : 0;
      waits_of[one.call] = {call.enter + late, one.call, *giver, one};
    }
    if (there.size() != 2 || there[0].meeting->sends == there[1].meeting->sends) continue;
    const std::size_t sender = there[1].meeting->sends;
    if (there[sender].meeting->peer < 0 || there[1 - sender].meeting->peer < 0) continue;
    out.messages.push_back({there[sender].call, there[1 - sender].call, *there[sender].meeting});
    for (Meeting& one : out.calls[there[1 - sender].call].met)
      if (one.number == number) one.bytes = there[sender].meeting->bytes;
  }

  // The rank that came last may have waited before for another one, which it had to come after: follow it.
  std::erase_if(waits_of, [](const Wait& one) { return !one.own.meeting; });
  std::ranges::stable_sort(waits_of, {}, &Wait::until);
  std::map<const RankTimes*, std::vector<const Wait*>> before;
  for (const Wait& wait : waits_of) {
    TimedCall& call = out.calls[wait.call];
    const RankTimes* const last = out.calls[wait.giver.call].rank;
    const auto worked = static_cast<double>(wait.giver.meeting->outside - wait.own.meeting->outside) / 1e9;
    call.worked = {{last->rank, std::clamp(worked, 0.0, call.late)}};
    double left = call.late - call.worked[last->rank];
    const std::vector<const Wait*>& others = before[last];
    for (auto other = others.rbegin(); other != others.rend() && (*other)->until > call.enter && left > 0; ++other) {
      const TimedCall& then = out.calls[(*other)->call];
      const double both = std::min(wait.until, (*other)->until) - std::max(call.enter, then.enter);
      for (const auto& [rank, seconds] : then.worked) {
        const double part = rank == call.rank->rank ? 0 : std::clamp(seconds * both / then.late, 0.0, left);
        call.worked[rank] += part, left -= part;
      }
    }
    for (const auto& [rank, seconds] : call.worked)
      if (seconds > call.late / 2) call.waits_for = rank;
    if (call.late > 0) before[call.rank].push_back(&wait);
  }

  for (TimedCall& call : out.calls)
    if (std::ranges::none_of(call.met, [&](const Meeting& one) { return one.level >= out.sample.level; }))
      call.stands_for = every;

  bool waits = false;
  double start = out.calls.empty() ? 0 : out.calls.front().enter, stop = -1e300, started = 1e300;
  for (const TimedCall& call : out.calls) {
    waits = waits || call.open;
    if (starts_mpi(call.place->kind) && !call.open) started = std::min(started, call.leave);
    if (call.place->kind == Kind::MPI_Finalize) stop = std::max(stop, call.enter);
  }
  if (started < 1e300) start = started;
  out.last = *std::ranges::max_element(out.ends) - start;
  if (!waits && stop > start) out.last = (stop - start) * 1.02;
  for (double& end : out.ends) end -= start;
  for (std::vector<TimedCall>* const all : {&out.calls, &out.regions})
    for (TimedCall& call : *all) call.enter -= start, call.leave -= start;
  return out;
}

std::string time_text(double seconds) {
  for (const auto& [unit, name] : {std::pair{1.0, "s"}, {1e-3, "ms"}})
    if (seconds >= unit) return fmt::format("{:.3g} {}", seconds / unit, name);
  return fmt::format("{:.3g} us", seconds * 1e6);
}

std::string uncertainty_of(const std::vector<RankTimes>& ranks) {
  std::int64_t most = 0;
  for (const RankTimes& one : ranks) most = std::max({most, one.first.uncertainty, one.last.uncertainty});
  return most ? fmt::format("the nodes' clocks are known to +- {}", time_text(static_cast<double>(most) / 1e9)) : "";
}

Colour colour_of(Kind kind) {
  const std::string_view name = name_of(kind);
  if (name.starts_with("nccl") || name.starts_with("cuda")) return Colour::gpu;
  const Role role = role_of(kind);
  if (role == Role::send || role == Role::receive || role == Role::both) return Colour::message;
  if (role == Role::wait_all || role == Role::wait_any) return Colour::requests;
  return starts_mpi(kind) || kind == Kind::MPI_Finalize ? Colour::other : Colour::collective;
}

std::string title_of(const TimedCall& call, const std::string& place) {
  std::string text = name_of(call.place->kind);
  const bool sends_too = role_of(call.place->kind) == Role::both;
  std::size_t messages = 0;
  for (const Meeting& one : call.met) {
    if (one.peer == no_rank) continue;
    if (++messages > 4) continue;
    const bool to = one.sends || role_of(call.place->kind) == Role::send;
    text += fmt::format("{} {} {}", messages > 1 || sends_too ? "," : "", to ? "to" : "from",
                        one.peer < 0 ? "any rank" : fmt::format("rank {}", one.peer));
    if (one.tag >= 0) text += fmt::format(", tag {}", one.tag);
    if (one.bytes) text += ", " + size_of(one.bytes);
  }
  if (messages > 4) text += fmt::format(" and {} more", messages - 4);
  if (messages == 0 && call.place->bytes) text += ", " + size_of(call.place->bytes);
  std::set<std::string> names;
  for (const Meeting& one : call.met)
    if (call.rank->communicators.contains(one.communicator))
      names.insert(call.rank->communicators.at(one.communicator));
  if (!names.empty()) text += fmt::format(" in {}", fmt::join(names, " and "));
  text += fmt::format(", {}: {}", place, time_text(call.leave - call.enter));
  if (call.open)
    return text + ", still waiting at the end" +
           (call.waits_for < 0 ? "" : fmt::format(" for rank {}", call.waits_for));
  return call.late > 0 ? text + fmt::format(", of which {} waiting for rank {}", time_text(call.late), call.waits_for)
                       : text;
}

std::string trace_of(const Timeline& timeline, std::optional<Moment> from, std::optional<Moment> to,
                     const Where& where) {
  const double first = from ? timeline.at(*from) : -1e300, last = to ? timeline.at(*to) : 1e300;
  nlohmann::json events = nlohmann::json::array();
  for (const RankTimes& rank : *timeline.ranks)
    events.push_back({{"ph", "M"},
                      {"name", "process_name"},
                      {"pid", rank.rank},
                      {"args", {{"name", fmt::format("rank {} ({})", rank.rank, rank.host)}}}});
  const auto inside = [&](const TimedCall& call) { return call.leave >= first && call.enter <= last; };
  const auto event = [](const TimedCall& call, double time, const char* phase, const char* name, const char* category) {
    return nlohmann::json{{"ph", phase},      {"pid", call.rank->rank}, {"tid", call.thread},
                          {"ts", time * 1e6}, {"name", name},           {"cat", category}};
  };
  for (const TimedCall& region : timeline.regions) {
    if (!inside(region)) continue;
    events.push_back(event(region, region.enter, "X", region.place->object.data(), "region"));
    events.back()["dur"] = (region.leave - region.enter) * 1e6;
  }
  constexpr const char* categories[] = {"message", "collective", "requests", "gpu", "other"};
  for (const TimedCall& call : timeline.calls) {
    if (!inside(call)) continue;
    const std::string place = where(*call.place);
    const Kind kind = call.place->kind;
    nlohmann::json one = event(call, call.enter, "X", name_of(kind), categories[static_cast<int>(colour_of(kind))]);
    one["dur"] = (call.leave - call.enter) * 1e6;
    nlohmann::json& args = one["args"] = {{"what", title_of(call, place)}, {"place", place}, {"open", call.open}};
    if (call.late >= 0) args["late_us"] = call.late * 1e6, args["waits_for"] = call.waits_for;
    for (const Meeting& met : call.met)
      if (met.peer != no_rank) args["messages"].push_back({{"peer", met.peer}, {"tag", met.tag}, {"bytes", met.bytes}});
    events.push_back(std::move(one));
  }
  for (std::size_t i = 0; i < timeline.messages.size(); ++i) {
    const TimedCall &sender = timeline.calls[timeline.messages[i].from],
                    &receiver = timeline.calls[timeline.messages[i].to];
    if (!inside(sender) || !inside(receiver)) continue;
    events.push_back(event(sender, sender.enter, "s", "message", "message"));
    events.back()["id"] = i;
    events.push_back(event(receiver, receiver.leave, "f", "message", "message"));
    events.back()["id"] = i, events.back()["bp"] = "e";
  }
  return multinode::json_text({{"displayTimeUnit", "ms"}, {"traceEvents", events}}) + "\n";
}

}  // namespace who_waits
