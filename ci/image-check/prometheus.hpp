// prometheus.hpp: results for Prometheus.
#pragma once

#include "results.hpp"

#include <string>

namespace image_check {

// Metrics in Prometheus's text format, as node_exporter's textfile collector reads it: image_check_passed of each check
// that ran (1 or 0), image_check_value of each metric (the median over launches), image_check_exit_status,
// image_check_end_time_seconds.
std::string prometheus_text(const Results& results);

}  // namespace image_check
