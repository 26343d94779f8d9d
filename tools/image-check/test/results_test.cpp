// results.jsonl: written whole, read again, also when the run was killed.
#include "results.hpp"

#include <multinode/base/check.hpp>
#include <test/support/says.hpp>
#include <test/support/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <sys/stat.h>

#include <regex>

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
  results.comparisons = {{"m", -1, "", "", "", {3}, {4}, {}, {1, 2}, 0, "worse"}};
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
  const auto old = std::regex_replace(text, std::regex(R"("other_work":-1.0,|\n$)"), "");
  folder.write("old/results.jsonl", old);
  EXPECT_EQ(written(folder / "old again", read_results(folder / "old")), text);
  std::filesystem::permissions(folder.path(), std::filesystem::perms(0777));
  EXPECT_THROW(ResultsWriter(folder.path()), multinode::UsageError);  // others could exchange its folders
}

std::string error_of(const std::filesystem::path& folder) {
  return multinode::testing::error_text<multinode::UsageError>([&] { read_results(folder); });
}

TEST(Results, WhatAStrangerLeavesInTheirPlaceIsNotFollowed) {
  const TemporaryFolder folder;
  for (const char* name : {"pipe", "link", "all/good"}) std::filesystem::create_directories(folder / name);
  written(folder / "all/good", {.head = head()});
  ASSERT_EQ(mkfifo((folder / "pipe/results.jsonl").c_str(), 0600), 0);
  std::filesystem::create_symlink("../all/good/results.jsonl", folder / "link/results.jsonl");
  std::filesystem::create_symlink("good", folder / "all/latest");
  EXPECT_SAYS(error_of(folder / "pipe"), "pipe/results.jsonl: it is not a regular file; name the folder that run -o");
  EXPECT_SAYS(error_of(folder / "link"), "link/results.jsonl: it is a link, and links are not followed here");
  EXPECT_EQ(sessions_in(folder / "pipe").size(), 1U);  // reading it says what is wrong
  EXPECT_EQ(sessions_in(folder / "all").size(), 1U);
  std::filesystem::create_directory(folder / "large");
  folder.write("large/results.jsonl", "");
  std::filesystem::resize_file(folder / "large/results.jsonl", 100'000'000'000);
  EXPECT_SAYS(error_of(folder / "large"), "100000000000 bytes, and at most 134217728 are read");
}

TEST(Results, ALineThatMakesNoSenseIsNamed) {
  const TemporaryFolder folder;
  const std::string good = written(folder.path(), {.head = head()}), first = good.substr(0, good.find('\n'));
  const auto number = [](const std::string& name, const std::string& value) {
    return R"({"check":{")" + name + "\":" + value + "}}";
  };
  for (const auto& [line, says] :
       {std::pair(number("x", std::string(300'000, '[')), "nested more than 64 deep"),
        {number("x", std::string(5 << 20, ' ') + "1"), "it is longer than 4 MiB"},
        {number("launch", "1e300"), "launch cannot be 1e+300"},
        {number("launch", "-1"), "launch cannot be -1"},
        {number("seconds", "1e30"), "seconds cannot be 1e+30"},
        {number("seconds", "1e999"), "number overflow"},
        {number("check", "7"), "type must be string"},
        {std::string(1000, '\0'), "parse error"},
        {R"({"\u001b[2J":{}})", "unknown kind '?[2J'"},
        {R"({"comparison":{"metric":"m","band_bytes":1,"unit":"","better":"more","node":"","a":[],"b":[1],)"
         R"("again_a":[],"again_b":[],"limit":0,"visible":0,"verdict":"worse"}})",
         "a comparison has no values"}}) {
    folder.write("results.jsonl", first + "\n" + line);
    const std::string error = error_of(folder.path());
    EXPECT_SAYS(error, "results.jsonl, line 2: ");
    EXPECT_SAYS(error, says);
    EXPECT_LT(error.size(), 700U);
  }
  Head empty = head();
  empty.nodes.clear();
  written(folder.path(), {.head = empty});
  EXPECT_SAYS(error_of(folder.path()), "line 1: the run has no nodes");
}

// Files that were edited, or cut off: image.adoption.files.

// One run at a time, and no pass of an earlier one: image.adoption.files.

}  // namespace image_check::results_test
