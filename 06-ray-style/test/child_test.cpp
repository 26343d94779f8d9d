#include "control-plane/child.hpp"

#include <testing/program_test.hpp>
#include <testing/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>
#include <thread>

namespace process_test {

namespace fs = std::filesystem;
using cluster::Child;
using cluster::StartError;
using multinode::testing::ends;
using multinode::testing::TemporaryFolder;
using namespace std::chrono_literals;

class Processes : public testing::Test {
 protected:
  fs::path script(const std::string& name, const std::string& text, mode_t mode = 0755) {
    std::ofstream(folder_ / name) << "#!/bin/sh\n" << text << '\n';
    chmod((folder_ / name).c_str(), mode);
    return folder_ / name;
  }
  Child start(const std::string& text, std::vector<std::string> arguments = {}) {
    arguments.insert(arguments.begin(), script("job", text));
    return Child(arguments, environment_, PATH_job_keeper, Child::Clock::now() + 1h);
  }

  struct Said {
    std::string out;
    int status = -1;
  };
  // All that a process says until its end.
  static Said read_all(Child& child) {
    Said said;
    const auto deadline = std::chrono::steady_clock::now() + multinode::testing::patience;
    while ((child.output() >= 0 || !child.status()) && std::chrono::steady_clock::now() < deadline) {
      child.status();
      if (child.output() >= 0) said.out += child.read();
      std::this_thread::sleep_for(1ms);
    }
    said.status = child.status().value_or(-1);
    return said;
  }

  const TemporaryFolder folder_;
  const std::vector<std::string> environment_ = {"PATH=" + std::string(std::getenv("PATH"))};
};

std::string refusal(const fs::path& jobs, const std::string& name, int& status) {
  try {
    return cluster::find_program(jobs, name);
  } catch (const StartError& e) {
    status = e.status;
    return e.what();
  }
}

TEST_F(Processes, OnlyWhatIsInTheJobFolderIsFound) {
  script("good", "true");
  fs::create_symlink("/bin/true", folder_ / "link");  // whoever made the folder wants it
  fs::create_symlink("/nowhere", folder_ / "dangling");
  EXPECT_EQ(cluster::find_program(folder_.path(), "good"), folder_ / "good");
  EXPECT_EQ(cluster::find_program(folder_.path(), "link"), folder_ / "link");
  for (const auto& [name, status, why] :
       {std::tuple{"absent", 127, "is not in the job folder " + folder_.path().string()},
        {"dangling", 127, std::string("is not in the job folder")},
        {"", 127, std::string("named without '/'")},
        {"../", 127, std::string("named without '/'")},
        {"..", 127, std::string("named without '/'")},
        {"/bin/true", 127, std::string("named without '/'")},
        {"folder/../good", 127, std::string("named without '/'")}}) {
    int said = 0;
    EXPECT_NE(refusal(folder_.path(), name, said).find(why), std::string::npos) << refusal(folder_.path(), name, said);
    EXPECT_EQ(said, status) << name;
  }
  int status = 0;
  EXPECT_NE(refusal(folder_.path(), std::string("good\0x", 6), status), folder_ / "good");
}

TEST_F(Processes, WhatCannotRunSaysWhy) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer makes a fork of vfork, and the parent does not see why exec failed";
#endif
  std::ofstream(folder_ / "text") << "just text\n";
  chmod((folder_ / "text").c_str(), 0755);
  std::ofstream(folder_ / "script") << "#!/no/such/interpreter\n";
  chmod((folder_ / "script").c_str(), 0755);
  script("plain", "true", 0644);
  fs::create_directory(folder_ / "folder");
  for (const auto& [name, status, why] : {std::tuple{"text", 126, "Exec format error"},
                                          {"script", 127, "interpreter"},
                                          {"plain", 126, "Permission denied"},
                                          {"folder", 126, "Permission denied"}})
    try {
      const Child child({folder_ / name}, {}, PATH_job_keeper, Child::Clock::now() + 1h);
      FAIL() << name;
    } catch (const StartError& e) {
      EXPECT_EQ(e.status, status);
      EXPECT_NE(std::string(e.what()).find(why), std::string::npos) << e.what();
    }
}

TEST_F(Processes, ArgumentsAndTheWayItEndsArriveAsTheyAre) {
  Child child = start("printf '<%s>\\n' \"$@\"; echo oops >&2; exit 7", {"a b", "", "$(id)", "*"});
  const Said said = read_all(child);
  EXPECT_EQ(said.out, "<a b>\n<>\n<$(id)>\n<*>\noops\n");
  EXPECT_EQ(said.status, 7);
  Child killed = start("kill -9 $$");
  EXPECT_EQ(read_all(killed).status, 128 + SIGKILL);
}

TEST_F(Processes, HaveNoOtherDescriptors) {
  const int leak = fcntl(0, F_DUPFD, 20);  // not close-on-exec
  ASSERT_GE(leak, 20);
  Child child = start("readlink /proc/self/fd/0; exec ls /proc/self/fd");
  const Said said = read_all(child);
  close(leak);
  EXPECT_EQ(said.out, "/dev/null\n0\n1\n2\n3\n");  // the last is the folder that ls reads
}

TEST_F(Processes, SignalsAreAsForANewProgram) {
  sigset_t set, old;
  sigfillset(&set);
  pthread_sigmask(SIG_BLOCK, &set, &old);
  const auto before = signal(SIGPIPE, SIG_IGN);
  Child child = start("exec grep -E '^Sig(Blk|Ign)' /proc/self/status");
  signal(SIGPIPE, before);
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  EXPECT_EQ(read_all(child).out, "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
}

TEST_F(Processes, LinesAreWhole) {
  Child child = start("printf one; sleep 0.1; printf ' line\\n'; head -c 200000 /dev/zero | tr '\\0' x; printf last");
  std::string out;
  while (child.output() >= 0) {
    child.status();
    const std::string lines = child.read();
    EXPECT_TRUE(lines.empty() || lines.back() == '\n') << lines;
    out += lines;
  }
  EXPECT_EQ(out.substr(0, 9), "one line\n");
  EXPECT_TRUE(out.ends_with("last\n"));
  EXPECT_EQ(out.size(), 9 + 200'000u + 5 + 3) << "3 newlines of its own";
  EXPECT_EQ(out.find('\n', 9), 9 + Child::longest_line);
}

// A process of its own session in the background, as setsid or nohup make it, that has closed its pipes.
const std::string escape = "setsid sh -c 'echo $$; exec sleep 1000 >/dev/null 2>&1' & ";

TEST_F(Processes, WhatTheyStartedEndsWithThem) {
  Child child = start("sleep 1000 & echo $!; " + escape + "sleep 0.2; exit 3");
  const Said said = read_all(child);
  EXPECT_EQ(said.status, 3);
  std::istringstream pids(said.out);
  for (pid_t pid = 0, i = 0; i < 2; ++i) {
    ASSERT_TRUE(pids >> pid) << said.out;
    EXPECT_FALSE(multinode::testing::text_of("/proc/" + std::to_string(pid) + "/stat").size()) << pid;
  }
}

// `kill` in each of these ends the process and what escaped from its group.
class ProcessesAreKilled : public Processes {
 protected:
  void expect(const std::string& script, const std::function<void(Child&)>& kill, Child::Clock::time_point until) {
    std::optional<Child> child;
    child.emplace(std::vector<std::string>{this->script("job", script)}, environment_, PATH_job_keeper, until);
    std::string out;
    while (std::count(out.begin(), out.end(), '\n') < 2) out += child->read();
    std::istringstream pids(out);
    pid_t job = 0, its = 0;
    ASSERT_TRUE(pids >> job >> its) << out;
    EXPECT_EQ(job, child->pid());
    kill(*child);
    EXPECT_TRUE(ends(job));
    EXPECT_TRUE(ends(its));
    EXPECT_EQ(read_all(*child).status, 128 + SIGKILL);
  }
  const std::string family_ = "trap '' TERM; echo $$; " + escape + "sleep 1000; sleep 1000";
};

TEST_F(ProcessesAreKilled, ByTheirNode) {
  expect(
      family_, [](Child& child) { child.kill(); }, Child::Clock::now() + 1h);
}

TEST_F(ProcessesAreKilled, WhenTheyAreFrozen) {
  expect(
      family_,
      [](Child& child) {
        kill(child.pid(), SIGSTOP);
        child.kill();
      },
      Child::Clock::now() + 1h);
}

TEST_F(ProcessesAreKilled, WhenTheirLeaseEnds) {
  const auto start = Child::Clock::now();
  expect(
      family_,
      [&](Child& child) {
        std::this_thread::sleep_for(500ms);
        child.allow_until(start + 2s);
        EXPECT_TRUE(!child.status());
      },
      start + 1h);
  EXPECT_GE(Child::Clock::now(), start + 2s);
}

// The parent that dies is a fork of this test.
TEST_F(ProcessesAreKilled, WhenTheirNodeDies) {
  int ends_[2];
  ASSERT_EQ(pipe2(ends_, O_CLOEXEC), 0);
  const fs::path file = script("job", family_);
  const pid_t parent = fork();
  if (parent == 0) {
    Child child({file}, environment_, PATH_job_keeper, Child::Clock::now() + 1h);
    std::string out;
    while (std::count(out.begin(), out.end(), '\n') < 2) out += child.read();
    (void)!write(ends_[1], out.data(), out.size());
    raise(SIGKILL);
  }
  close(ends_[1]);
  std::string out;
  char byte = 0;
  while (read(ends_[0], &byte, 1) == 1) out += byte;
  close(ends_[0]);
  waitpid(parent, nullptr, 0);
  pid_t job = 0, its = 0;
  ASSERT_EQ(sscanf(out.c_str(), "%d\n%d", &job, &its), 2) << out;
  EXPECT_TRUE(ends(job));
  EXPECT_TRUE(ends(its));
}

}  // namespace process_test
