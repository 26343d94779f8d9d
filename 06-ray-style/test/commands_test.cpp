// The commands of `cluster`, as a user types them, and their failures.
#include "local_cluster.hpp"

#include <multinode/launch/endpoint.hpp>
#include <multinode/store/rendezvous_file.hpp>
#include <multinode/store/tcp_store.hpp>

#include <array>
#include <fstream>
#include <optional>
#include <sstream>

namespace commands_test {

using multinode::testing::occurrences;
using multinode::testing::soon;
using namespace std::chrono_literals;

class Commands : public ClusterTest {
 protected:
  static bool matches(const std::string& text, const std::string& pattern) {
    return !multinode::testing::match_in(text, pattern).empty();
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
  const std::string here = folder_.path().string();
  const Result result = result_of(
      {"--num-workers", "2"},
      "echo \"$RANK of $WORLD_SIZE, $LOCAL_RANK on $GROUP_RANK of $GROUP_WORLD_SIZE in $PWD\"\nprintf oh >&2\n"
      "cd " +
          here +
          "; touch said.$RANK; until [ -e said.0 ] && [ -e said.1 ]; do sleep 0.01; done\n"
          "exit 7");  // the first end ends both
  EXPECT_EQ(result.status, 7) << result.all();
  EXPECT_EQ(result.err, "");
  const std::string folder = std::filesystem::current_path().string();
  EXPECT_TRUE(matches(result.out, R"(\(worker 1, [^ ,]+, [0-9]+\) 1 of 2, 1 on 0 of 1 in )" + folder + "\n"))
      << result.out;
  EXPECT_TRUE(matches(result.out, R"(\(worker [01], [^ ,]+, [0-9]+\) oh\n)")) << result.out;
  EXPECT_SAYS(result.out, "cluster: job 1: 2 workers on 1 node\n");
  EXPECT_TRUE(matches(result.out, R"(cluster: job 1 failed with status 7 after 1 failure: rank [01] \()"));
}

TEST_F(Commands, RunsInAFolderWhoseNameIsNoUtf8) {
  const auto node = start_node(1);
  const std::string here = folder_ / "essai-\xe9";
  ASSERT_TRUE(std::filesystem::create_directory(here));
  Words words = script({}, "pwd");
  words.insert(words.begin(), {"env", "-C", here});
  const Result result = multinode::testing::run(words);
  EXPECT_EQ(result.status, 0) << result.all();
  EXPECT_SAYS(result.out, ") " + here + "\n");
}

// Lines of every length, in pieces of every length, until the client reads again: then they wait in the pipe.
TEST_F(Commands, AllOutputArrivesAlsoAtASuspendedClient) {
  const auto node = start_node(1);
  Process client(script({}, "echo begins; until [ -e " + (folder_.path() / "go").string() +
                                " ]; do sleep 0.01; done; seq 1 100000; yes '' | head -n 20000; head -c 200000 "
                                "/dev/zero | tr '\\0' x; echo; echo ends"));
  ASSERT_TRUE(client.wait_for("begins"));
  client.signal(SIGSTOP);
  std::ofstream(folder_.path() / "go") << "";
  EXPECT_SAYS(run("status").out, "running");
  std::this_thread::sleep_for(10500ms);  // longer than anything waits for a dead one
  client.signal(SIGCONT);
  const Result result = client.wait();
  EXPECT_EQ(result.status, 0);
  EXPECT_SAYS(result.out, ") ends\ncluster: job 1 has ended\n");
  const std::string begin = multinode::testing::match_in(result.out, R"(\(worker 0, [^ ,]+, [0-9]+\) )").at(0);
  std::string text;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);)
    text += (line.starts_with(begin) ? line.substr(begin.size()) : line) + "\n";
  std::string numbers = "begins\n";
  for (int i = 1; i <= 100000; ++i) numbers += std::to_string(i) + "\n";
  EXPECT_SAYS(text, numbers + std::string(20000, '\n') + "xxx");
  EXPECT_EQ(occurrences(text, "x"), 200'000u);
}

TEST_F(Commands, ProcessesEndWithTheirClientTheirNodeTheClusterAndTheHead) {
  for (const char* killed : {"client", "node", "head"}) {
    const auto node = start_node(1);
    std::optional<Process> client;
    const auto family = start_family(client);
    (*killed == 'c' ? *client : *killed == 'n' ? *node : head()).signal(*killed == 'h' ? SIGTERM : SIGKILL);
    for (const pid_t pid : family) EXPECT_TRUE(ends(pid)) << killed;
    const Result result = client->wait();
    if (*killed != 'c') {
      EXPECT_SAYS(result.out,
                  *killed == 'n' ? "is gone: its connection closed\n" : "the cluster ended: a signal came\n");
      continue;
    }
    EXPECT_TRUE(soon([&] { return run("status").out.find("no jobs") != std::string::npos; }));
    node->signal(SIGTERM);
    EXPECT_EQ(node->wait().status, 0);
  }
  EXPECT_EQ(head().wait().status, 0);
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
    EXPECT_SAYS(result.all(), freeze_head ? "cluster: the head is gone: " : "is gone: no word from it for 3 s\n");
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
  const auto ranks = multinode::parse_store_place((*said)[1], "CLUSTER_STORE");
  const auto of_head = multinode::read_place(state() / "head", "cluster", {});
  EXPECT_NE(ranks.token, of_head.token) << "a rank cannot start programs";
  for (const auto& place : {ranks, of_head}) {
    EXPECT_THROW(multinode::TcpStore(place, 60s), multinode::StoreRefused);
    EXPECT_THROW(multinode::TcpStore(place, 60s, {.token = "guessed"}), multinode::StoreRefused);
  }
}

TEST_F(Commands, ErrorsAreOneLine) {
  const auto expect = [&](const std::string& name, const Words& words, int status, const std::string& what) {
    const Result result = run(name, words);
    EXPECT_EQ(result.status, status) << result.all();
    EXPECT_SAYS(result.all(), what);
    EXPECT_EQ(occurrences(result.all(), "\n"), 1u) << result.all();
  };
  expect("begin", {}, 2, "unrecognised option '--state'");
  expect("start", {"--head", "--host", "[::1"}, 2, "--host: '[::1' is neither a host name nor an address");
  expect("run", {}, 2, "put -- and the program behind the options");
  expect("run", {"--num-workers", "0", "--", "true"}, 2, "--num-workers must be from 1 to 1000, not 0");
  expect("run", {"--", "nothing"}, 127, "cannot start 'nothing': not found on the PATH");
  std::filesystem::remove(state() / "head");
  expect("status", {}, 2, "there is no " + (state() / "head").string());
  multinode::write_place(state() / "head", "cluster", {{"127.0.0.1", 1}, "token"});
  expect("status", {}, 1, "if the head is on another host, start it with --host ADDRESS");
  std::filesystem::permissions(state(), std::filesystem::perms(0777));
  expect("start", {"--head"}, 2, ": every user can write to it, and exchange what is in it: name a folder in it");
}

}  // namespace commands_test
