#include "control-plane/child.hpp"

#include <testing/program_test.hpp>
#include <testing/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <sstream>

namespace process_test {

namespace fs = std::filesystem;
using cluster::Child;
using cluster::StartError;
using multinode::testing::ends;
using multinode::testing::error_text;
using multinode::testing::TemporaryFolder;
using namespace std::chrono_literals;

class Processes : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text, fs::perms mode = fs::perms::owner_all) const {
    folder_.write(name, text);
    fs::permissions(folder_ / name, mode);
  }
  Child start(const std::string& script, std::vector<std::string> arguments = {}) const {
    write("job", "#!/bin/sh\n" + script);
    arguments.insert(arguments.begin(), folder_ / "job");
    return Child(arguments, environment_, PATH_job_keeper, Child::Clock::now() + 1h);
  }

  struct Said {
    std::string out;
    int status = -1;
  };
  // All that a process writes until its end.
  static Said read_all(Child& child) {
    Said said;
    multinode::testing::soon([&] {
      said.status = child.status().value_or(-1);
      if (child.output() >= 0) said.out += child.read();
      return child.output() < 0 && said.status >= 0;
    });
    return said;
  }

  const TemporaryFolder folder_;
  const std::vector<std::string> environment_ = {"PATH=" + std::string(std::getenv("PATH"))};
};

TEST_F(Processes, OnlyWhatIsInTheJobFolderIsFound) {
  write("good", "");
  fs::create_symlink("/bin/true", folder_ / "link");  // allowed: its owner put it there
  fs::create_symlink("/nowhere", folder_ / "dangling");
  EXPECT_EQ(cluster::job_program(folder_.path(), "good"), folder_ / "good");
  EXPECT_EQ(cluster::job_program(folder_.path(), "link"), folder_ / "link");
  const auto refusal = [&](const std::string& name) {
    return error_text<StartError>([&] { cluster::job_program(folder_.path(), name); });
  };
  for (const char* name : {"absent", "dangling"})
    EXPECT_SAYS(refusal(name), "is not in the job folder " + folder_.path().string());
  refusal(std::string("good\0x", 6));
  for (const char* name : {"", "../", "..", "/bin/true", "folder/../good"})
    EXPECT_SAYS(refusal(name), "named without '/'");
}

TEST_F(Processes, AProgramThatCannotRunSaysWhy) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer makes a fork of vfork, and the parent does not see why exec failed";
#endif
  write("text", "just text");
  write("script", "#!/no/such/interpreter");
  write("plain", "#!/bin/sh", fs::perms::owner_read);
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
      EXPECT_SAYS(e.what(), why);
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

// The keeper also kills a frozen process, one that ignores SIGTERM, and one that has moved to a new session (setsid)
// and closed its pipes.
TEST_F(Processes, AreKilledByTheirNodeAndAtTheEndOfTheirLease) {
  Child::Clock::time_point until{};
  const std::function<void(Child&)> ways[] = {
      [](Child& child) { child.kill(); },
      [](Child& child) {
        kill(child.pid(), SIGSTOP);
        child.kill();
      },
      [&](Child& child) {
        until = Child::Clock::now() + 500ms;
        child.allow_until(until);
        EXPECT_FALSE(child.status());
      },
  };
  for (std::size_t i = 0; i < std::size(ways); ++i) {
    SCOPED_TRACE(i);
    Child child = start(
        "trap '' TERM; echo $$; setsid sh -c 'echo $$; exec sleep 1000 >/dev/null 2>&1' & sleep 1000; sleep 1000");
    std::string out;
    while (std::count(out.begin(), out.end(), '\n') < 2) out += child.read();
    std::istringstream pids(out);
    pid_t job = 0, its = 0;
    ASSERT_TRUE(pids >> job >> its) << out;
    EXPECT_EQ(job, child.pid());
    ways[i](child);
    EXPECT_TRUE(ends(job));
    EXPECT_TRUE(ends(its));
    EXPECT_GE(Child::Clock::now(), until);
    EXPECT_EQ(read_all(child).status, 128 + SIGKILL);
  }
}

}  // namespace process_test
