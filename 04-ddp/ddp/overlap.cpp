#include "overlap.hpp"

#include "step_times.hpp"

#include <multinode/median.hpp>
#include <multinode/report.hpp>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

namespace ddp {

double Overlap::hidden(std::size_t step) const { return 1 - (times[step].median - times[2].median) / times[3].median; }

double Overlap::over_longer() const { return times[0].median / std::max(times[2].median, times[3].median); }

Overlap measure_overlap(multinode::Communicator& communicator, const OverlapModes& modes, std::size_t rounds) {
  const std::array all = {&modes.overlapped, &modes.serial, &modes.compute, &modes.communication};
  std::array<std::vector<double>, all.size()> samples;
  for (std::size_t round = 0; round <= rounds; ++round) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::size_t mode = round % 2 ? i : all.size() - 1 - i;
      communicator.barrier();
      const auto begin = std::chrono::steady_clock::now();
      (*all[mode])();
      const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
      if (round > 0) samples[mode].push_back(time.count());
    }
  }
  Overlap overlap;
  for (std::size_t mode = 0; mode < all.size(); ++mode) {
    std::vector<double>& slowest = samples[mode];
    communicator.all_reduce(std::span(slowest), multinode::Reduction::max);
    const auto [lowest, highest] = std::minmax_element(slowest.begin(), slowest.end());
    overlap.times[mode] = {multinode::median(slowest), *lowest, *highest};
  }
  return overlap;
}

void print(std::ostream& out, const Overlap& overlap) {
  multinode::Table table({"step", "ms (median)", "lowest", "highest", "communication hidden"});
  for (std::size_t i = 0; i < Overlap::names.size(); ++i) {
    const Overlap::Seconds& time = overlap.times[i];
    table.add({Overlap::names[i], fmt::format("{:.1f}", 1e3 * time.median), fmt::format("{:.1f}", 1e3 * time.lowest),
               fmt::format("{:.1f}", 1e3 * time.highest), i < 2 ? fmt::format("{:.3f}", overlap.hidden(i)) : "-"});
  }
  table.print(out);
  out << fmt::format("overlapped step = {:.3f} x the longer of computation and communication\n", overlap.over_longer());
}

nlohmann::json json_of(const Overlap& overlap) {
  nlohmann::json json;
  for (std::size_t i = 0; i < Overlap::names.size(); ++i)
    json[Overlap::names[i]] = {{"median_s", overlap.times[i].median},
                               {"lowest_s", overlap.times[i].lowest},
                               {"highest_s", overlap.times[i].highest}};
  json["hidden"] = overlap.hidden(0);
  json["hidden_serial"] = overlap.hidden(1);
  json["over_longer"] = overlap.over_longer();
  return json;
}

}  // namespace ddp
