// results.jsonl: written whole, read again, also when the run was killed.
#include "results.hpp"

#include <test/support/temporary_folder.hpp>

#include <gtest/gtest.h>

namespace image_check::results_test {

using multinode::testing::TemporaryFolder;
using multinode::testing::text_of;

Head head() {
  Head head;
  head.suite = "smoke";
  head.command = "image-check run";
  head.nodes = {"a", "b"};
  head.machine = {{"CPU", "x"}};
  return head;
}

// Writes them all, and returns the text of the file.
std::string written(const std::filesystem::path& folder, const Results& results) {
  ResultsWriter writer(folder);
  writer.write(results.head);
  for (const auto& check : results.checks) writer.write(check);
  for (const auto& sample : results.samples) writer.write(sample);
  for (const auto& fact : results.facts) writer.write(fact);
  for (const auto& difference : results.differences) writer.write(difference);
  for (const auto& comparison : results.comparisons) writer.write(comparison);
  writer.write(results.summary);
  return text_of(folder / "results.jsonl");
}

TEST(Results, WhatIsWrittenIsRead) {
  const TemporaryFolder folder;
  Results results;
  results.head = head();
  results.checks = {{.check = "wiring",
                     .status = Status::flaky,
                     .action = Action::reboot,
                     .findings = {{"deadline", "said \x01 and \xff and \"", "a"}}}};
  results.samples = {{.metric = "m", .band_bytes = 8, .better = "more", .value = 1.25}};
  results.facts = {{"node", "gpus", "8", "a"}};
  results.differences = {{"version", "MPI", "4", ""}};
  results.comparisons = {{"m", -1, "", "", "", {}, {}, {}, {1, 2}, 0, "worse"}};
  results.summary = {0, 0, 1, 0, 0, 6.5, 1};
  const auto text = written(folder / "new", results);
  const auto read = read_results(folder / "new");
  EXPECT_TRUE(read.complete);
  EXPECT_EQ(read.checks.at(0).status, Status::flaky);
  EXPECT_EQ(read.checks.at(0).action, Action::reboot);
  EXPECT_EQ(read.checks.at(0).findings.at(0).text.substr(0, 6), "said \x01");
  EXPECT_EQ(read.comparisons.at(0).again_b, (std::vector<double>{1, 2}));
  EXPECT_EQ(read.summary.flaky, 1);
  EXPECT_EQ(written(folder / "again", read), text);
  std::filesystem::permissions(folder.path(), std::filesystem::perms(0777));
  EXPECT_THROW(ResultsWriter(folder.path()), multinode::UsageError);  // others could exchange its folders
}

// Files that were edited, or cut off: image.adoption.files.

// One run at a time, and no pass of an earlier one: image.adoption.files.

}  // namespace image_check::results_test
