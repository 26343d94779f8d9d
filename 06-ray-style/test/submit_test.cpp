// `cluster submit` and `cluster status` as a user has them, with a head and a node in a daemon.
#include <testing/json_lines.hpp>
#include <testing/program_test.hpp>
#include <testing/temporary_folder.hpp>

#include <nlohmann/json.hpp>

#include <gtest/gtest.h>

#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <string>
#include <vector>

namespace submit_test {

using namespace std::chrono_literals;
using multinode::testing::occurrences;
using multinode::testing::Process;
using multinode::testing::Result;

class SubmitTest : public testing::Test {
 protected:
  SubmitTest() {
    std::filesystem::create_directories(folder_ / "jobs");
    const Result result =
        run({"start", "--head", "--port", "0", "--num-cpus", "2", "--jobs", (folder_ / "jobs").string()});
    EXPECT_EQ(result.status, 0) << result.all();
  }
  ~SubmitTest() override { run({"stop", "-f"}); }

  std::vector<std::string> command(std::vector<std::string> words) const {
    words.insert(words.begin(), PATH_cluster);
    words.insert(words.begin() + 2, {"--state", (folder_ / "state").string()});
    return words;
  }
  Result run(const std::vector<std::string>& words) const { return multinode::testing::run(command(words)); }
  void job(const std::string& name, const std::string& script) const {
    const auto path = folder_ / "jobs" / name;
    std::ofstream(path) << "#!/bin/sh\n" << script;
    chmod(path.c_str(), 0700);
  }

  const multinode::testing::TemporaryFolder folder_;
};

TEST_F(SubmitTest, ShowsWhoSaysWhatAndEndsAsTheJobDoes) {
  job("talk",
      "echo \"$RANK of $WORLD_SIZE: $*\"\necho oh >&2\n"
      "echo '{\"loss\": 0.5}' >&\"$CLUSTER_REPORT_FD\"\n"
      "touch \"$0.$RANK\"\nuntil [ -e \"$0.0\" ] && [ -e \"$0.1\" ]; do sleep 0.01; done\n"  // the first end ends both
      "exit 7\n");
  const std::string json = folder_ / "events";
  const Result result = run({"submit", "--num-workers", "2", "--json", json, "--", "talk", "--epochs", "a b"});
  EXPECT_EQ(result.status, 7) << result.all();
  EXPECT_TRUE(std::regex_search(result.out, std::regex(R"(\(worker 0, [^ ,]+, [0-9]+\) 0 of 2: --epochs a b\n)")))
      << result.out;
  EXPECT_TRUE(std::regex_search(result.err, std::regex(R"(\(worker [01], [^ ,]+, [0-9]+\) oh\n)"))) << result.err;
  EXPECT_NE(result.out.find("(worker 0) {\"loss\": 0.5}\n"), std::string::npos) << result.out;
  EXPECT_NE(result.err.find("cluster: job 1: 2 workers on 1 node\n"), std::string::npos) << result.err;
  EXPECT_TRUE(
      std::regex_search(result.err, std::regex(R"(cluster: job 1 failed with status 7 after 1 failure: rank [01] \()")))
      << result.err;
  std::map<std::string, nlohmann::json> events;
  for (const auto& event : multinode::testing::json_lines(json)) events[event.at("event")] = event;
  EXPECT_EQ(events["accepted"]["job"], 1);
  EXPECT_EQ(events["running"]["processes"].size(), 2u);
  EXPECT_EQ(events["report"]["report"]["loss"], 0.5);
  EXPECT_EQ(events["result"]["status"], 7);
}

TEST_F(SubmitTest, AJobThatFailsStartsAgain) {
  job("third", "test \"$CLUSTER_RESTART_COUNT\" = 1\n");
  const Result result = run({"submit", "--max-failures", "1", "--", "third"});
  EXPECT_EQ(result.status, 0) << result.all();
  EXPECT_NE(result.err.find("failed and will start again: rank 0"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("has ended after 1 failure\n"), std::string::npos) << result.err;
}

TEST_F(SubmitTest, CtrlCEndsTheJob) {
  job("long", "exec sleep 1000\n");
  Process runs(command({"submit", "--num-workers", "2", "--", "long"}));
  ASSERT_TRUE(runs.wait_for("2 workers on 1 node"));
  Process waits(command({"submit", "--", "long"}));
  ASSERT_TRUE(waits.wait_for("job 2 waits: 1 worker wants 1 CPU, 0 of 2 are free\n"));
  const Result status = run({"status"});
  EXPECT_TRUE(std::regex_search(status.out, std::regex(R"( 2/2 +0/[0-9]+\n)"))) << status.out;
  EXPECT_TRUE(std::regex_search(status.out, std::regex(R"(1 +long +2 +0 +running *\n)"))) << status.out;
  EXPECT_TRUE(std::regex_search(status.out, std::regex(R"(2 +long +1 +0 +waits: 1 worker wants)"))) << status.out;
  for (Process* process : {&waits, &runs}) {
    process->signal(SIGINT);
    const Result result = process->wait();
    EXPECT_EQ(result.status, 130);
    EXPECT_NE(result.err.find("was cancelled\n"), std::string::npos) << result.err;
  }
  EXPECT_NE(run({"status"}).out.find("no jobs\n"), std::string::npos);
}

TEST_F(SubmitTest, AKilledClientsJobEnds) {
  job("long", "exec sleep 1000\n");
  Process runs(command({"submit", "--", "long"}));
  ASSERT_TRUE(runs.wait_for("1 worker on 1 node"));
  runs.signal(SIGKILL);
  runs.wait();
  const auto end = std::chrono::steady_clock::now() + multinode::testing::patience;
  while (run({"status"}).out.find("no jobs\n") == std::string::npos) ASSERT_LT(std::chrono::steady_clock::now(), end);
}

TEST_F(SubmitTest, SaysWhatIsWrong) {
  const auto expect = [&](const std::vector<std::string>& words, int status, const std::string& what) {
    const Result result = run(words);
    EXPECT_EQ(result.status, status) << result.all();
    EXPECT_NE(result.err.find(what), std::string::npos) << result.err;
    EXPECT_EQ(occurrences(result.err, "\n"), 1u) << result.err;
  };
  expect({"submit", "talk"}, 2, "put -- and the job behind the options");
  expect({"submit", "--num-workers", "0", "--", "talk"}, 2, "--num-workers must be from 1 to 10000, not 0");
  expect({"submit", "--placement", "tight", "--", "talk"}, 2, "--placement must be pack or spread, not 'tight'");
  expect({"submit", "--", "/bin/sh"}, 2, "the name of a program in the job folder");
  expect({"submit", "--json", "/nowhere/x", "--", "talk"}, 2, "/nowhere/x");
  expect({"status", "--address", "127.0.0.1:1"}, 1, "the head at 127.0.0.1:1 does not answer");
  expect({"status", "--wait-for-nodes", "2", "--timeout", "5"}, 1, "1 of 2 nodes came within 5 s");
  const Result result = run({"submit", "--", "nothing"});
  EXPECT_EQ(result.status, 127) << result.all();
  EXPECT_NE(result.err.find("cannot start 'nothing'"), std::string::npos) << result.err;
}

TEST_F(SubmitTest, StatusWaitsForNodes) {
  Process waits(command({"status", "--wait-for-nodes", "2"}));
  EXPECT_FALSE(waits.wait_for("node", 300ms));
  std::string address;
  std::ifstream(folder_ / "state" / "address") >> address;
  const Result started = run({"start", "--address", address, "--num-cpus", "3", "--jobs", (folder_ / "jobs").string()});
  EXPECT_EQ(started.status, 0) << started.all();
  const Result result = waits.wait();
  EXPECT_EQ(result.status, 0) << result.all();
  EXPECT_NE(result.out.find(" 0/3 "), std::string::npos) << result.out;
}

}  // namespace submit_test
