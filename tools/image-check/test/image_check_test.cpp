// image-check as a user runs it: what it says, and with what status it ends, whatever happens.
#include "commands.hpp"
#include "results.hpp"

#include <multinode/node/limits.hpp>
#include <test/support/program_test.hpp>
#include <test/support/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <iterator>
#include <regex>
#include <sstream>

namespace image_check::image_check_test {

using namespace multinode::testing;
using namespace std::chrono_literals;

class ImageCheck : public ::testing::Test {
 protected:
  Result image_check(std::vector<std::string> arguments, const std::map<std::string, std::string>& environment = {},
                     std::chrono::seconds timeout = patience) {
    arguments.insert(arguments.begin(), PATH_image_check);
    return run(arguments, environment, timeout);
  }
  std::string out(const std::string& name = "out") { return folder_ / name; }
  TemporaryFolder folder_;
};

// What it prints: the README.
TEST_F(ImageCheck, RunsWhatIsAskedFor) {
  const auto result =
      image_check({"run", "--only", "wiring", "--only", "pi, bit for bit", "--launcher", "mnrun", "-o", out()});
  EXPECT_EQ(result.status, 0) << result.all();
  const auto results = read_results(out());
  EXPECT_TRUE(results.complete);
  EXPECT_EQ(results.summary.passed, 2);
  EXPECT_EQ(results.samples.at(0).metric, "pi, 200 million intervals");
  EXPECT_GE(results.checks.at(1).other_work, 0);
  EXPECT_FALSE(results.head.machine.at("CPU").empty());
  EXPECT_FALSE(results.head.versions.at("libc").empty());
  EXPECT_SAYS(text_of(out() + "/junit.xml"), "pi, bit for bit");
  EXPECT_EQ(run({"sh", "-c", results.checks.at(1).command + " >/dev/null"}).status, 0);  // "reproduce with"
  EXPECT_EQ(image_check({"report", out()}).out, out() + "/report.html\n");
}

TEST_F(ImageCheck, WrongCommandLines) {
  const auto wrong = [&](std::vector<std::string> arguments, const std::string& says) {
    const auto result = image_check(std::move(arguments));
    EXPECT_EQ(result.status, 2) << result.all();
    EXPECT_SAYS(result.err, says);
  };
  wrong({}, "image-check: no command");
  wrong({"run", "--suite", "quick"}, "--suite: 'quick' is none of smoke, gate, deep");
  wrong({"run", "--only", "wirin"}, "--only: no check 'wirin'");
  wrong({"run", "--require", "gpus"}, "--require: no check 'gpus'");
  wrong({"run", "--launcher", "prun"}, "--launcher: 'prun' is none of");
  wrong({"node", "--budget", "0"}, "budget must be from 1");
  wrong({"node", "--site", "/nowhere"}, "--site: /nowhere: cannot be read");
  wrong({"run", "--examples", "/nowhere"}, "--examples: no 01-environment/explore in '/nowhere'");
  wrong({"run", "--budget", "2", "-o", out()}, "more than the budget");
  wrong({"compare", "a"}, "name two folders");
  wrong({"report", out("none")}, "cannot read ");
  wrong({"report", "a", "b"}, "report: name the folder");
  wrong({"self-test", "--only", "a fire"}, "no fault 'a fire'");
  wrong({"paths", "--hosts", "a,b"}, "2 nodes cannot tell which one is bad");
  wrong({"paths", "--hosts", "a,b,c", "--launcher", "mnrun"}, "--launcher: mnrun starts programs on one node");
}

// No mpirun on the PATH: image.adoption.
TEST_F(ImageCheck, WhatIsRequiredMustRun) {
  const std::vector<std::string> command{"run",        "--only", "wiring", "--only", "messages, nccl",
                                         "--launcher", "mnrun",  "-o",     out()};
  const std::map<std::string, std::string> no_gpu{{"CUDA_VISIBLE_DEVICES", "-1"}};
  auto result = image_check(command, no_gpu);
  EXPECT_EQ(result.status, 0);
  EXPECT_SAYS(result.out, "1 passed, 0 failed, 0 flaky, 1 skipped");
  for (const char* what : {"messages, nccl", "all"}) {
    auto required = command;
    required.insert(required.end(), {"--require", what});
    result = image_check(required, no_gpu);
    EXPECT_EQ(result.status, 3);
    EXPECT_SAYS(result.out, "is required, and could not run: no GPU");
  }
  // A run in which every check was skipped is not right.
  EXPECT_EQ(image_check({"run", "--only", "messages, nccl", "--launcher", "mnrun", "-o", out()}, no_gpu).status, 3);
}

// Rank 1 shares a CPU with a process that is more important.
TEST_F(ImageCheck, ANodeThatOtherWorkKeepsBusyIsNotBlamed) {
  const std::string cpu = std::to_string(multinode::allowed_cpus().front());
  folder_.write("busy.sh", R"([ ! -e $2/busy-0.jsonl ] || again=-again
if [ $RANK = 1 ]; then
  taskset -pc )" + cpu + R"( $$ >&2
  while :; do :; done &
  nice="nice -n 12"
fi
$nice $1 --n 2e8 --warmup 0 --trials 2 --json $2/busy-0$again.jsonl
status=$?
[ $RANK = 0 ] || kill $!
exit $status)");
  folder_.write(
      "site.json", R"({"checks": [{"name": "busy", "suite": "none", "action": "replace the node", "limit": 200,
    "command": "sh )" + folder_.path().string() +
                       "/busy.sh " + PATH_pi + " " + out() + R"(/files"}]})");
  const auto result = image_check({"run", "--site", folder_ / "site.json", "--only", "busy", "--launcher", "mnrun",
                                   "--processes-per-node", "2", "--budget", "500", "-o", out()});
  EXPECT_EQ(result.status, 3) << result.all();
  EXPECT_TRUE(std::regex_search(result.out, std::regex("rank 1 on [^ ]+ waited for a CPU for [0-9]+ % of its time")))
      << result.all();
}

// One that is fit: the README.
TEST_F(ImageCheck, ANodeIsNotFitForAJobInOneLine) {
  const auto result = image_check({"node", "--budget", "20", "--json", out("node.json")},
                                  {{"CUDA_VISIBLE_DEVICES", "-1"}, {"TMPDIR", "/proc"}});
  EXPECT_EQ(result.status, 1) << result.all();
  EXPECT_SAYS(text_of(out("node.json")), "\"what\":\"shm_bytes\"");
  EXPECT_SAYS(result.out, ": FAIL: tmp_bytes: ");
  EXPECT_SAYS(result.out, ": /proc cannot be written ");
  EXPECT_EQ(occurrences(result.out, "\n"), 1U);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// A node where MPI, CUDA or NCCL is broken is looked at.
TEST_F(ImageCheck, TheNodeCheckNeedsTheCxxLibraryAlone) {
  const auto needs = run({"readelf", "-d", PATH_image_check});
  if (needs.status != 0) GTEST_SKIP() << "no readelf";
  const std::regex library(R"(\(NEEDED\).*\[(.*)\])"),
      allowed(R"((libstdc\+\+|libm|libgcc_s|libc|ld-linux.*)\.so\.\d+)");
  int found = 0;
  for (auto match = std::sregex_iterator(needs.out.begin(), needs.out.end(), library); match != std::sregex_iterator();
       ++match, ++found)
    EXPECT_TRUE(std::regex_match((*match)[1].str(), allowed)) << (*match)[1];
  EXPECT_GE(found, 2);
}

// By calls that do not return: a file server or name service that is gone is named, and hangs nothing else; a folder of
// the node that hangs is the end of the look. What a user mounted is not asked, but for what the site file lists.
TEST_F(ImageCheck, WhatHangsIsNamedOrEndsWithTheBudget) {
  folder_.write("preload.c", R"(#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <unistd.h>
int statvfs(const char* path, void* space) {
  while (!strncmp(path, "/hangs", 6)) pause();
  return ((int (*)(const char*, void*))dlsym(RTLD_NEXT, "statvfs"))(path, space);
}
int getaddrinfo() {
  for (;;) pause();
})");
  const std::string library = folder_ / "preload.so", source = folder_ / "preload.c";
  if (run({"cc", "-w", "-shared", "-fPIC", source, "-o", library, "-ldl"}).status != 0) GTEST_SKIP() << "no C compiler";
  folder_.write("proc/self/mounts",
                "server:/home /hangs nfs4 rw 0 0\nserver:/ / lustre rw 0 0\n"
                "sshfs /hangs/root fuse.sshfs rw,user_id=0,group_id=0 0 0\n"
                "sshfs /hangs/user fuse.sshfs rw,user_id=1000,group_id=0 0 0\n");
  folder_.write("site.json", R"({"kinds": [{"nodes": ".*", "inventory": {"mounts": ["/hangs/user", "/"]}}]})");
  std::map<std::string, std::string> environment{{"LD_PRELOAD", library}, {"CUDA_VISIBLE_DEVICES", "-1"}};
  auto result =
      image_check({"node", "--budget", "60", "--root", folder_.path(), "--site", folder_ / "site.json"}, environment);
  EXPECT_EQ(result.status, 1) << result.all();
  EXPECT_SAYS(result.out, "FAIL: mounts: ");
  EXPECT_SAYS(result.out, ": /hangs does not answer; /hangs/root does not answer: look at the file server");
  EXPECT_SAYS(result.out, ": /hangs/user does not answer: the site file lists this");
  EXPECT_SAYS(result.out, "takes more than 2 s, as every process that starts does: write it into /etc/hosts");
  environment["TMPDIR"] = "/hangs";
  result = image_check({"node", "--budget", "10"}, environment);
  EXPECT_EQ(result.status, 1) << result.all();
  EXPECT_SAYS(result.out, ": FAIL: the node did not answer within 6 s (60 % of --budget)");
}
#endif

// Checks for which the node is too busy, as each is for these, are left out, and the others have their verdict.
TEST_F(ImageCheck, ABusyNodeGetsAVerdictOnWhatItCanDo) {
  folder_.write("site.json", R"({"checks": [{"name": "training", "most_busy": 0.1}, {"name": "node", "suite": "none"},
                                            {"name": "pi, bit for bit", "most_busy": 0.1}]})");
  std::vector<std::string> command{
      "run", "--launcher", "mnrun", "--processes-per-node", "1", "--site", folder_ / "site.json", "--budget",
      "500", "-o",         out()};
  auto result = image_check(command, {{"CUDA_VISIBLE_DEVICES", "-1"}});
  EXPECT_EQ(result.status, 0) << result.all();
  EXPECT_TRUE(std::regex_search(result.out, std::regex("skip +pi, bit for bit +0.0 s  left out, because this node")));
  EXPECT_SAYS(result.out, "PASS: ");
  command.insert(command.end(), {"--require", "pi, bit for bit"});
  result = image_check(command, {{"CUDA_VISIBLE_DEVICES", "-1"}});
  EXPECT_EQ(result.status, 3) << result.all();
}

TEST_F(ImageCheck, ABudgetThatEndsIsNoSuccess) {
  const auto result = image_check(
      {"run", "--only", "wiring", "--only", "messages, gloo", "--budget", "6.51", "--launcher", "mnrun", "-o", out()});
  EXPECT_EQ(result.status, 3) << result.all();
  EXPECT_SAYS(result.out, "the budget of 7 s ");
  EXPECT_TRUE(read_results(out()).complete);
}

// The self-test with these faults, each in its own process. That no other detector sees a fault is the proof that it
// would not be found without its own.
void expect_caught(const std::string& folder, const std::vector<std::string>& faults, const char* launcher) {
  for (const auto& fault : faults) {
    const auto result =
        run({PATH_image_check, "self-test", "--launcher", launcher, "-o", folder, "--only", fault}, {}, 900s);
    EXPECT_EQ(result.status, 0) << result.all();
    EXPECT_SAYS(result.out, "caught       " + fault + " (");
  }
}

TEST(SelfTest, SlowAllFaults) {
  const TemporaryFolder folder;
  EXPECT_GE(faults().size(), 18U);
  expect_caught(folder.path(), faults(), "auto");
}

// The README has a wrong answer.
TEST(SelfTest, SomeFaults) {
  const TemporaryFolder folder;
  expect_caught(folder.path(), {"a killed rank", "a wrong version", "a stale mount"}, "mnrun");
}

TEST_F(ImageCheck, ASiteFileAddsChecksAndThresholds) {
  folder_.write("site.json", R"({"launcher": "mnrun",
    "kinds": [{"nodes": ".*", "at_least": {"disk": 5}}],
    "checks": [{"name": "disk", "suite": "none", "command": "cat $SPEED", "where": "once",
                "measures": {"pattern": "bw=([0-9.]+)GB/s", "metric": "disk", "unit": "GB/s", "better": "more"}}]})");
  const auto run_with = [&](const char* speed) {
    folder_.write("speed", speed);
    return image_check({"run", "--site", folder_ / "site.json", "--only", "disk", "-o", out()},
                       {{"SPEED", folder_ / "speed"}});
  };
  auto result = run_with("bw=7GB/s");
  EXPECT_EQ(result.status, 0) << result.all();
  EXPECT_EQ(read_results(out()).samples.at(0).value, 7);
  result = run_with("bw=4GB/s");
  EXPECT_EQ(result.status, 1);
  EXPECT_SAYS(result.out, "disk is 4 GB/s, and the site file wants at least 5");
  const auto prometheus = text_of(out() + "/metrics.prom");
  EXPECT_SAYS(prometheus, "image_check_passed{check=\"disk\"} 0\n");
  EXPECT_SAYS(prometheus, "image_check_exit_status 1\n");
}

// Root checks, and its results go into a folder of a user, who has left links and pipes there under the names of its
// files.
TEST_F(ImageCheck, LinksAndPipesOfAnotherUserLeadNowhere) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can change the user";
  chmod(folder_.path().c_str(), 0755);
  folder_.write("roots/precious", "keep me");
  const std::string names = "results.jsonl report.html junit.xml metrics.prom logs/wiring-0.log files/wiring-0.jsonl";
  int number = 0;
  for (const std::string how : {"ln -s $0/roots/precious", "ln -s $0/roots/new", "mkfifo", ""}) {
    const std::string users = out("users-" + std::to_string(++number));
    std::filesystem::create_directory(users);
    ASSERT_EQ(chown(users.c_str(), 65534, 65534), 0);
    const std::string script =
        how.empty()  // whole folders
            ? "ln -s $0/roots out/logs; ln -s $0/roots out/files"
            : "mkdir out/logs out/files; for name in " + names + "; do " + how + " out/$name; done";
    const auto user = run({"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-ec",
                           "cd " + users + "; mkdir out; " + script, folder_.path()});
    EXPECT_EQ(user.status, 0) << user.all();
    const auto result = image_check({"run", "--only", "wiring", "--launcher", "mnrun", "-o", users + "/out"});
    EXPECT_EQ(result.status, 0) << result.all();
    EXPECT_EQ(text_of(folder_ / "roots/precious"), "keep me\n");
    const std::filesystem::directory_iterator of_root(folder_ / "roots");
    EXPECT_EQ(std::distance(begin(of_root), end(of_root)), 1);
    std::istringstream words(names);
    for (std::string name; words >> name;)
      EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(users + "/out/" + name))) << name;
  }
}

}  // namespace image_check::image_check_test
