// Judgements: what each detector says of a run, and what it lets pass.
#include "site.hpp"

#include <multinode/base/options.hpp>
#include <test/support/program_test.hpp>
#include <test/support/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <regex>

namespace image_check::checks_test {

using multinode::testing::TemporaryFolder;

class Judge : public ::testing::Test {
 protected:
  Judged judge_run(const Check& check, const Outcome& outcome, const std::string& output, const std::string& json) {
    std::ofstream(folder_ / "log") << output;
    const int ranks = 3 * (check.where == Where::one_each ? 1 : cluster_.processes_per_node);
    const std::string all_took_part =
        R"({"fingerprint": {"hosts": ["a", "b", "c"], "world_size": )" + std::to_string(ranks) + "}}\n";
    std::ofstream(folder_ / "json") << (says_who_took_part_ ? all_took_part : "") << json;
    return judge(check, cluster_, outcome, folder_ / "log", folder_ / "json");
  }
  // Of each finding its detector, text and node.
  std::string found(const Check& check, const Outcome& outcome, const std::string& output = "",
                    const std::string& json = "") {
    std::string text;
    for (const auto& finding : judge_run(check, outcome, output, json).findings)
      text += finding.detector + "|" + finding.text + "|" + finding.node + "\n";
    return text;
  }

  TemporaryFolder folder_;
  bool says_who_took_part_ = true;
  Cluster cluster_{.launcher = "mpirun", .nodes = {"node1", "node10", "node2"}, .examples = "/examples"};
};

Check program() { return {.name = "check", .program = "02-mpi/all_reduce_perf"}; }
Outcome ended(int status) { return {.exit_status = status}; }

TEST_F(Judge, ExitStatusWithTheLinesThatSayWhyAndTheirNode) {
  EXPECT_EQ(found(program(), ended(0), "all_reduce_perf: fine"), "");
  EXPECT_EQ(found(program(), ended(1), "noise\nall_reduce_perf: rank 3 (host node10, pid 7) is gone\nmpirun noticed\n"),
            "exit status|ended with status 1:\nall_reduce_perf: rank 3 (host node10, pid 7) is gone|node10\n");
  const std::string waits = "all_reduce_perf: timed out: rank 0 (host node1) waits; rank 3 (host node10) is late\n",
                    two = "all_reduce_perf: not equal: nice: node1 has 0, node10 has 9\n";
  EXPECT_SAYS(found(program(), ended(1), waits), "is late|node10\n");
  EXPECT_SAYS(found(program(), ended(1), two), "has 9|\n");
  EXPECT_EQ(found(program(), ended(1), "[rank 0] all_reduce_perf: too slow\n[rank 0] a\n[rank 0] b\nc\nd\n"),
            "exit status|ended with status 1:\n[rank 0] all_reduce_perf: too slow|\n");
  EXPECT_EQ(found(program(), ended(137), "a\nb\n"), "exit status|ended with status 137:\na\nb|\n");
  // A line that is as long as it likes.
  auto says = program();
  says.says = {".*y"};
  EXPECT_SAYS(found(says, ended(0), std::string(1 << 20, 'x')), "output|did not say '.*y'|");
  std::string letters;
  while (letters.size() < 4096) letters += "abcd";
  says.says = {"(.*)a(.*)b(.*)c(.*)d(.*)e"};  // which would take hours with std::regex
  EXPECT_SAYS(found(says, ended(0), letters), "output|did not say '(.*)a(.*)b");
  auto to_fail = program();
  to_fail.exit_status = 1;
  EXPECT_EQ(found(to_fail, ended(1)), "");
  EXPECT_SAYS(found(to_fail, ended(0)), "exit status|ended with status 0, and should have failed: something hides");
}

TEST(Pattern, IsPosix) {
  const auto found = [](const char* pattern, const char* lines) { return Pattern(pattern).found_in(lines); };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(found("bw=([0-9.]+)GB", "bw=7.5GB bw=8GB\nno\nbw=9GB"), (Texts{"7.5", "8", "9"}));
  EXPECT_EQ(found("^a|x*$", "ab\nxa"), (Texts{"a", "", ""}));
  EXPECT_EQ(found("a.b", "a\nb"), Texts{});
  for (const char* wrong : {"(", "[0-9", "(?:a)", "\\d+", "(a)\\1"})
    EXPECT_THROW(Pattern{wrong}, std::runtime_error) << wrong;
  EXPECT_EQ(found("a\\\\d", "a\\d"), Texts{"a\\d"});
}

TEST_F(Judge, DeadlineAndWhatStayed) {
  EXPECT_EQ(found(program(), {.exit_status = 143, .timed_out = true, .seconds = std::chrono::seconds(30)}),
            "deadline|did not end by itself, and was ended after 30 s. It had said nothing.|\n");
  EXPECT_EQ(found(program(), {.left_over = 2}), "left over|2 of its processes stayed behind, and were killed|\n");
  EXPECT_SAYS(found(program(), {.exit_status = 143, .stuck = 2}),
              "left over|2 of its processes could not be killed: they wait in the kernel");
}

TEST_F(Judge, OutputAndAnswers) {
  auto check = program();
  check.says = {"RIGHT: [0-9]+"};
  EXPECT_EQ(found(check, ended(0), "RIGHT: 5"), "");
  EXPECT_EQ(found(check, ended(0), "RIGHT"), "output|did not say 'RIGHT: [0-9]+'|\n");
  check.says.clear();
  check.answers = {{"bits", "0x1"}};
  EXPECT_EQ(found(check, ended(0), "", "{\"bits\": \"0x1\"}\n"), "");
  EXPECT_EQ(found(check, ended(0), "", "{\"bits\": \"0x2\"}\n"), "answer|bits is \"0x2\", and should be 0x1|\n");
  EXPECT_EQ(found(check, ended(0), "", "{}\n"), "answer|result field 'bits' is missing|\n");
  EXPECT_EQ(found(check, ended(0), "", "no JSON\n"),
            "results|a line of results is no JSON: no JSON|\nanswer|result field 'bits' is missing|\n");
}

TEST_F(Judge, WhoTookPartIsWhoWasAsked) {
  auto check = program();
  check.arguments = "{common}";
  says_who_took_part_ = false;
  cluster_.processes_per_node = 2;
  const auto with = [](int size, const char* hosts) {
    return "{\"fingerprint\": {\"world_size\": " + std::to_string(size) + ", \"hosts\": " + hosts + "}}\n";
  };
  EXPECT_EQ(found(check, ended(0), "", with(6, R"(["a", "b", "c"])")), "");
  EXPECT_SAYS(found(check, ended(0), "", with(5, R"(["a", "b", "c"])")),
              "who took part|5 processes on 3 nodes (a, b, c)");
  EXPECT_SAYS(found(check, ended(0), "", with(6, R"(["a", "b", "a"])")), "who took part|6 processes on 2 nodes (a, b)");
  EXPECT_EQ(found(check, ended(0)), "results|no line of results says who took part ('fingerprint')|\n");
  check.where = Where::one_each;
  EXPECT_EQ(found(check, ended(0), "", with(3, R"(["a", "b", "c"])")), "");
  EXPECT_SAYS(found(check, ended(0), "", with(6, R"(["a", "b", "c"])")), "who took part|6 processes on 3 nodes");
}

TEST_F(Judge, AbsentHardwareIsNoPass) {
  const auto judged = judge_run(program(), ended(77), "all_reduce_perf: no GPU here\n", "");
  EXPECT_TRUE(judged.absent);
  EXPECT_EQ(judged.reason, "all_reduce_perf: no GPU here");
}

Check named(std::string_view name, const std::filesystem::path& site = {}) {
  const auto checks = read_site(site).checks;
  return *std::ranges::find(checks, name, &Check::name);
}

std::string row_of_a_curve(const std::string& size) {
  return R"({"busbw_gb_per_s": 4, "time_us": 10, "median_us": 8, "in_place": false, "collective": "all_reduce",)"
         R"( "backend": "mpi", "size_bytes": )" +
         size + "}\n";
}

// A launcher that does not know an option, or starts each rank alone, is no reason to replace a node.
TEST_F(Judge, NoNodeIsBlamedForItsLauncher) {
  auto check = program();
  check.arguments = "{common}";
  const std::string own = "all_reduce_perf: rank 3 (host node10, pid 7) is gone\n",
                    of_mpirun = "mpirun: Error: unknown option\n";
  says_who_took_part_ = false;
  EXPECT_TRUE(judge_run(check, ended(1), own, "").started);
  EXPECT_FALSE(judge_run(check, ended(1), of_mpirun, "").started);
  EXPECT_SAYS(found(check, ended(1), of_mpirun),
              "status 1, and no process of all_reduce_perf said anything:\nmpirun: Error");
  EXPECT_FALSE(judge_run(check, ended(0), own, "").started);  // the launcher hid the status
  EXPECT_SAYS(found(check, ended(0), own),
              "no line of results says who took part ('fingerprint'):\n" + own.substr(0, 15));
  const std::string alone = R"({"fingerprint": {"hosts": ["node1"], "world_size": 1}})";
  EXPECT_FALSE(judge_run(check, ended(0), own, alone).started);
  EXPECT_SAYS(found(check, ended(0), own, alone), "do not speak the same PMI");
}

// A value that is beyond it, of a check of the site: ImageCheck.ASiteFileAddsChecksAndThresholds.
TEST_F(Judge, ThresholdsAreOfAKindOfNodesAndASize) {
  folder_.write("site.json", R"({"kinds": [
    {"nodes": "node[0-9]+", "at_least": {"all_reduce bus bandwidth, mpi, 1 MiB": 6}, "at_most": {"disk": 9}},
    {"nodes": "cpu.*", "at_least": {"disk": 50}}],
    "checks": [{"name": "disk", "suite": "gate", "command": "fio x",
                "measures": {"pattern": "bw=([0-9.]+)GB/s", "metric": "disk", "unit": "GB/s", "better": "more"}}]})");
  const auto disk = named("disk", folder_ / "site.json"), curve = named("all_reduce, mpi", folder_ / "site.json");
  const auto right = judge_run(disk, ended(0), "read: bw=7.5GB/s\nread: bw=8GB/s\n", "");
  EXPECT_TRUE(right.findings.empty());
  ASSERT_EQ(right.samples.size(), 2U);
  EXPECT_EQ(right.samples[0].value, 7.5);
  EXPECT_EQ(found(disk, ended(0), "bw=10GB/s"),
            "threshold|node1: disk is 10 GB/s, and the site file wants at most 9|node1\n");
  EXPECT_SAYS(found(disk, ended(0), "no bandwidth"), "results|");
  const std::string fine = "# Out of bounds values : 0 OK";
  EXPECT_EQ(found(curve, ended(0), fine, row_of_a_curve("4096")), "");
  EXPECT_SAYS(found(curve, ended(0), fine, row_of_a_curve("1048576")),
              "all_reduce bus bandwidth, mpi, 1 MiB is 5 GB/s");
}

TEST_F(Judge, TransportWithinANode) {
  const auto check = named("transport");
  const auto line = [](const std::string& from, const std::string& over, const std::string& to) {
    return "[" + from + ":12] mca: bml: Using " + over + " btl for send to [[1,1],0] on node " + to + "\n";
  };
  EXPECT_EQ(found(check, ended(0),
                  line("node1", "vader", "node1") + line("node1", "tcp", "node2") + line("node1", "self", "node1")),
            "");
  const auto said = found(check, ended(0), line("node2", "tcp", "node2") + line("node2", "tcp", "node2"));
  EXPECT_TRUE(
      std::regex_match(said, std::regex("transport[|]MPI sends over tcp between processes of node2, .*[|]node2\n")))
      << said;
  EXPECT_EQ(found(check, ended(0), "nothing"), "");
}

// MPICH, Intel MPI and Open MPI over libfabric do not print what ranks of a node use: a skip, and no failure.
TEST_F(Judge, ATransportThatIsNotPrintedIsUnknown) {
  const auto check = named("transport");
  const auto judged = judge_run(check, ended(0), "[0] MPI startup(): libfabric provider: tcp;ofi_rxm\n", "");
  EXPECT_TRUE(judged.findings.empty() && judged.absent);
  EXPECT_SAYS(judged.reason, "could not determine the transport within a node: ");
  EXPECT_FALSE(judge_run(check, ended(1), "nothing", "").absent);
}

std::string node_row(const std::string& host, const std::string& what, const std::string& value,
                     const std::string& better, int rank) {
  return R"({"what": ")" + what + R"(", "host": ")" + host + R"(", "value": )" + value + R"(, "better": ")" + better +
         R"(", "unit": "GB/s", "rank": )" + std::to_string(rank) + ", \"ok\": true}\n";
}

TEST_F(Judge, NodesThatAreNotAsTheOthers) {
  const auto check = named("node");
  const auto rows = [](const std::string& what, const std::string& usual, const std::string& last) {
    return node_row("node1", what, usual, "equal", 0) + node_row("node2", what, usual, "equal", 1) +
           node_row("node10", what, last, "equal", 2) + node_row("node1", "memory_bandwidth", "10", "more", 0);
  };
  EXPECT_EQ(found(check, ended(0), "", rows("gpus", "8", "8")), "");
  EXPECT_EQ(found(check, ended(0), "", rows("gpus", "8", "7")), "devices|node10: gpus is '7', elsewhere '8'|node10\n");
  const auto judged = judge_run(check, ended(0), "", rows("gpus", "8", "7"));
  EXPECT_EQ(judged.facts.size(), 3U);
  EXPECT_EQ(judged.samples.size(), 1U);
  const auto two = [&](const std::string& what, const std::string& a, const std::string& b) {
    return found(check, ended(0), "", node_row("node1", what, a, "equal", 0) + node_row("node10", what, b, "equal", 1));
  };
  EXPECT_EQ(two("mtu", "9000", "1500"), "devices|node1: mtu is '9000', elsewhere '1500'|\n");
  for (const auto& [a, b] : {std::pair("64", "\"unlimited\""), std::pair("\"unlimited\"", "64")})
    EXPECT_SAYS(two("memlock", a, b),
                ": memlock is '64', elsewhere 'unlimited'|node1" + std::string(*a == '6' ? "\n" : "0\n"));
  // What is about the same: Facts.ThatFollowMemoryMayDifferALittleAndALimitMayGrow.

  const auto rates = [](const std::string& last) {
    return node_row("node1", "memory_bandwidth", "10", "more", 0) +
           node_row("node2", "memory_bandwidth", "11", "more", 1) +
           node_row("node10", "memory_bandwidth", last, "more", 2);
  };
  EXPECT_EQ(found(check, ended(0), "", rates("4")), "");
  EXPECT_SAYS(found(check, ended(0), "", rates("3")),
              "slow rank|rank 2 on node10 is 3.5 times slower than the others: memory_bandwidth|node10");
}

TEST_F(Judge, ASlowRankIsSlowInItsFastestTrialAndOnAverage) {
  const auto ranks = [](const std::string& seconds, const std::string& fastest, const std::string& waited = "0") {
    return R"({"ranks": [{"rank": 0, "host": "node1", "seconds": 10, "fastest_seconds": 4, "waited_seconds": 1},)"
           R"({"rank": 1, "host": "node2", "seconds": )" +
           seconds + R"(, "fastest_seconds": )" + fastest + R"(, "waited_seconds": )" + waited + "}]}\n";
  };
  EXPECT_EQ(found(program(), ended(0), "", ranks("12", "17")),
            "");  // its trials shared their cores, unlike one of rank 0
  EXPECT_EQ(found(program(), ended(0), "", ranks("50", "5")), "");
  EXPECT_EQ(found(program(), ended(0), "", ranks("50", "17")),
            "slow rank|rank 1 on node2 is 5 times slower than the others: its own work|node2\n");
  // Other processes had its CPU.
  const auto busy = judge_run(program(), ended(0), "", ranks("50", "17", "24"));
  EXPECT_TRUE(busy.busy && busy.findings.empty());
  EXPECT_SAYS(busy.reason, "rank 1 on node2 waited for a CPU for 48 % of its time: other processes keep node2 busy");
  EXPECT_SAYS(found(program(), ended(0), "", ranks("50", "17", "22")), "slow rank|");  // slow while it has a CPU, too
  const auto wrong = judge_run(program(), ended(1), "all_reduce_perf: wrong", ranks("50", "17", "24"));
  EXPECT_TRUE(!wrong.busy && wrong.findings.size() == 1);
}

// Neither a small rate nor a node that is slower than others is a fault where other work explains it.
TEST_F(Judge, WhatOtherWorkExplainsIsNotJudged) {
  auto check = named("node");
  const auto with = [&](double least, const std::string& taken, const std::string& rate = "3") {
    check.thresholds = {{"node10", "memory_bandwidth", least, true}};
    return judge_run(
        check, ended(0), "",
        node_row("node1", "memory_bandwidth", "10", "more", 0) + node_row("node1", "other_work", "0.1", "", 0) +
            node_row("node10", "memory_bandwidth", rate, "more", 2) + node_row("node10", "other_work", taken, "", 2));
  };
  const auto busy = with(5, "0.6");
  EXPECT_TRUE(busy.busy && busy.findings.empty());
  EXPECT_SAYS(busy.reason, "other work took 60 % of the CPU time");
  EXPECT_EQ(busy.samples.at(1).other_work, 0.6);
  EXPECT_EQ(with(5, "0.01").findings.size(), 2U);
  EXPECT_EQ(with(5, "0.6", "0.0003").findings.size(), 2U);  // slower than other work makes it
  EXPECT_TRUE(with(1, "0.6").busy);                         // slower than the other nodes
  EXPECT_EQ(with(1, "0.1").findings.size(), 1U);
  EXPECT_TRUE(with(9, "0.03", "8.5").busy);  // 0.97 squared is 0.941
  EXPECT_EQ(with(9, "0.03", "8.4").findings.size(), 1U);
  check.command = "a command of the site";
  EXPECT_EQ(with(5, "0.6").findings.size(), 1U);
  auto curve = named("all_reduce, mpi");  // 0.97 to the power of 10 is 0.737: its processes wait for each other
  for (const auto& [least, findings] : {std::pair(6.7, 0U), std::pair(6.9, 1U)}) {
    curve.thresholds = {{"node1", "all_reduce bus bandwidth, mpi", least, true}};
    const auto judged = judge_run(curve, {.other_work = 0.03}, "values : 0 OK", row_of_a_curve("4096"));
    EXPECT_EQ(std::ranges::count(judged.findings, "threshold", &Finding::detector), findings);
  }
}

// What had no CPU did not have its time; what waits for something else hangs.
TEST_F(Judge, WhatOtherWorkKeptFromACpuIsToRunAgain) {
  auto check = program();
  Outcome outcome{.exit_status = 143, .timed_out = true, .other_work = 0.95, .seconds = std::chrono::seconds(40)};
  const std::string late = "all_reduce_perf: timed out after 10 s: rank 0 (host a, pid 7) waits\n";
  const auto busy = [&](double waited) {
    outcome.waited_for_cpus = waited;
    const auto judged = judge_run(check, outcome, late, "");
    EXPECT_NE(judged.findings.empty(), judged.late && !judged.busy);
    return judged.busy ? judged.reason : "";
  };
  EXPECT_SAYS(busy(25), "not end in 40 s, because other work took 95 % of the CPU time: run it again on a quiet node");
  EXPECT_EQ(busy(24), "");   // 16 s, and it may take 31 s
  outcome.other_work = 0.5;  // its own processes wait for each other
  EXPECT_EQ(busy(100), "");
  outcome = {.exit_status = 1, .other_work = 0.95, .seconds = std::chrono::seconds(11)};
  check.arguments = "{common}";  // its own deadline is a third of that
  EXPECT_SAYS(busy(7), "not end in 11 s");
  EXPECT_EQ(busy(5), "");
  EXPECT_FALSE(judge_run(check, outcome, late, R"({"what": "x", "why": "y", "host": "a", "ok": false})").busy);
  check.exit_status = 1;  // it is meant to
  EXPECT_EQ(busy(7), "");
}

TEST(Launching, GivesTheLauncherItsOptions) {
  const auto words = [](const std::string& launcher) {
    Cluster cluster{.launcher = "", .nodes = {"a", "b"}, .local = false, .examples = "/examples"};
    cluster.launcher_words = read_launcher(launcher);
    cluster.launcher = kind_of_launcher(cluster.launcher_words.front());
    EXPECT_EQ(cluster.launcher_command(), launcher);
    return shell_words({}, cluster.launch(cluster.nodes, 2, {"program"}, {}));
  };
  EXPECT_EQ(words("srun --mpi=pmi2 '--container-image=a b'").find("srun --mpi=pmi2 '--container-image=a b' --kill"),
            0U);
  EXPECT_EQ(words("srun").find("srun --mpi=pmix --kill-on-bad-exit=1 "), 0U);
  EXPECT_EQ(words("mpirun --mca btl tcp,self").find("mpirun --mca btl tcp,self -n 4 -H a:2,b:2 "), 0U);
  EXPECT_EQ(words("mnrun --monitor 5"),
            "/examples/01-environment/mnrun --monitor 5 --standalone --nproc-per-node 2 program");
  EXPECT_EQ(words("/opt/openmpi/bin/mpiexec").find("/opt/openmpi/bin/mpiexec -n 4 -H a:2,b:2 "), 0U);
  for (const char* wrong : {"prun --x", "mpirunner", "mpi.run", "/opt/srun/", "", "/opt/mnrun"})
    EXPECT_THROW(read_launcher(wrong), multinode::UsageError) << wrong;
}

TEST(Settings, OfTheUserStay) {
  setenv("OMP_NUM_THREADS", "3", 1);
  EXPECT_FALSE(whole_node().contains("OMP_NUM_THREADS"));
  unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(small_machine().at("OMP_NUM_THREADS"), "1");
}

TEST(Checks, HaveNamesOfTheirOwnAndFitTheirSuites) {
  std::set<std::string> names;
  double smoke = 0, gate = 0, deep = 0;
  for (const auto& check : read_site("").checks) {
    EXPECT_TRUE(names.insert(check.name).second) << check.name;
    EXPECT_LE(check.seconds, check.limit) << check.name;
    if (std::ranges::find(check.needs, Need::gpu) != check.needs.end()) continue;
    deep += check.seconds;
    if (check.from <= Suite::gate) gate += check.seconds;
    if (check.from == Suite::smoke) smoke += check.seconds;
  }
  EXPECT_LT(smoke, budget_seconds(Suite::smoke));
  EXPECT_LT(gate, budget_seconds(Suite::gate));
  EXPECT_LT(deep, budget_seconds(Suite::deep));
}

TEST(Checks, ThatCannotRunSayWhy) {
  Cluster laptop{.launcher = "mnrun", .nodes = {"a"}, .processes_per_node = 2, .examples = "/nowhere"};
  EXPECT_EQ(cannot_run(named("all_reduce, mpi"), laptop), "MPI needs mpirun or srun, and the launcher is mnrun");
  EXPECT_EQ(cannot_run(named("wiring"), laptop), "01-environment/explore is not built");
  EXPECT_EQ(cannot_run(named("paths"), laptop), "less than three nodes");
}

}  // namespace image_check::checks_test
