// results.jsonl: written whole, read again, also when the run was killed.
#include "results.hpp"

#include <multinode/options.hpp>
#include <testing/temporary_folder.hpp>

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

TEST(Results, WhatIsWrittenIsRead) {
  const TemporaryFolder folder;
  CheckResult check;
  check.check = "wiring";
  check.status = Status::flaky;
  check.action = Action::reboot;
  check.findings = {{"deadline", "said \x01 and \xff and \"", "a"}};
  Sample sample;
  sample.metric = "m";
  sample.band_bytes = 8;
  sample.value = 1.25;
  Comparison comparison;
  comparison.metric = "m";
  comparison.again_b = {1, 2};
  comparison.verdict = "worse";
  {
    ResultsWriter writer(folder / "new");
    writer.write(head());
    writer.write(check);
    writer.write(sample);
    writer.write(Fact{"node", "gpus", "8", "a"});
    writer.write(Difference{"version", "MPI", "4", ""});
    writer.write(comparison);
    writer.write(Summary{1, 2, 3, 4, 5, 6.5, 1});
  }
  const auto results = read_results(folder / "new");
  EXPECT_TRUE(results.complete);
  EXPECT_EQ(results.head.nodes, head().nodes);
  EXPECT_EQ(results.head.machine, head().machine);
  ASSERT_EQ(results.checks.size(), 1U);
  EXPECT_EQ(results.checks[0].status, Status::flaky);
  EXPECT_EQ(results.checks[0].action, Action::reboot);
  EXPECT_EQ(results.checks[0].findings.at(0).text.substr(0, 6), "said \x01");
  ASSERT_EQ(results.samples.size(), 1U);
  EXPECT_EQ(results.samples[0].value, 1.25);
  EXPECT_EQ(results.facts.at(0).value, "8");
  EXPECT_EQ(results.differences.at(0).a, "4");
  EXPECT_EQ(results.comparisons.at(0).again_b, (std::vector<double>{1, 2}));
  EXPECT_EQ(results.summary.not_run, 5);
  EXPECT_EQ(results.summary.exit_status, 1);
}

TEST(Results, OfAKilledRunAreIncomplete) {
  const TemporaryFolder folder;
  ResultsWriter(folder.path()).write(head());
  std::ofstream(folder / "results.jsonl", std::ios::app) << "{\"check\": {\"check\": \"wi";
  const auto results = read_results(folder.path());
  EXPECT_FALSE(results.complete);
  EXPECT_TRUE(results.checks.empty());
}

TEST(Results, ThatAreNoneAreNamed) {
  const TemporaryFolder folder;
  const auto why = [&](const std::string& text) -> std::string {
    std::ofstream(folder / "results.jsonl") << text;
    try {
      read_results(folder.path());
    } catch (const multinode::UsageError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(why("").find("is empty"), std::string::npos);
  EXPECT_NE(why("nonsense\n").find("results.jsonl, line 1: "), std::string::npos);
  EXPECT_NE(why("{\"check\": {}}\n").find("the first line is not a head"), std::string::npos);
  ResultsWriter(folder.path()).write(head());
  const auto first = text_of(folder / "results.jsonl");
  EXPECT_NE(why(first + "{\"sample\": {}}\n").find("line 2: "), std::string::npos);
  EXPECT_NE(why(first + "{\"unheard\": {}}\n").find("unknown kind 'unheard'"), std::string::npos);
  for (const char* none : {"{}\n", "[]\n", "3\n"})
    EXPECT_NE(why(first + none).find("line 2: it is not an object with a member"), std::string::npos) << none;
  EXPECT_THROW(read_results(folder / "nowhere"), multinode::UsageError);
}

TEST(Results, FullDiskIsSaid) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("/dev/full", folder / "results.jsonl");
  ResultsWriter writer(folder.path());
  EXPECT_THROW(writer.write(head()), std::runtime_error);
  std::ofstream(folder / "file") << "";
  EXPECT_THROW(ResultsWriter(folder / "file"), multinode::UsageError);
}

TEST(BandName, InUnitsOf1024) {
  EXPECT_EQ(band_name(8), "8 B");
  EXPECT_EQ(band_name(4096), "4 KiB");
  EXPECT_EQ(band_name(1 << 20), "1 MiB");
  EXPECT_EQ(band_name(1.5 * (1 << 30)), "1.5 GiB");
}

}  // namespace image_check::results_test
