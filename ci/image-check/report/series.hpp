// series.hpp: samples put together, and their noise.
#pragma once

#include "results.hpp"
#include "statistics.hpp"

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace image_check {

// Of one metric, band and node: the median over the launches (of a launch, the median of its values), and the least
// and most of all values.
struct Spread {
  double median = 0, least = 0, most = 0;
  int values = 0;
};

std::optional<Spread> spread(const std::vector<double>& values);  // nothing: there are none

using Bands = std::map<double, Spread>;  // band_bytes, or -1
struct Series {
  std::string check, metric, unit, better, node;
  Bands bands;
};
std::vector<Series> series_of(const std::vector<Sample>& samples);  // in the order of their first samples

bool is_pair(const std::string& node);  // "A - B"

std::string number(double value);                                // four digits
std::string percent(double share);                               // "+3.2 %", "-40 %"
std::string in_words(const Spread& spread);                      // "12.3 (11.9 to 12.6, n = 3)"
double change(const Spread& a, const Spread& b);                 // of b's median, as a share of a's
std::optional<double> worse_from(const Comparison& comparison);  // the value beyond which B is worse than its limit

}  // namespace image_check
