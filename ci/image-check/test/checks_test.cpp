// Judgements: what each detector says of a run, and what it lets pass.
#include "checks.hpp"

#include <multinode/options.hpp>
#include <testing/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

namespace image_check::checks_test {

using multinode::testing::TemporaryFolder;

class Judge : public ::testing::Test {
 protected:
  Judged judge_run(const Check& check, const Outcome& outcome, const std::string& output, const std::string& json,
                   const std::set<std::string>& disabled = {}) {
    std::ofstream(folder_ / "log") << output;
    std::ofstream(folder_ / "json") << json;
    return judge(check, cluster_, outcome, folder_ / "log", folder_ / "json", disabled);
  }
  // Of each finding its detector, text and node.
  std::string found(const Check& check, const Outcome& outcome, const std::string& output = "",
                    const std::string& json = "", const std::set<std::string>& disabled = {}) {
    std::string text;
    for (const auto& finding : judge_run(check, outcome, output, json, disabled).findings)
      text += finding.detector + "|" + finding.text + "|" + finding.node + "\n";
    return text;
  }

  TemporaryFolder folder_;
  Cluster cluster_{.launcher = "mpirun", .nodes = {"node1", "node10", "node2"}, .examples = "/examples"};
};

Check program() {
  Check check;
  check.name = "check";
  check.program = "02-mpi/all_reduce_perf";
  return check;
}
Outcome ended(int status) {
  Outcome outcome;
  outcome.exit_status = status;
  return outcome;
}

TEST_F(Judge, ExitStatusWithTheLinesThatSayWhyAndTheirNode) {
  EXPECT_EQ(found(program(), ended(0), "all_reduce_perf: fine"), "");
  EXPECT_EQ(found(program(), ended(1), "noise\nall_reduce_perf: rank 3 (host node10, pid 7) is gone\nmpirun noticed\n"),
            "exit status|ended with status 1:\nall_reduce_perf: rank 3 (host node10, pid 7) is gone|node10\n");
  EXPECT_EQ(found(program(), ended(1), "[rank 0] all_reduce_perf: too slow\n[rank 0] a\n[rank 0] b\nc\nd\n"),
            "exit status|ended with status 1:\n[rank 0] all_reduce_perf: too slow|\n");
  EXPECT_EQ(found(program(), ended(137), "a\nb\n"), "exit status|ended with status 137:\na\nb|\n");
  EXPECT_EQ(found(program(), ended(1), "x", "", {"exit status"}), "");
  auto to_fail = program();
  to_fail.exit_status = 1;
  EXPECT_EQ(found(to_fail, ended(1)), "");
  EXPECT_EQ(found(to_fail, ended(0)), "exit status|ended with status 0:\n|\n");
}

TEST_F(Judge, DeadlineAndWhatStayed) {
  Outcome outcome = ended(143);
  outcome.timed_out = true;
  outcome.seconds = std::chrono::seconds(30);
  EXPECT_EQ(found(program(), outcome),
            "deadline|did not end by itself, and was ended after 30 s. It had said nothing.|\n");
  outcome = ended(0);
  outcome.left_over = 2;
  EXPECT_EQ(found(program(), outcome), "left over|2 of its processes stayed behind, and were killed|\n");
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
  EXPECT_EQ(found(check, ended(0), "", "{}\n"), "answer|its results do not say bits|\n");
  EXPECT_EQ(found(check, ended(0), "", "no JSON\n"),
            "results|a line of results is no JSON: no JSON|\nanswer|its results do not say bits|\n");
}

TEST_F(Judge, AbsentHardwareIsNoPass) {
  const auto judged = judge_run(program(), ended(77), "all_reduce_perf: no GPU here\n", "");
  EXPECT_TRUE(judged.absent);
  EXPECT_EQ(judged.reason, "all_reduce_perf: no GPU here");
}

const Check& named(const std::string& name) {
  const auto& checks = all_checks();
  return *std::find_if(checks.begin(), checks.end(), [&](const auto& check) { return check.name == name; });
}

TEST_F(Judge, CurveOfTheMedianTime) {
  const std::string row =
      R"({"busbw_gb_per_s": 4, "time_us": 10, "median_us": 8, "in_place": false, "collective": "all_reduce",)"
      R"( "backend": "mpi", "size_bytes": 1048576})"
      "\n";
  const auto& check = named("all_reduce, mpi");
  const auto judged = judge_run(check, ended(0), "# Out of bounds values : 0 OK", row);
  EXPECT_TRUE(judged.findings.empty());
  ASSERT_EQ(judged.samples.size(), 1U);
  EXPECT_EQ(judged.samples[0].metric, "all_reduce bus bandwidth, mpi");
  EXPECT_EQ(judged.samples[0].band_bytes, 1 << 20);
  EXPECT_DOUBLE_EQ(judged.samples[0].value, 5);
  EXPECT_EQ(found(check, ended(0), "# Out of bounds values : 0 OK", ""),
            "results|it measured nothing: no line of results|\n");
}

TEST_F(Judge, TransportWithinANode) {
  const auto& check = named("transport");
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
  EXPECT_NE(found(check, ended(0), "nothing").find("no transport was told"), std::string::npos);
  EXPECT_EQ(found(check, ended(0), line("node2", "tcp", "node2"), "", {"transport"}), "");
}

TEST_F(Judge, TransportOfNccl) {
  const auto& check = named("transport, nccl");
  cluster_.processes_per_node = 2;
  const std::string good =
      "a:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read\n"
      "a:1:2 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/Socket/0\n";
  EXPECT_EQ(found(check, ended(0), good), "");  // no RDMA here
  EXPECT_NE(found(check, ended(0), good + "a:1:2 [0] NCCL INFO Channel 00/0 : 2[0] -> 3[1] [send] via NET/Socket/0\n")
                .find("NCCL sends over NET/Socket/0 from rank 2 to rank 3, which are on one node"),
            std::string::npos);
}

std::string node_row(const std::string& host, const std::string& what, const std::string& value,
                     const std::string& better, int rank) {
  return R"({"what": ")" + what + R"(", "host": ")" + host + R"(", "value": )" + value + R"(, "better": ")" + better +
         R"(", "unit": "GB/s", "rank": )" + std::to_string(rank) + ", \"ok\": true}\n";
}

TEST_F(Judge, NodesThatAreNotAsTheOthers) {
  const auto& check = named("node");
  const auto rows = [](const std::string& last) {
    return node_row("node1", "gpus", "8", "equal", 0) + node_row("node2", "gpus", "8", "equal", 1) +
           node_row("node10", "gpus", last, "equal", 2) + node_row("node1", "memory_bandwidth", "10", "more", 0);
  };
  EXPECT_EQ(found(check, ended(0), "", rows("8")), "");
  EXPECT_EQ(found(check, ended(0), "", rows("7")), "devices|node10: gpus is '7', elsewhere '8'|node10\n");
  const auto judged = judge_run(check, ended(0), "", rows("7"));
  EXPECT_EQ(judged.facts.size(), 3U);
  EXPECT_EQ(judged.samples.size(), 1U);

  const auto rates = [](const std::string& last) {
    return node_row("node1", "memory_bandwidth", "10", "more", 0) +
           node_row("node2", "memory_bandwidth", "11", "more", 1) +
           node_row("node10", "memory_bandwidth", last, "more", 2);
  };
  EXPECT_EQ(found(check, ended(0), "", rates("4")), "");
  EXPECT_NE(found(check, ended(0), "", rates("3"))
                .find("slow rank|rank 2 on node10 is 3.5 times slower than the others: memory_bandwidth|node10"),
            std::string::npos);
}

TEST(Checks, HaveNamesOfTheirOwnAndFitTheirSuites) {
  std::set<std::string> names;
  double smoke = 0, gate = 0, deep = 0;
  for (const auto& check : all_checks()) {
    EXPECT_TRUE(names.insert(check.name).second) << check.name;
    EXPECT_LE(check.seconds, check.limit) << check.name;
    if (std::find(check.needs.begin(), check.needs.end(), Need::gpu) != check.needs.end()) continue;
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
  EXPECT_EQ(cannot_run(named("pairs"), laptop), "less than three nodes");
  EXPECT_THROW(parse_suite("quick"), multinode::UsageError);
}

}  // namespace image_check::checks_test
