// cluster start and cluster stop, as a user types them: daemons, their files, and what is left of them.
#include "local_cluster.hpp"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

namespace start_stop_test {

namespace fs = std::filesystem;
using multinode::testing::Process;
using multinode::testing::Result;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

class StartStop : public testing::Test {
 protected:
  StartStop() { fs::create_directory(jobs()); }
  ~StartStop() override { cluster("stop", {"-f"}); }

  fs::path state() const { return folder_ / "state"; }
  fs::path jobs() const { return folder_ / "jobs"; }
  std::vector<std::string> command(const std::string& name, std::vector<std::string> words = {}) const {
    words.insert(words.begin(), {PATH_cluster, name, "--state", state().string()});
    return words;
  }
  Result cluster(const std::string& name, const std::vector<std::string>& words = {}) const {
    return multinode::testing::run(command(name, words));
  }
  Result start(std::vector<std::string> words) const {
    words.insert(words.end(), {"--jobs", jobs().string(), "--num-cpus", "2"});
    return cluster("start", words);
  }
  void start_head() const {
    const Result result = start({"--head", "--port", "0"});
    ASSERT_EQ(result.status, 0) << result.all();
  }
  std::string address() const { return first_line(state() / "address"); }
  static std::string first_line(const fs::path& file) {
    std::ifstream stream(file);
    std::string line;
    std::getline(stream, line);
    return line;
  }
  pid_t pid_of(const std::string& end) const {  // of the file whose name ends so
    for (const auto& entry : fs::directory_iterator(state()))
      if (entry.path().filename().string().ends_with(end)) return std::stoi("0" + first_line(entry.path()));
    return 0;
  }
  bool only_logs() const {
    return std::all_of(fs::directory_iterator(state()), {},
                       [](const auto& e) { return e.path().extension() == ".log"; });
  }
  static bool ends(pid_t pid) {
    for (const auto end = Clock::now() + multinode::testing::patience; Clock::now() < end;
         std::this_thread::sleep_for(2ms))
      if (!is_running(pid)) return true;
    return false;
  }
  // A job of one process that writes its own number and that of one which it starts.
  std::pair<pid_t, pid_t> start_family(std::unique_ptr<Process>& client, const std::string& script) {
    write_script(jobs() / "family", script);
    client = std::make_unique<Process>(command("submit", {"--", "family"}));
    const auto match = client->wait_for("\\) ([0-9]+) ([0-9]+)\\n");
    if (!match) throw std::runtime_error(client->wait(1s).all());
    return {std::stoi((*match)[1]), std::stoi((*match)[2])};
  }

  const TemporaryFolder folder_;
};

TEST_F(StartStop, LeavesLogsAlone) {
  const Result head = start({"--head", "--port", "0"});
  ASSERT_EQ(head.status, 0) << head.all();
  EXPECT_NE(head.out.find("The head listens on 127.0.0.1:"), std::string::npos) << head.out;
  EXPECT_NE(head.out.find("cluster stop --state " + state().string()), std::string::npos) << head.out;
  const Result node = start({"--address", address()});
  ASSERT_EQ(node.status, 0) << node.all();
  const Result status = cluster("status", {"--wait-for-nodes", "2"});
  EXPECT_EQ(status.status, 0) << status.all();
  write_script(jobs() / "hello", "echo I am $RANK of $WORLD_SIZE, $LOCAL_RANK on $GROUP_RANK of $GROUP_WORLD_SIZE");
  const Result hello = cluster("submit", {"--num-workers", "4", "--", "hello"});
  EXPECT_EQ(hello.status, 0) << hello.all();
  EXPECT_NE(hello.out.find("I am 3 of 4, 1 on 1 of 2"), std::string::npos) << hello.all();

  const pid_t daemon = pid_of("-head.pid");
  EXPECT_TRUE(is_running(daemon));
  struct stat info {};
  ASSERT_EQ(stat(state().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700u);
  const Result stop = cluster("stop");
  EXPECT_EQ(stop.status, 0);
  EXPECT_NE(stop.out.find("stopped the head, pid " + std::to_string(daemon)), std::string::npos) << stop.out;
  EXPECT_NE(stop.out.find("stopped a node, pid "), std::string::npos) << stop.out;
  EXPECT_FALSE(is_running(daemon));
  EXPECT_TRUE(only_logs());
  const Result again = cluster("stop");
  EXPECT_EQ(again.status, 0);
  EXPECT_NE(again.out.find("nothing of the cluster"), std::string::npos) << again.out;
}

TEST_F(StartStop, WhatCannotBeIsSaidInOneLine) {
  const auto refused = [&](const std::vector<std::string>& words, int status, const std::string& what) {
    const Result result = start(words);
    EXPECT_EQ(result.status, status) << result.all();
    EXPECT_NE(result.err.find(what), std::string::npos) << result.all();
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.all();
    EXPECT_EQ(result.out, "");
  };
  refused({}, 2, "either --head or --address");
  refused({"--head", "--address", "localhost:1"}, 2, "either --head or --address");
  refused({"--address", "localhost"}, 2, "--address");
  refused({"--address", "127.0.0.1:1"}, 2, "/token: No such file");
  refused({"--head", "--host", "no.such.host.invalid"}, 2, "no.such.host.invalid");
  refused({"--head", "--port", "0", "--block", "stray"}, 2, "no other words");
  EXPECT_TRUE(only_logs());

  start_head();
  refused({"--head", "--port", "0"}, 2, "a head runs already on");
  const std::string port = address().substr(address().find(':') + 1);
  const Result taken = multinode::testing::run(
      {PATH_cluster, "start", "--head", "--port", port, "--state", (folder_ / "other").string()});
  EXPECT_EQ(taken.status, 1);
  EXPECT_NE(taken.err.find(port), std::string::npos) << taken.all();
  refused({"--address", "127.0.0.1:1", "--timeout", "0.5"}, 1, "the head at 127.0.0.1:1 did not answer within 500 ms");
  std::ofstream(state() / "token") << std::string(64, 'a') << '\n';
  refused({"--address", address()}, 2, "the head at " + address() + " refuses this node");
  chmod(state().c_str(), 0755);
  refused({"--address", address()}, 2, "is open to other users");
  chmod(state().c_str(), 0700);
}

// Also what a job started, and a job that does not care about SIGTERM.
TEST_F(StartStop, StopEndsJobs) {
  start_head();
  std::unique_ptr<Process> client;
  const auto [job, its] = start_family(client, "trap '' TERM; sleep 1000 & echo $$ $!; wait; sleep 1000");
  const auto start = Clock::now();
  EXPECT_EQ(cluster("stop").status, 0);
  EXPECT_LT(Clock::now() - start, 60s);
  EXPECT_TRUE(ends(job));
  EXPECT_TRUE(ends(its));
  EXPECT_EQ(client->wait().status, 1);
  EXPECT_TRUE(only_logs());
}

TEST_F(StartStop, ForceEndsEvenWhatIsFrozen) {
  start_head();
  std::unique_ptr<Process> client;
  const auto [job, its] = start_family(client, "sleep 1000 & echo $$ $!; wait");
  const pid_t daemon = pid_of("-head.pid");
  kill(daemon, SIGSTOP);
  const auto start = Clock::now();
  const Result stop = cluster("stop", {"--force"});
  EXPECT_LT(Clock::now() - start, 60s);
  EXPECT_NE(stop.out.find("killed the head"), std::string::npos) << stop.out;
  EXPECT_FALSE(is_running(daemon));
  EXPECT_TRUE(ends(job));
  EXPECT_TRUE(ends(its));
  EXPECT_TRUE(only_logs());
}

// Files of daemons that were killed are no hindrance; those of other hosts, who share the folder, are theirs.
TEST_F(StartStop, KnowsTheLivingFromTheDead) {
  start_head();
  kill(pid_of("-head.pid"), SIGKILL);
  EXPECT_TRUE(ends(pid_of("-head.pid")));
  EXPECT_TRUE(fs::exists(state() / "token"));
  start_head();
  EXPECT_EQ(cluster("status").status, 0);

  const fs::path other = state() / "elsewhere-17.pid";
  std::ofstream(other) << getpid() << '\n';
  const int lock = open(other.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(flock(lock, LOCK_EX), 0);
  EXPECT_EQ(cluster("stop", {"-f"}).status, 0);
  EXPECT_TRUE(fs::exists(other));
  close(lock);

  const fs::path head = state() / "elsewhere-head.pid";
  fs::rename(other, head);
  const int head_lock = open(head.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(flock(head_lock, LOCK_EX), 0);
  const Result second = start({"--head", "--port", "0"});
  EXPECT_EQ(second.status, 2);
  EXPECT_NE(second.err.find("a head runs already on elsewhere"), std::string::npos) << second.all();
  close(head_lock);
}

// A node that waits for its head, in the foreground, is ended at once.
TEST_F(StartStop, AWaitingNodeEndsAtOnce) {
  start_head();
  Process node(command("start", {"--address", "127.0.0.1:1", "--jobs", jobs().string(), "--block"}));
  const std::string pid = std::to_string(node.pid());
  const auto waits = [&] {  // it blocks SIGINT, and a thread waits for it
    const std::string text = text_of("/proc/" + pid + "/status");
    const auto blocked = text.find("SigBlk:\t");
    return blocked != text.npos && (std::stoull(text.substr(blocked + 8), nullptr, 16) & (1u << (SIGINT - 1))) != 0;
  };
  for (const auto end = Clock::now() + multinode::testing::patience; !waits() && Clock::now() < end;
       std::this_thread::sleep_for(2ms)) {
  }
  EXPECT_EQ(pid_of("-" + pid + ".pid"), node.pid());
  node.signal(SIGINT);
  const Result result = node.wait();
  EXPECT_EQ(result.status, 1);
  EXPECT_LT(result.seconds.count(), 50);
  EXPECT_EQ(pid_of("-" + pid + ".pid"), 0);
}

TEST_F(StartStop, AnotherUsersFolderAndAFileAreNone) {
  std::ofstream(folder_ / "file") << "x";
  for (const auto& [folder, what] : {std::pair{folder_ / "file", "is no folder"}, {fs::path("/proc"), "--state"}}) {
    const Result result = multinode::testing::run({PATH_cluster, "stop", "--state", folder.string()});
    EXPECT_EQ(result.status, 2) << result.all();
    EXPECT_NE(result.err.find(what), std::string::npos) << result.all();
  }
}

TEST(Cluster, SaysWhichCommandsThereAre) {
  for (const auto& [words, status, what] : {std::tuple{std::vector<std::string>{"--help"}, 0, "usage: cluster start"},
                                            {std::vector<std::string>{}, 2, "cluster: no command"},
                                            {std::vector<std::string>{"begin"}, 2, "cluster: no command 'begin'"},
                                            {std::vector<std::string>{"stop", "--help"}, 0, "--force"},
                                            {std::vector<std::string>{"start", "--help"}, 0, "--num-gpus"}}) {
    std::vector<std::string> all = {PATH_cluster};
    all.insert(all.end(), words.begin(), words.end());
    const Result result = multinode::testing::run(all);
    EXPECT_EQ(result.status, status) << result.all();
    EXPECT_NE(result.all().find(what), std::string::npos) << result.all();
  }
}

}  // namespace start_stop_test
