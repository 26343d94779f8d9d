// verdict.hpp: what results come to. Never better than what they hold.
#pragma once

#include "results.hpp"

#include <string>

namespace image_check {

enum class Outcome { pass, fail, could_not_test, incomplete };

struct Verdict {
  Outcome outcome;
  std::string word;  // PASS, FAIL, COULD NOT TEST, INCOMPLETE
  std::string why;   // a few words
};
Verdict verdict(const Results& results);

bool is_failure(Status status);  // fail, timeout, flaky

Summary counted(const std::vector<CheckResult>& checks);  // its counts alone

}  // namespace image_check
