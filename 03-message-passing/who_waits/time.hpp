// time.hpp: --time: how much of the time in calls a rank waits for the last rank to arrive, and how much for the data.
//
// Ranks meet in collectives and in messages. At a meeting, a rank waits from its arrival until the last one whose data
// it needs has arrived: that rank is late. The rest of its time is the network's, or the library's. A rank may be late
// because it worked longer than the rank that waits, or because it left the meeting before later itself. Only the
// first is its own doing, and that is measured on each rank's own clock.
#pragma once

#include "record.hpp"

#include <functional>
#include <string>
#include <vector>

namespace who_waits {

struct ClockReading {
  std::int64_t clock = 0, offset = 0, uncertainty = 0;  // ns; clock + offset is rank 0's
};

struct RankTimes {
  int rank = 0;
  ClockReading first{}, last{};  // of its node: at the start and the end of the program
  std::int64_t lasted = 0;       // ns from the first reading to the end of the program
  std::uint32_t shift = 0;
  std::vector<Place> places{};
  std::vector<Meeting> meetings{};  // their places are indices of `places`
  static void fields(auto& visit, auto& one) {
    visit(one.rank, one.first, one.last, one.lasted, one.shift, one.places, one.meetings);
  }
};
RankTimes times_of(const Times& times, int ranks);  // for rank 0 among so many: as many meetings as it has memory for

struct TimeReport {
  std::string cause;               // "late", "network", "late and network", "neither"
  std::vector<int> late;           // the ranks that the others wait for, the one that costs most first
  std::vector<std::string> lines;  // for people
};
// `where` makes a place readable. Late ranks are named if they cost 10 % of the time of all ranks, the network if the
// median meeting costs 5 %. That is judged with the middle of the clocks' uncertainty, and the lines give the range.
TimeReport report(const std::vector<RankTimes>& ranks, const std::function<std::string(const Place&)>& where);

}  // namespace who_waits
