// Two results against each other.
#include "commands.hpp"

#include <multinode/base/options.hpp>
#include <multinode/base/text.hpp>
#include <test/support/program_test.hpp>
#include <test/support/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <sstream>

namespace image_check::compare_test {

using multinode::testing::TemporaryFolder;
using multinode::testing::text_of;

class CompareResults : public ::testing::Test {
 protected:
  // Results of three launches on nodes of these names, whose last node has so many GPUs and such a bandwidth.
  std::string results(const std::string& name, const std::vector<std::string>& nodes, const std::string& gpus,
                      double bandwidth, const std::string& cpu = "x") {
    std::vector<Sample> samples;
    for (int launch = 0; launch < 3; ++launch)
      samples.push_back({"node", "memory_bandwidth", -1, "", "more", bandwidth, launch, nodes.back()});
    return session(name, nodes, {{"gpus", gpus}}, samples, cpu);
  }
  std::string session(const std::string& name, const std::vector<std::string>& nodes,
                      const std::map<std::string, std::string>& facts, const std::vector<Sample>& samples,
                      const std::string& cpu = "x", const std::vector<CheckResult>& checks = {}) {
    ResultsWriter writer(folder_ / name);
    Head head;
    head.command = "image-check run";
    head.nodes = nodes;
    head.machine = {{"CPU", cpu}};
    if (change_) change_(head);
    writer.write(head);
    for (const auto& [fact, value] : facts) writer.write(Fact{"node", fact, value, nodes.back()});
    for (const auto& sample : samples) writer.write(sample);
    Summary summary;
    for (const auto& check : checks) writer.write(check), count(summary, check.status);
    if (!checks.empty()) image_check::conclude(summary);
    writer.write(summary);
    return folder_ / name;
  }
  CompareOptions options_of(const std::string& a, const std::string& b) {
    CompareOptions options;
    options.a = a;
    options.b = b;
    options.folder = folder_ / "verdict";
    return options;
  }
  static Results verdict_of(const CompareOptions& options, std::ostream& out) {
    Results results = compare(options, out);
    results.lock.reset();  // as after the reports
    return results;
  }
  Results compared(const std::string& a, const std::string& b) {
    auto options = options_of(a, b);
    options.again_a = program("again-a", "cp -r '" + a + "/.' $2");
    options.again_b = program("again-b", "cp -r '" + b + "/.' $2");
    std::ostringstream out;
    return verdict_of(options, out);
  }
  // B is half as fast, and this shell command is image-check in B: what it is given, it finds in "$@".
  Results compared_again(const std::string& script, double timeout = 60) {
    for (const char* session : {"a/1", "a/2", "a/3"}) results(session, {"n"}, "8", 10);
    auto options = options_of(folder_ / "a", results("b", {"n"}, "8", 5));
    options.timeout = timeout;
    options.again_b = program("image-check-b", script);
    std::ostringstream out;
    return verdict_of(options, out);
  }
  std::string program(const std::string& name, const std::string& script) {
    folder_.write(name, "#!/bin/sh\n" + script);
    std::filesystem::permissions(folder_ / name, std::filesystem::perms::owner_all);
    return folder_ / name;
  }
  TemporaryFolder folder_;
  std::function<void(Head&)> change_;  // of all results that are written
};

TEST_F(CompareResults, NodesOfOtherNamesAreComparedOneByOne) {
  const auto a = results("a", {"n1", "n2"}, "8", 10);
  EXPECT_EQ(compared(a, results("same", {"m1", "m2"}, "8", 10)).summary.exit_status, 0);
  const auto fewer = compared(a, results("fewer", {"m1", "m2"}, "7", 10));
  EXPECT_EQ(fewer.summary.exit_status, 1);
  EXPECT_EQ(fewer.checks.at(0).findings.at(0).text, "m2: gpus is '7', and was '8'");
  const auto slower = compared(a, results("slower", {"m1", "m2"}, "8", 5));
  EXPECT_EQ(slower.summary.exit_status, 1);
  ASSERT_EQ(slower.comparisons.size(), 1U);
  EXPECT_EQ(slower.comparisons[0].verdict, "worse");
  EXPECT_EQ(slower.comparisons[0].again_b.size(), 3U);
}

// As with --only in B: facts of checks that B did not run are not missing.
TEST_F(CompareResults, WhatASmallerSuiteDoesNotAskIsNotRun) {
  const std::string a = results("a", {"n"}, "8", 10), b = folder_ / "b";
  {
    ResultsWriter writer(b);
    writer.write(read_results(a).head);
    writer.write(CheckResult{.check = "wiring", .status = Status::pass});
    writer.write(Summary{.passed = 1});
  }
  const auto verdict = compared(a, b);
  EXPECT_EQ(verdict.summary.failed, 0);
  EXPECT_EQ(verdict.summary.exit_status, 3);
  ASSERT_FALSE(verdict.checks.empty());
  EXPECT_EQ(verdict.checks[0].check, "node: facts");
  EXPECT_EQ(verdict.checks[0].reason, "B was not asked: its suite is smaller");
}

TEST_F(CompareResults, ASuspectWhoseFreshLaunchesCrashOrHangFails) {
  for (const char* crash : {"kill -SEGV $$", "exit 3", "exit 1"}) {
    const auto verdict = compared_again(crash);
    EXPECT_EQ(verdict.summary.exit_status, 1) << crash;
    ASSERT_EQ(verdict.checks.size(), 1U);
    EXPECT_SAYS(verdict.checks[0].findings.at(0).text, "only 0 of 3 fresh launches of B could measure it again");
  }
  EXPECT_EQ(compared_again("sleep 1000", 0.2).summary.exit_status, 1);
  EXPECT_THROW(compared_again("exit 127"), multinode::UsageError);  // not what --again-b is to be
}

// What others put into a folder of results is executed neither without --again-b nor with it.
TEST_F(CompareResults, AHostileHeadExecutesNothing) {
  const auto marker = folder_ / "executed";
  change_ = [&](Head& head) {
    head.launcher = program("hostile/mpirun", "echo $0 >>" + marker.string());
    head.nodes = {"-oProxyCommand=touch " + marker.string(), "n"};
  };
  for (const char* session : {"a/1", "a/2", "a/3"}) results(session, {"n"}, "8", 10);
  auto options = options_of(folder_ / "a", results("b", {"n"}, "8", 5));
  std::ostringstream out;
  const auto unjudged = verdict_of(options, out);
  EXPECT_EQ(unjudged.summary.exit_status, 3);
  EXPECT_SAYS(out.str(), "say with --again-b how to measure it again");
  EXPECT_FALSE(std::filesystem::exists(marker)) << text_of(marker);

  options.again_b = program("image-check-b", "printf '%s\\n' \"$@\" >>" + (folder_ / "said").string() + "; exit 1");
  EXPECT_EQ(verdict_of(options, out).summary.exit_status, 1);
  EXPECT_SAYS(text_of(folder_ / "said"), "--only=node\n");
  EXPECT_EQ(text_of(folder_ / "said").find("hostile"), std::string::npos) << text_of(folder_ / "said");
  EXPECT_EQ(text_of(folder_ / "said").find("-oProxy"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(marker)) << text_of(marker);
}

TEST_F(CompareResults, TextOfOthersDrivesNoTerminalAndForgesNoLine) {
  const std::string evil =
      "\x1b]0;title\a \xc2\x9b"
      "2J\r\nPASS";
  results("a", {"n"}, "8", 10);
  change_ = [&](Head& head) { head.settings = {{evil, evil}}, head.versions = {{evil, evil}}, head.nodes = {evil}; };
  results("b", {evil}, evil, 5);
  std::ostringstream out;
  auto options = options_of(folder_ / "a", folder_ / "b");
  options.again_a = options.again_b = "exit 1;";
  EXPECT_THROW(verdict_of(options, out), std::runtime_error);
  options.again_a.clear(), options.again_b.clear();
  for (const char* session : {"two/1", "two/2"}) results(session, {session}, "8", 10);
  options.a = folder_ / "two";
  EXPECT_EQ(verdict_of(options, out).summary.exit_status, 1) << out.str();
  EXPECT_SAYS(out.str(), "setting ?]0;title? ??2J? PASS: absent -> ?]0;title? ??2J? PASS\n");
  EXPECT_EQ(out.str(), multinode::without_controls(out.str()));
  EXPECT_EQ(out.str().find("\nPASS"), std::string::npos) << out.str();
}

TEST(Facts, ThatFollowMemoryMayDifferALittleAndALimitMayGrow) {
  EXPECT_TRUE(good_fact("processes", "96365", "96301"));
  EXPECT_TRUE(good_fact("shm_bytes", "12638255104.0", "12634124288.0"));
  EXPECT_FALSE(good_fact("shm_bytes", "12638255104.0", "6319127552.0"));
  const std::string gpu = "NVIDIA H100 79.11 GiB", port = "mlx5_0/1 ACTIVE 400 Gb/sec";
  EXPECT_TRUE(good_fact("gpus", gpu, "NVIDIA H100 79.18 GiB"));
  EXPECT_FALSE(good_fact("gpus", gpu, "NVIDIA H100 39.6 GiB"));
  EXPECT_FALSE(good_fact("gpus", gpu + ", " + gpu, gpu));
  EXPECT_FALSE(good_fact("rdma_ports", port, "mlx5_0/1 ACTIVE 396 Gb/sec"));
  EXPECT_TRUE(good_fact("open_files", "1024", "65536"));
  EXPECT_FALSE(good_fact("open_files", "65536", "1024"));
  EXPECT_TRUE(good_fact("memlock", "8388608", "unlimited"));
  EXPECT_FALSE(good_fact("memlock", "unlimited", "8388608"));
}

// The README's least baseline, on a machine with noise: pi takes five times as long in B, and the memory a tenth of its
// bandwidth. What the noise hides does not pass, whatever else passes.
TEST_F(CompareResults, WhatNoMetricCanSeeIsNoPass) {
  const auto measured = [&](const std::string& name, double pi, double memory, double rate) {
    return session(name, {"n"}, {{"memory", "16"}},
                   {{"pi", "pi", -1, "s", "less", pi, 0, ""},
                    {"node", "memory_bandwidth", -1, "GB/s", "more", memory, 0, "n"},
                    {"gloo", "rate", -1, "GB/s", "more", rate, 0, ""}});
  };
  measured("a/1", 0.05, 10, 3), measured("a/2", 0.08, 14, 3.01), measured("a/3", 0.06, 8, 2.99);
  auto options = options_of(folder_ / "a", measured("slow", 0.3, 1, 3));
  std::ostringstream out;
  auto verdict = verdict_of(options, out);
  EXPECT_EQ(verdict.summary.exit_status, 3);
  EXPECT_EQ(verdict.summary.passed, 1);  // the rate; not the size of the memory
  EXPECT_EQ(verdict.summary.not_run, 2);
  EXPECT_SAYS(out.str(),
              "pi: no evidence: 0.3 s, and was 0.06: 400 % worse; too noisy to see any loss; worse than all of A");
  options.b = measured("same", 0.06, 9, 3);
  verdict = verdict_of(options, out);
  EXPECT_EQ(verdict.summary.exit_status, 3);
  EXPECT_SAYS(verdict.checks.front().reason, "no metric of 'node' sees a loss of 30 %");
}

// On a busy machine a check is flaky, left out, or finds its time used up: nothing about B follows from that. Another
// reason for which A's check does not run in B is one about B.
TEST_F(CompareResults, WhatABusyNodeDoesNotRunDecidesNothing) {
  const std::vector<Sample> samples{{"node", "memory_bandwidth", -1, "", "more", 10, 0, "n"}};
  const auto a = session("before", {"n"}, {}, samples, "x", {{.check = "node", .status = Status::pass}});
  const auto status_with = [&](Status status, const std::string& reason) {
    const CheckResult result{.check = "node", .status = status, .reason = reason};
    return compared(a, session("b", {"n"}, {}, {}, "x", {result})).summary.exit_status;
  };
  EXPECT_EQ(status_with(Status::flaky, ""), 3);
  EXPECT_EQ(status_with(Status::skip, left_out_busy), 3);
  EXPECT_EQ(status_with(Status::not_run, "the budget of 60 s is used up"), 3);
  EXPECT_EQ(status_with(Status::skip, "no GPU"), 1);
  const auto left_out =
      session("left", {"n"}, {}, {}, "x", {{.check = "node", .status = Status::skip, .reason = left_out_busy}});
  EXPECT_EQ(compared_again("cp -r '" + left_out + "/.' $2").summary.exit_status, 3);
}

// A loss is no fault of B if B's node was busier than those of A were.
TEST_F(CompareResults, ABusierNodeIsNotAccused) {
  const auto with = [&](const std::string& name, double bandwidth, double taken) {
    return session(name, {"n"}, {}, {{"node", "memory_bandwidth", -1, "", "more", bandwidth, 0, "n", taken}});
  };
  const auto status_of = [&](double bandwidth, double taken, double again) {
    auto options = options_of(folder_ / "a", with("b", bandwidth, taken));
    options.again_b = program("again-b", "cp -r '" + with("again", bandwidth, again) + "/.' $2");
    std::ostringstream out;
    const auto status = verdict_of(options, out).summary.exit_status;
    EXPECT_EQ(status == 3, out.str().find("not judged: B ran beside other work that took 60 % of the CPU time, and A "
                                          "20 %: run B again on a quiet node") != std::string::npos);
    return status;
  };
  for (const char* name : {"a/1", "a/2", "a/3"}) with(name, 10, 0.2);
  EXPECT_EQ(status_of(5, 0.6, 0.6), 3);
  EXPECT_EQ(status_of(5, 0.6, 0.2), 1);  // the fresh launches ran as quietly as A
  EXPECT_EQ(status_of(2, 0.6, 0.6), 1);  // more than other work explains
  EXPECT_EQ(status_of(5, -1, -1), 1);    // results of an older image-check
  EXPECT_EQ(status_of(10, 0.6, 0.6), 0);
}

// 26 metrics that see nothing have one reason.
TEST_F(CompareResults, OneReasonIsSaidOnce) {
  std::ostringstream out;
  std::vector<Sample> samples;
  for (int size = 8; size <= 4096; size *= 2) samples.push_back({"gloo", "rate", 1.0 * size, "GB/s", "more", 3, 0, ""});
  const auto a = session("a", {"n"}, {}, samples), b = session("b", {"n"}, {}, samples);
  EXPECT_EQ(verdict_of(options_of(a, b), out).summary.not_run, 10);
  EXPECT_EQ(multinode::testing::occurrences(out.str(), "not tested: gloo\n"), 1U) << out.str();
  EXPECT_EQ(multinode::testing::occurrences(out.str(), "not run"), 0U) << out.str();
}

// Equal nodes differ by 1 %, and the sessions of one node do not show it.
TEST_F(CompareResults, OneNodeIsNoBaselineForAnother) {
  for (const char* session : {"a/1", "a/2", "a/3"}) results(session, {"n1"}, "8", 10);
  auto options = options_of(folder_ / "a", results("b", {"n2"}, "8", 9.9));
  std::ostringstream out;
  const auto why = [&] {
    return multinode::testing::error_text<multinode::UsageError>([&] { verdict_of(options, out); });
  };
  EXPECT_SAYS(why(), "A was measured on n1 alone, and B on n2: how much nodes differ is not known");
  // Of several nodes, the baseline knows how much they differ.
  int number = 0;
  for (const double bandwidth : {10.0, 10.2, 9.9, 10.1})
    results("several/" + std::to_string(++number), {"n" + std::to_string(number)}, "8", bandwidth);
  options.a = folder_ / "several";
  options.b = results("b", {"m"}, "8", 9.9);
  EXPECT_EQ(verdict_of(options, out).summary.exit_status, 0);
}

TEST_F(CompareResults, SessionsOfOneBaselineAreOfOneImage) {
  results("a/1", {"n"}, "8", 10);
  results("a/2", {"n"}, "8", 10, "y");
  EXPECT_THROW(compared(folder_ / "a", results("b", {"n"}, "8", 10)), multinode::UsageError);
}

}  // namespace image_check::compare_test
