// The commands of `cluster`, as a user types them, and their failures.
#include "local_cluster.hpp"

#include <multinode/launch/endpoint.hpp>
#include <multinode/store/rendezvous_file.hpp>
#include <multinode/store/tcp_store.hpp>

#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <optional>
#include <regex>

namespace commands_test {

using multinode::testing::occurrences;
using multinode::testing::Process;
using multinode::testing::Result;
using multinode::testing::soon;
using namespace std::chrono_literals;

class Commands : public ClusterTest {
 protected:
  static bool matches(const std::string& text, const std::string& pattern) {
    return std::regex_search(text, std::regex(pattern));
  }
  // Starts a job that ignores SIGTERM and that starts a process in a new session. Returns the process IDs of both.
  std::array<pid_t, 2> start_family(std::optional<Process>& client, const Words& options = {}) const {
    client.emplace(script(options, "trap '' TERM; setsid sleep 1000 >/dev/null 2>&1 & echo $$ $!; wait; sleep 1000"));
    const auto pids = client->wait_for("\\) ([0-9]+) ([0-9]+)\\n");
    if (!pids) throw std::runtime_error(client->wait().all());
    return {std::stoi((*pids)[1]), std::stoi((*pids)[2])};
  }
};

TEST_F(Commands, RunShowsTheOutputOfEachWorkerAndHasTheStatusOfTheJob) {
  const auto node = start_node(2);
  const std::string here = folder().path().string();
  const Result result = multinode::testing::run(
      script({"--num-workers", "2"},
             "echo \"$RANK of $WORLD_SIZE, $LOCAL_RANK on $GROUP_RANK of $GROUP_WORLD_SIZE in $PWD\"\nprintf oh >&2\n"
             "cd " +
                 here +
                 "; touch said.$RANK; until [ -e said.0 ] && [ -e said.1 ]; do sleep 0.01; done\n"
                 "exit 7"));  // the first end ends both
  EXPECT_EQ(result.status, 7) << result.all();
  EXPECT_EQ(result.err, "");
  const std::string folder = std::filesystem::current_path().string();
  EXPECT_TRUE(matches(result.out, R"(\(worker 1, [^ ,]+, [0-9]+\) 1 of 2, 1 on 0 of 1 in )" + folder + "\n"))
      << result.out;
  EXPECT_TRUE(matches(result.out, R"(\(worker [01], [^ ,]+, [0-9]+\) oh\n)")) << result.out;
  EXPECT_SAYS(result.out, "cluster: job 1: 2 workers on 1 node\n");
  EXPECT_TRUE(matches(result.out, R"(cluster: job 1 failed with status 7 after 1 failure: rank [01] \()"));
}

TEST_F(Commands, CtrlCStopsTheJobAndASecondJobWaitsForItsCpus) {
  const auto node = start_node(2);
  Process runs(script({"--num-workers", "2"}, "exec sleep 1000"));
  ASSERT_TRUE(runs.wait_for("2 workers on 1 node"));
  Process waits(script({}, "exec sleep 1000"));
  ASSERT_TRUE(waits.wait_for("job 2 waits: 1 worker want 1 CPU, 0 of 2 free\n"));
  const Result status = run("status");
  for (const char* pattern : {R"( 2/2 *\n)", R"(1 +/[a-z/]+/sh +2 +0 +running *\n)", R"(2 +/[a-z/]+/sh +1 +0 +waits)"})
    EXPECT_TRUE(matches(status.out, pattern)) << status.out;
  for (Process* process : {&waits, &runs}) {
    process->signal(SIGINT);
    const Result result = process->wait();
    EXPECT_EQ(result.status, 130);
    EXPECT_SAYS(result.out, "was stopped\n");
  }
  EXPECT_SAYS(run("status").out, "no jobs\n");
}

// The output of one client that is suspended (Ctrl-Z) waits in the pipes of its processes. Another one does not wait.
TEST_F(Commands, ASuspendedClientGetsAllItsOutputAndDelaysNoOther) {
  const auto node = start_node(2);
  const std::string text = "echo begins; until [ -e " + (folder().path() / "go").string() +
                           " ]; do sleep 0.01; done; seq 1 400000; echo ends";  // more than the window
  Process suspended(script({}, text));
  ASSERT_TRUE(suspended.wait_for("begins"));
  suspended.signal(SIGTSTP);
  std::ofstream(folder().path() / "go") << "";
  const Result other = multinode::testing::run(script({}, text));
  EXPECT_EQ(other.status, 0);
  EXPECT_GT(occurrences(other.out, "\n"), 400'000u);
  EXPECT_SAYS(run("status").out, "running");
  suspended.signal(SIGCONT);
  const Result result = suspended.wait();
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(occurrences(result.out, "\n"), occurrences(other.out, "\n"));
  EXPECT_SAYS(result.out, ") ends\ncluster: job 1 has ended\n");
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

TEST_F(Commands, ProcessesEndWhenTheirClientTheirNodeOrTheHeadIsKilled) {
  for (const char* killed : {"client", "node", "head"}) {
    const auto node = start_node(1);
    std::optional<Process> client;
    const auto family = start_family(client);
    (*killed == 'c' ? *client : *killed == 'n' ? *node : head()).signal(SIGKILL);
    for (const pid_t pid : family) EXPECT_TRUE(ends(pid)) << killed;
    const Result result = client->wait();
    if (*killed == 'h') {
      EXPECT_SAYS(result.err, "cluster: the head at 127.0.0.1:");
      const Result left = node->wait();
      EXPECT_EQ(left.status, 1);
      EXPECT_SAYS(left.err, "is gone: ");
      continue;
    }
    EXPECT_TRUE(soon([&] { return run("status").out.find("no jobs") != std::string::npos; }));
    if (*killed == 'n') {
      EXPECT_SAYS(result.out, "is gone: its connection closed\n");
    } else {
      node->signal(SIGTERM);
      EXPECT_EQ(node->wait().status, 0);
    }
  }
}

// A frozen node kills nothing. Its processes end because their keepers see that the lease is over.
TEST_F(Commands, ProcessesEndWhenTheirNodeOrTheHeadIsFrozen) {
  for (const bool freeze_head : {false, true}) {
    const auto node = start_node(1);
    std::optional<Process> client;
    const auto family = start_family(client);
    Process& frozen = freeze_head ? head() : *node;
    frozen.signal(SIGSTOP);
    for (const pid_t pid : family) EXPECT_TRUE(ends(pid));
    const Result result = client->wait();
    EXPECT_EQ(result.status, 1);
    EXPECT_SAYS(result.all(), freeze_head ? "cluster: the head at 127.0.0.1:" : "is gone: no word from it for 3 s\n");
    frozen.signal(SIGCONT);
    const Result left = node->wait();
    EXPECT_EQ(left.status, 1);
    EXPECT_SAYS(left.err, "is gone: ");
  }
}

TEST_F(Commands, TheStoresAdmitOnlyWithTheirTokens) {
  const auto node = start_node(1);
  Process client(script({}, "echo \"store $CLUSTER_STORE\"; exec sleep 1000"));
  const auto said = client.wait_for("store (\\S+)\n");
  ASSERT_TRUE(said);
  const auto ranks = multinode::parse_store_place((*said)[1].str(), "CLUSTER_STORE");
  const auto own = multinode::read_place(state() / "head", "cluster", {});
  EXPECT_NE(ranks.token, own.token) << "a rank cannot start programs";
  for (const auto& place : {ranks, own}) {
    EXPECT_THROW(multinode::TcpStore(place, 60s), multinode::StoreRefused);
    EXPECT_THROW(multinode::TcpStore(place, 60s, {.token = "guessed"}), multinode::StoreRefused);
  }
  EXPECT_EQ(std::filesystem::status(state() / "head").permissions() & std::filesystem::perms::mask,
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  multinode::StorePlace stranger = own;
  stranger.token = multinode::random_token();
  const TemporaryFolder other;
  multinode::write_place(other / "head", "cluster", stranger);
  for (const Words& words : {Words{"status"}, {"run", "--", "true"}, {"stop"}, {"start", "--timeout", "5"}}) {
    Words all = {PATH_cluster};
    all.insert(all.end(), words.begin(), words.end());
    all.insert(std::find(all.begin(), all.end(), "--"), {"--state", other.path().string()});
    const Result result = multinode::testing::run(all);
    EXPECT_EQ(result.status, 1) << words[0];
    EXPECT_SAYS(result.err, "token");
    EXPECT_EQ(occurrences(result.err, "\n"), 1u) << result.err;
  }
  client.signal(SIGINT);
  EXPECT_EQ(client.wait().status, 130);
  EXPECT_THROW(multinode::TcpStore(ranks, 100ms, {.token = ranks.token}), multinode::StoreTimeout);
}

TEST_F(Commands, ErrorsAreOneLine) {
  const auto node = start_node(1);
  const auto expect = [&](const std::string& name, const Words& words, int status, const std::string& what) {
    const Result result = run(name, words);
    EXPECT_EQ(result.status, status) << result.all();
    EXPECT_SAYS(result.all(), what);
    EXPECT_EQ(occurrences(result.all(), "\n"), 1u) << result.all();
  };
  expect("run", {"talk"}, 2, "put -- and the program behind the options");
  expect("run", {"--num-workers", "0", "--", "true"}, 2, "--num-workers must be from 1 to 10000, not 0");
  expect("run", {"--placement", "tight", "--", "true"}, 2, "--placement must be pack or spread, not 'tight'");
  expect("run", {"--", "nothing"}, 127, "cannot start 'nothing': not found on the PATH");
  expect("status", {"--wait-for-nodes", "3", "--timeout", "0.5"}, 1, "2 nodes of 3 came within 500 ms");
  expect("start", {"--head", "--address", "localhost:1"}, 2, "say one of them");
  expect("start", {"--address", "localhost"}, 2, "--address");
  expect("start", {"--head", "--port", "0"}, 2, "a head that uses " + state().string() + " is running");
  expect("start", {"--address", "127.0.0.1:1", "--timeout", "0.5"}, 1, "127.0.0.1:1");
  expect("status", {"--address", "127.0.0.1:1"}, 1, "'cluster start --head' starts a head");
  std::filesystem::remove(state() / "head");
  expect("status", {}, 2, "there is no " + (state() / "head").string());
  for (const auto& [words, status, what] : {std::tuple{Words{PATH_cluster, "--help"}, 0, "usage: cluster start"},
                                            {Words{PATH_cluster, "begin"}, 2, "cluster: no command 'begin'"},
                                            {Words{PATH_cluster, "start", "--help"}, 0, "--num-cpus"}}) {
    const Result result = multinode::testing::run(words);
    EXPECT_EQ(result.status, status) << result.all();
    EXPECT_SAYS(result.all(), what);
  }
}

}  // namespace commands_test
