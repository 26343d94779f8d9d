#include "series.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <tuple>

namespace image_check {

std::optional<Spread> spread(const std::vector<double>& values) {
  if (values.empty()) return {};
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return Spread{median(values), *least, *most, static_cast<int>(values.size())};
}

std::vector<Series> series_of(const std::vector<Sample>& samples) {
  std::vector<Series> all;
  std::map<std::tuple<std::string, std::string, std::string>, std::size_t> known;
  std::vector<std::map<double, std::map<int, std::vector<double>>>> values;
  for (const Sample& sample : samples) {
    if (!std::isfinite(sample.value) || !std::isfinite(sample.band_bytes)) continue;
    const auto [at, is_new] = known.try_emplace({sample.metric, sample.node, sample.unit}, all.size());
    if (is_new) {
      all.push_back({sample.check, sample.metric, sample.unit, sample.better, sample.node, {}});
      values.emplace_back();
    }
    values[at->second][sample.band_bytes][sample.launch].push_back(sample.value);
  }
  for (std::size_t i = 0; i < all.size(); ++i)
    for (const auto& [band, launches] : values[i]) {
      std::vector<double> medians, flat;
      for (const auto& [launch, of_launch] : launches) {
        medians.push_back(median(of_launch));
        flat.insert(flat.end(), of_launch.begin(), of_launch.end());
      }
      Spread of_band = *spread(flat);
      of_band.median = median(medians);
      all[i].bands[band] = of_band;
    }
  return all;
}

bool is_pair(const std::string& node) { return node.find(" - ") != std::string::npos; }

std::string number(double value) {
  return std::abs(value) >= 1000 && std::abs(value) < 1e9 ? std::to_string(std::llround(value))
                                                          : fmt::format("{:.4g}", value);
}

std::string percent(double share) {
  if (!std::isfinite(share)) return "from zero";
  if (std::abs(share) < 0.0005) return "0 %";
  const double hundredths = share * 100;
  return fmt::format("{:+.{}f} %", hundredths, std::abs(hundredths) >= 9.95 ? 0 : 1);
}

std::string in_words(const Spread& spread) {
  if (spread.values == 1) return number(spread.median);
  return number(spread.median) + " (" + number(spread.least) + " to " + number(spread.most) +
         ", n = " + std::to_string(spread.values) + ")";
}

double change(const Spread& a, const Spread& b) {
  if (a.median == b.median) return 0;
  return (b.median - a.median) / std::abs(a.median);
}

std::optional<double> worse_from(const Comparison& comparison) {
  if (comparison.a.empty() || comparison.limit <= 0) return {};
  return median(comparison.a) * std::exp(comparison.better == "less" ? comparison.limit : -comparison.limit);
}

}  // namespace image_check
