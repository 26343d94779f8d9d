// report.hpp: what people and CI systems read of an image check's results.
#pragma once

#include "results.hpp"

#include <filesystem>
#include <string>

namespace image_check {

// What the checks come to.
struct Verdict {
  std::string word;  // PASS, FAIL, COULD NOT TEST, INCOMPLETE
  std::string why;   // a few words
};
Verdict verdict(const Results& results);

// One HTML file that needs no network and no script. It is well-formed XML, too.
std::string html_page(const Results& results);

// JUnit XML as Jenkins' junit-10.xsd has it: a test for each check and launch, and one for the run as a whole.
std::string junit_xml(const Results& results);

// report.html, junit.xml and, for Prometheus, metrics.prom (image_check_passed of each check that ran, 1 or 0;
// image_check_value of each metric, the median over launches; image_check_exit_status; image_check_end_time_seconds)
// into `folder`, each whole or not at all. Throws multinode::UsageError for what cannot be written.
void write_reports(const std::filesystem::path& folder, const Results& results);

}  // namespace image_check
