#include "step_times.hpp"

#include <multinode/median.hpp>
#include <multinode/report.hpp>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <numeric>
#include <span>

namespace ddp {

void Breakdown::add(const StepTimes& step) {
  using Milliseconds = std::chrono::duration<float, std::milli>;
  auto& phases = steps_.emplace_back();
  for (std::size_t i = 0; i < phases.size(); ++i) phases[i] = Milliseconds(step.at[i + 1] - step.at[i]).count();
}

std::vector<Breakdown::Line> Breakdown::over_ranks(multinode::Communicator& communicator) const {
  constexpr std::size_t phases = StepTimes::names.size();
  std::vector<Line> lines;
  for (std::size_t i = 0; i <= phases; ++i) {
    std::vector<double> times;
    for (const auto& step : steps_)
      times.push_back(i < phases ? step[i] : std::accumulate(step.begin(), step.end(), 0.0));
    double sum = multinode::median(std::move(times)), lowest = sum, highest = sum;
    communicator.all_reduce(std::span(&sum, 1));
    communicator.all_reduce(std::span(&lowest, 1), multinode::Reduction::min);
    communicator.all_reduce(std::span(&highest, 1), multinode::Reduction::max);
    lines.push_back({i < phases ? StepTimes::names[i] : "step", sum / communicator.size(), lowest, highest});
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
