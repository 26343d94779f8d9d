// timeline.hpp: when each rank was in which call, on one clock, and how much of a call it waited for a late rank. For
// --timeline, which draws it, and for --time, which adds it up.
//
// Ranks meet in collectives and in messages. At a meeting, a rank waits from its arrival until the last one whose data
// it needs has arrived: that rank is late. The rest of its time is the network's, or the library's.
#pragma once

#include "record.hpp"

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace who_waits {

struct ClockReading {
  std::int64_t clock = 0, offset = 0, uncertainty = 0;  // ns; clock + offset is rank 0's
};

struct RankTimes {
  int rank = 0;
  std::string host{};
  ClockReading first{}, last{};  // of its node: at the start, and at the end or the explanation
  std::int64_t until = 0;        // clock at the end of the program, or now
  std::optional<int> ended{};    // its exit status
  Sample sample{};
  std::uint64_t lost = 0;         // earlier calls that are not kept
  std::uint64_t odd_regions = 0;  // calls to begin or end a region that were not possible
  std::vector<Place> places{};
  std::vector<Meeting> meetings{};                       // their places are indices of `places`
  std::vector<Meeting> open{};                           // of the calls that it is still in: `leave` has no meaning
  std::map<std::uint32_t, std::string> communicators{};  // on rank 0: their names
  static void fields(auto& visit, auto& one) {
    visit(one.rank, one.host, one.first, one.last, one.until, one.ended, one.sample, one.lost, one.odd_regions);
    visit(one.places, one.meetings, one.open);
  }
};
RankTimes times_of(const Times& times, int ranks);  // for rank 0 among so many: as many meetings as it has memory for

// Of a timeline: seconds since its start, negative ones before its end, or a percentage of it.
struct Moment {
  double value = 0;
  bool percent = false;
};

struct TimedCall {
  const RankTimes* rank = nullptr;
  const Place* place = nullptr;
  int thread = 0;
  double enter = 0, leave = 0;     // seconds since the first rank left MPI_Init
  bool open = false;               // it has not returned
  double late = -1;                // s until the late rank came; -1: not known
  int waits_for = -1;              // the rank where that began: the late rank may have waited for another one before
  double stands_for = 1;           // it, and those of its kind that were not kept
  double waits_like_it = 0;        // likewise; 0: it says nothing about the others
  std::vector<Meeting> met{};      // messages have a peer
  std::map<int, double> worked{};  // by rank: s of `late` that it worked longer than this one
};
struct Timeline {
  std::vector<TimedCall> calls;    // in the order of their start
  std::vector<TimedCall> regions;  // likewise; the `object` of their place is their name
  struct Message {
    std::size_t from = 0, to = 0;  // indices of calls
    Meeting what{};                // as the sender says
  };
  std::vector<Message> messages;
  double first = 0, last = 0;  // of what is worth drawing: from MPI_Init to MPI_Finalize, or to the end if a rank waits
  Sample sample{};             // what of the calls is here, on all ranks
  std::vector<double> ends;    // of the processes, as `ranks`
  std::string name{};          // the program's
  const std::vector<RankTimes>* ranks = nullptr;
  double at(Moment one) const {  // s
    return one.percent ? last * one.value / 100 : one.value < 0 ? last + one.value : one.value;
  }
};
Timeline timeline_of(const std::vector<RankTimes>& ranks);  // which must outlive it

enum class Colour { message, collective, requests, gpu, other };
Colour colour_of(Kind kind);
// "MPI_Recv from rank 1, tag 5, 64 B in MPI_COMM_WORLD, heat.cpp:50: 1.2 ms, of which 1.1 ms waiting for rank 1"
std::string title_of(const TimedCall& call, const std::string& place);
std::string time_text(double seconds);
std::string uncertainty_of(const std::vector<RankTimes>& ranks);  // a sentence about their clocks; "": they share one

using Where = std::function<std::string(const Place&)>;
constexpr std::size_t most_rows = 32, most_bytes = 200 << 10;
// A picture of from..to, by default of timeline.first..last. At most most_bytes, and most_rows rows: where calls are
// narrower than it shows, their part of the time is drawn. Throws UsageError if nothing lies in it.
std::string svg_of(const Timeline& timeline, std::optional<Moment> from, std::optional<Moment> to, const Where& where);
// The same calls as trace events for Perfetto and chrome://tracing.
std::string trace_of(const Timeline& timeline, std::optional<Moment> from, std::optional<Moment> to,
                     const Where& where);

// --time: how much of the time in calls a rank waits for the last rank to arrive, and how much for the data.
struct TimeReport {
  std::vector<int> late;           // the ranks that the others wait for, the one that costs most first
  std::vector<std::string> lines;  // for people
};
// `where` makes a place readable. Late ranks are named if they cost 10 % of the time of all ranks. A rank may be late
// because it worked longer than the rank that waits, or because it left the meeting before later itself. Only the first
// is its own doing, and that is measured on each rank's own clock.
TimeReport report(const std::vector<RankTimes>& ranks, const Where& where);

}  // namespace who_waits
