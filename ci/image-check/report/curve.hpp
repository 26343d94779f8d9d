// curve.hpp: what was measured against what, drawn.
#pragma once

#include "series.hpp"
#include "xml.hpp"

namespace image_check {

struct Line {
  std::string name;
  Bands bands;
};

struct Mark {
  std::string words;
  bool worse;
};

// A curve over size bands on logarithmic axes, as SVG: the baseline (may be empty) and this run, each with its median
// and the range of its values; `limits` are dotted; `marked` are the bands in question, with words on each that has
// room, and a lighter shade where it is not worse.
struct Curve {
  std::string title, unit;
  Line baseline, run;
  std::map<double, double> limits;
  std::map<double, Mark> marked;
};
void draw(pugi::xml_node parent, const Curve& curve);

// A metric without size bands: every value a dot, on one line each for the baseline and this run.
struct Dots {
  std::string title, unit;
  std::string baseline_name, run_name;
  std::vector<double> baseline, run;
  std::optional<double> limit;
};
void draw(pugi::xml_node parent, const Dots& dots);

}  // namespace image_check
