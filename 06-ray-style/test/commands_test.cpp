// The commands of `cluster`, as a user types them.
#include "local_cluster.hpp"

#include <multinode/launch/endpoint.hpp>
#include <multinode/store/tcp_store.hpp>

#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <regex>
#include <sstream>
#include <thread>

namespace commands_test {

using multinode::testing::occurrences;
using multinode::testing::Process;
using multinode::testing::Result;
using namespace std::chrono_literals;

class Commands : public ClusterTest {
 protected:
  static bool matches(const std::string& text, const std::string& pattern) {
    return std::regex_search(text, std::regex(pattern));
  }
  // Starts a job that ignores SIGTERM and that starts a process in a new session. Returns the process IDs of both.
  std::array<pid_t, 2> start_family(std::optional<Process>& client) const {
    job("family", "trap '' TERM; setsid sleep 1000 >/dev/null 2>&1 & echo $$ $!; wait; sleep 1000");
    client.emplace(command("submit", {"--", "family"}));
    const auto pids = client->wait_for("\\) ([0-9]+) ([0-9]+)\\n");
    if (!pids) throw std::runtime_error(client->wait().all());
    return {std::stoi((*pids)[1]), std::stoi((*pids)[2])};
  }
};

TEST_F(Commands, SubmitShowsTheOutputOfEachWorkerAndHasTheStatusOfTheJob) {
  const auto node = start_node(2);
  job("talk",
      "echo \"$RANK of $WORLD_SIZE, $LOCAL_RANK on $GROUP_RANK of $GROUP_WORLD_SIZE: $*\"\necho oh >&2\n"
      "touch \"$0.$RANK\"\nuntil [ -e \"$0.0\" ] && [ -e \"$0.1\" ]; do sleep 0.01; done\n"  // the first end ends both
      "exit 7");
  const Result result = run("submit", {"--num-workers", "2", "--", "talk", "--epochs", "a b"});
  EXPECT_EQ(result.status, 7) << result.all();
  EXPECT_EQ(result.err, "");
  EXPECT_TRUE(matches(result.out, R"(\(worker 1, [^ ,]+, [0-9]+\) 1 of 2, 1 on 0 of 1: --epochs a b\n)")) << result.out;
  EXPECT_TRUE(matches(result.out, R"(\(worker [01], [^ ,]+, [0-9]+\) oh\n)")) << result.out;
  EXPECT_SAYS(result.out, "cluster: job 1: 2 workers on 1 node\n");
  EXPECT_TRUE(matches(result.out, R"(cluster: job 1 failed with status 7 after 1 failure: rank [01] \()"))
      << result.out;
  EXPECT_EQ(text_of(state() / "jobs/1.log"), result.out) << "the record stays";
}

TEST_F(Commands, CtrlCStopsTheJob) {
  const auto node = start_node(2);
  job("long", "exec sleep 1000");
  Process runs(command("submit", {"--num-workers", "2", "--", "long"}));
  ASSERT_TRUE(runs.wait_for("2 workers on 1 node"));
  Process waits(command("submit", {"--", "long"}));
  ASSERT_TRUE(waits.wait_for("job 2 waits: 1 worker wants 1 CPU, 0 of 2 are free\n"));
  const Result status = run("status");
  for (const char* pattern :
       {R"( 2/2 +0/0\n)", R"(1 +long +2 +0 +running *\n)", R"(2 +long +1 +0 +waits: 1 worker wants)"})
    EXPECT_TRUE(matches(status.out, pattern)) << status.out;
  for (Process* process : {&waits, &runs}) {
    process->signal(SIGINT);
    const Result result = process->wait();
    EXPECT_EQ(result.status, 130);
    EXPECT_SAYS(result.out, "was stopped\n");
  }
  EXPECT_SAYS(run("status").out, "no jobs\n");
}

// One `submit` is suspended (Ctrl-Z), another one is killed: both jobs continue, and the head keeps all their output.
// The head sends the suspended client more than a connection buffers. The head and the other client do not wait for it.
TEST_F(Commands, AJobOutlivesItsClient) {
  const auto node = start_node(2);
  job("job", "echo begins; until [ -e \"$0.go\" ]; do sleep 0.01; done; seq 1 100000; echo ends");
  Process frozen(command("submit", {"--", "job"}));
  ASSERT_TRUE(frozen.wait_for("begins"));  // it is job 1
  Process killed(command("submit", {"--", "job"}));
  ASSERT_TRUE(killed.wait_for("begins"));
  frozen.signal(SIGTSTP);
  killed.signal(SIGKILL);
  std::this_thread::sleep_for(4s);  // longer than any deadline of the cluster
  std::ofstream(jobs() / "job.go") << "";
  const Result first = run("logs", {"1"});
  EXPECT_EQ(first.status, 0) << first.all();
  EXPECT_EQ(occurrences(first.out, "\n"), 100'006u);
  EXPECT_SAYS(first.out, ") ends\ncluster: job 1 has ended\n");
  EXPECT_EQ(run("logs", {"2"}).status, 0);
  frozen.signal(SIGCONT);
  const Result result = frozen.wait();
  EXPECT_EQ(result.status, 0);
  EXPECT_TRUE(result.out == first.out) << result.out.size() << " and " << first.out.size() << " bytes";
}

TEST_F(Commands, StopEndsAll) {
  const auto node = start_node(2);
  std::optional<Process> client;
  const auto family = start_family(client);
  const Result stop = run("stop");
  EXPECT_EQ(stop.status, 0) << stop.all();
  EXPECT_EQ(stop.out, "the cluster has ended\n");
  for (const pid_t pid : family) EXPECT_TRUE(ends(pid));
  EXPECT_EQ(client->wait().status, 1);
  EXPECT_EQ(node->wait().status, 0);
  const Result left = head().wait();
  EXPECT_EQ(left.status, 0);
  EXPECT_SAYS(left.err, "left: 'cluster stop' was called\n");
}

TEST_F(Commands, ProcessesEndWhenTheirNodeOrTheHeadIsKilled) {
  const std::string gone = "the head at " + address() + " is gone";
  for (const bool kill_head : {false, true}) {
    const auto node = start_node(2);
    std::optional<Process> client;
    const auto family = start_family(client);
    (kill_head ? head() : *node).signal(SIGKILL);
    for (const pid_t pid : family) EXPECT_TRUE(ends(pid));
    const Result result = client->wait();
    EXPECT_EQ(result.status, 1);
    EXPECT_SAYS(result.all(), kill_head ? "cluster: " + gone : "is gone: its connection is closed\n");
    if (!kill_head) continue;
    const Result left = node->wait();
    EXPECT_EQ(left.status, 1);
    EXPECT_SAYS(left.err, gone);
  }
}

TEST_F(Commands, TheStoreOfAJobAdmitsItsProcessesOnly) {
  const auto node = start_node(1);
  job("waits", "echo \"store $CLUSTER_STORE\"; exec sleep 1000");
  Process client(command("submit", {"--", "waits"}));
  const auto said = client.wait_for("store (\\S+)\n");
  ASSERT_TRUE(said);
  const multinode::StorePlace place = multinode::parse_store_place((*said)[1].str(), "CLUSTER_STORE");
  EXPECT_THROW(multinode::TcpStore(place, 60s), multinode::StoreRefused);
  EXPECT_THROW(multinode::TcpStore(place, 60s, {.token = "guessed"}), multinode::StoreRefused);
  multinode::TcpStore(place, 60s, {.token = place.token}).set("key", "value");
  EXPECT_EQ(run("stop", {"1"}).status, 0);
  EXPECT_EQ(client.wait().status, 130);
  EXPECT_EQ(run("logs", {"1"}).status, 130);
  EXPECT_THROW(multinode::TcpStore(place, 100ms, {.token = place.token}), multinode::StoreTimeout);
}

TEST_F(Commands, AProcessSeesItsOwnGpusOnly) {
  const auto node = start_node(4, 2, {{"CUDA_VISIBLE_DEVICES", "GPU-a,5"}});
  job("gpus", "echo \"rank $RANK sees <$CUDA_VISIBLE_DEVICES>\"");
  const Result none = run("submit", {"--", "gpus"});
  EXPECT_SAYS(none.out, "rank 0 sees <>\n");
  const Result each = run("submit", {"--num-workers", "2", "--gpus-per-worker", "1", "--", "gpus"});
  EXPECT_SAYS(each.out, "rank 0 sees <GPU-a>\n");
  EXPECT_SAYS(each.out, "rank 1 sees <5>\n");
  const Result both = run("submit", {"--gpus-per-worker", "2", "--", "gpus"});
  EXPECT_SAYS(both.out, "rank 0 sees <GPU-a,5>\n");
}

TEST(Gpus, AreCountedAsCudaDoes) {
  for (const auto& [given, count] :
       {std::pair{"", 0}, {"0", 1}, {"1,3", 2}, {"-1", 0}, {"0,-1,1", 1}, {"NoDevFiles", 0}}) {
    // In a shell, because a Process cannot set an empty variable.
    const std::string script = "CUDA_VISIBLE_DEVICES=$1 exec \"$0\" start --help";
    const Result help = multinode::testing::run({"sh", "-c", script, PATH_cluster, given});
    EXPECT_SAYS(help.out, "--num-gpus arg (=" + std::to_string(count) + ")");
  }
}

TEST_F(Commands, ErrorsAreOneLine) {
  const auto node = start_node(1);
  const auto expect = [&](const std::string& name, const std::vector<std::string>& words, int status,
                          const std::string& what) {
    const Result result = run(name, words);
    EXPECT_EQ(result.status, status) << result.all();
    EXPECT_SAYS(result.err, what);
    EXPECT_EQ(occurrences(result.err, "\n"), 1u) << result.err;
  };
  job("talk", "true");
  expect("submit", {"talk"}, 2, "put -- and the job behind the options");
  expect("submit", {"--num-workers", "0", "--", "talk"}, 2, "the number of workers must be from 1 to 10000, not 0");
  expect("submit", {"--placement", "tight", "--", "talk"}, 2, "--placement must be pack or spread, not 'tight'");
  expect("submit", {"--", "/bin/sh"}, 2, "the name of a program in the job folder");
  expect("status", {"--address", "127.0.0.1:1"}, 1, "the head at 127.0.0.1:1 does not answer");
  expect("status", {"--wait-for-nodes", "3", "--timeout", "0.5"}, 1, "2 of 3 nodes came within 500 ms");
  expect("logs", {}, 2, "say which job");
  expect("logs", {"7"}, 2, "there is no job 7");
  expect("stop", {"7"}, 2, "there is no job 7");
  expect("stop", {"seven"}, 2, "'seven' is not the number of a job");
  expect("start", {}, 2, "either --head or --address");
  expect("start", {"--head", "--address", "localhost:1"}, 2, "either --head or --address");
  expect("start", {"--address", "localhost"}, 2, "--address");
  expect("start", {"--head", "--port", "0"}, 2, "a head that uses " + state().string() + " is running");
  expect("start", {"--address", "127.0.0.1:1", "--num-gpus", "0", "--timeout", "0.5"}, 1,
         "the head at 127.0.0.1:1 did not answer");
  const Result result = run("submit", {"--", "nothing"});
  EXPECT_EQ(result.status, 127) << result.all();
  EXPECT_SAYS(result.out, "cannot start 'nothing'");
  const std::string port = address().substr(address().find(':') + 1);
  const auto other_head = [&](const std::string& option, const std::string& value) {
    return multinode::testing::run({PATH_cluster, "start", "--head", option, value, "--state", jobs() / "other"});
  };
  const Result taken = other_head("--port", port), unknown = other_head("--host", "no.such.host.invalid");
  EXPECT_EQ(taken.status, 1);
  EXPECT_SAYS(taken.err, "cannot listen on 127.0.0.1:" + port);
  EXPECT_EQ(unknown.status, 2);
  EXPECT_SAYS(unknown.err, "--host: ");
}

// A killed head leaves its folder; the next one takes it, and does not overwrite the records.
TEST_F(Commands, AHeadFollowsAKilledOne) {
  job("hello", "echo hello");
  {
    const auto node = start_node(1);
    EXPECT_EQ(run("submit", {"--", "hello"}).status, 0);
  }
  head().signal(SIGKILL);
  head().wait();
  Process head(command("start", {"--head", "--port", "0", "--num-cpus", "1", "--jobs", jobs()}));
  ASSERT_TRUE(head.wait_for("joined the head"));
  EXPECT_SAYS(run("submit", {"--", "hello"}).out, "cluster: job 2 has ended\n");
  EXPECT_SAYS(text_of(state() / "jobs/1.log"), "cluster: job 1 has ended\n");
}

TEST(Cluster, SaysWhichCommandsThereAre) {
  using Words = std::vector<std::string>;
  for (const auto& [words, status, what] : {std::tuple{Words{PATH_cluster, "--help"}, 0, "usage: cluster start"},
                                            {Words{PATH_cluster}, 2, "cluster: no command"},
                                            {Words{PATH_cluster, "begin"}, 2, "cluster: no command 'begin'"},
                                            {Words{PATH_cluster, "stop", "--help"}, 0, "cluster stop [JOB]"},
                                            {Words{PATH_cluster, "start", "--help"}, 0, "--num-gpus"}}) {
    const Result result = multinode::testing::run(words);
    EXPECT_EQ(result.status, status) << result.all();
    EXPECT_SAYS(result.all(), what);
  }
}

}  // namespace commands_test
