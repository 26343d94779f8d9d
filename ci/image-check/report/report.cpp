#include "report.hpp"

#include "prometheus.hpp"

namespace image_check {

void write_reports(const std::filesystem::path& folder, const Results& results, const Results* baseline) {
  write_whole(folder / "report.html", html_page(results, baseline));
  write_whole(folder / "junit.xml", junit_xml(results));
  write_whole(folder / "metrics.prom", prometheus_text(results));
}

}  // namespace image_check
