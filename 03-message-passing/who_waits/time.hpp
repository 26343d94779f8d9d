// time.hpp: --time: how much of the time in calls a rank waits for the last rank to arrive, and how much for the data.
//
// A rank may be late because it worked longer than the rank that waits, or because it left the meeting before later
// itself. Only the first is its own doing, and that is measured on each rank's own clock.
#pragma once

#include "timeline.hpp"

namespace who_waits {

struct TimeReport {
  std::string cause;               // "late", "network", "late and network", "neither"
  std::vector<int> late;           // the ranks that the others wait for, the one that costs most first
  std::vector<std::string> lines;  // for people
};
// `where` makes a place readable. Late ranks are named if they cost 10 % of the time of all ranks, the network if the
// median meeting costs 5 %. That is judged with the middle of the clocks' uncertainty, and the lines give the range.
TimeReport report(const std::vector<RankTimes>& ranks, const Where& where);

}  // namespace who_waits
