#include "verdict.hpp"

#include <multinode/text.hpp>

#include <algorithm>

namespace image_check {

namespace {

// What a run with exit status 0 cannot have, or "".
std::string contradiction(const Results& results, const Summary& counts, int worse) {
  if (counts.failed + counts.flaky > 0) return "it holds checks that failed";
  if (counts.not_run > 0) return "it holds checks that did not run";
  if (worse > 0) return "it holds metrics that are worse";
  if (counts.passed == 0 && results.comparisons.empty()) return "nothing was checked";
  if (results.summary.passed > counts.passed)
    return "its summary counts " + std::to_string(results.summary.passed) + " passed checks, and it holds " +
           std::to_string(counts.passed);
  return "";
}

}  // namespace

bool is_failure(Status status) {
  return status == Status::fail || status == Status::timeout || status == Status::flaky;
}

Summary counted(const std::vector<CheckResult>& checks) {
  Summary counts;
  for (const auto& check : checks) count(counts, check.status);
  return counts;
}

Verdict verdict(const Results& results) {
  const Summary counts = counted(results.checks);
  std::vector<std::string> said;
  const auto say = [&](long count, const char* what) {
    if (count > 0) said.push_back(std::to_string(count) + " " + what);
  };
  const auto verdicts = [&](const char* which) {
    return static_cast<int>(std::count_if(results.comparisons.begin(), results.comparisons.end(),
                                          [&](const auto& comparison) { return comparison.verdict == which; }));
  };
  const int worse = verdicts("worse");
  say(counts.failed, "failed");
  say(counts.flaky, "flaky");
  say(counts.not_run, "not run");
  say(counts.passed, "passed");
  say(counts.skipped, "skipped");
  say(verdicts("worse"), "worse than the baseline");
  say(verdicts("flaky"), "suspect, then not");
  say(verdicts("blind"), "too noisy to be evidence");
  say(verdicts("better"), "better without an explanation");
  if (results.checks.empty()) say(verdicts("same"), "as in the baseline");
  const std::string all = multinode::join(said);

  if (!results.complete)
    return {Outcome::incomplete, "INCOMPLETE", "the run did not come to its end" + (all.empty() ? "" : "; " + all)};
  switch (results.summary.exit_status) {
    case 0: {
      const std::string wrong = contradiction(results, counts, worse);
      if (wrong.empty()) return {Outcome::pass, "PASS", all};
      return {Outcome::fail, "FAIL",
              "the run ended with exit status 0, but " + wrong + (all.empty() ? "" : ": " + all)};
    }
    case 3:
      return {Outcome::could_not_test, "COULD NOT TEST", all};
    default:
      return {Outcome::fail, "FAIL",
              counts.failed + counts.flaky + worse > 0
                  ? all
                  : "exit status " + std::to_string(results.summary.exit_status) + (all.empty() ? "" : "; " + all)};
  }
}

}  // namespace image_check
