// time.hpp: --time: how much of the time in calls a rank waits for the last rank to arrive, and how much for the data.
#pragma once

#include "timeline.hpp"

namespace who_waits {

struct TimeReport {
  std::vector<int> late;           // the ranks that the others wait for, the one that costs most first
  std::vector<std::string> lines;  // for people
};
// `where` makes a place readable. Late ranks are named if they cost 10 % of the time of all ranks. A rank may be late
// because it worked longer than the rank that waits, or because it left the meeting before later itself. Only the first
// is its own doing, and that is measured on each rank's own clock.
TimeReport report(const std::vector<RankTimes>& ranks, const Where& where);

}  // namespace who_waits
