// plot.hpp: the results as a picture.
#pragma once

#include "results.hpp"

#include <span>
#include <string>

namespace perf {

// An SVG document: above, bus bandwidth over size; below, the median time over size; a line for each combination of the
// other variables (type, reduction, root, in place). Throws UsageError for a file that cannot be written.
void write_plot(const std::string& path, const std::string& title, std::span<const Result> results);

}  // namespace perf
