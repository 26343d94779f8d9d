#include "step_times.hpp"

#include <multinode/median.hpp>
#include <multinode/report.hpp>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

namespace ddp {

void Breakdown::add(const StepTimes& step) {
  using Milliseconds = std::chrono::duration<float, std::milli>;
  auto& phases = steps_.emplace_back();
  for (std::size_t i = 0; i < phases.size(); ++i) phases[i] = Milliseconds(step.at[i + 1] - step.at[i]).count();
}

std::vector<Breakdown::Line> Breakdown::over_ranks(multinode::World& world) const {
  constexpr std::size_t phases = StepTimes::names.size();
  nlohmann::json mine = nlohmann::json::array();
  for (std::size_t i = 0; i <= phases && !steps_.empty(); ++i) {
    std::vector<double> times;
    for (const auto& step : steps_)
      times.push_back(i < phases ? step[i] : std::accumulate(step.begin(), step.end(), 0.0));
    mine.push_back(multinode::median(std::move(times)));
  }
  std::vector<Line> lines(phases + 1);
  const std::vector<std::string> ranks = world.gather("times of steps", mine.dump());
  for (std::size_t i = 0; i <= phases; ++i) {
    std::vector<double> medians;
    for (const std::string& rank : ranks) {
      const nlohmann::json theirs = nlohmann::json::parse(rank);
      if (theirs.empty()) return {};
      medians.push_back(theirs[i]);
    }
    const auto [lowest, highest] = std::minmax_element(medians.begin(), medians.end());
    const double sum = std::accumulate(medians.begin(), medians.end(), 0.0);
    lines[i] = {i < phases ? StepTimes::names[i] : "step", sum / static_cast<double>(medians.size()), *lowest,
                *highest};
  }
  return lines;
}

void print(std::ostream& out, const std::vector<Breakdown::Line>& lines) {
  const auto number = [](double value) { return fmt::format("{:.3f}", value); };
  multinode::Table table({"median step", "ms", "lowest rank", "highest rank", "% of step"});
  for (const Breakdown::Line& line : lines)
    table.add({line.name, number(line.mean), number(line.lowest), number(line.highest),
               std::to_string(std::lround(100 * line.mean / lines.back().mean))});
  table.print(out);
}

nlohmann::json json_of(const std::vector<Breakdown::Line>& lines) {
  nlohmann::json json = nlohmann::json::object();
  for (const Breakdown::Line& line : lines)
    json[line.name] = {{"mean_ms", line.mean}, {"lowest_ms", line.lowest}, {"highest_ms", line.highest}};
  return json;
}

}  // namespace ddp
