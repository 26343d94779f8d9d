// Processes: what they start ends, however it behaves.
#include "process.hpp"

#include <test/support/program_test.hpp>
#include <test/support/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <sys/ptrace.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>

namespace image_check::process_test {

using multinode::testing::ends;
using multinode::testing::soon;
using multinode::testing::TemporaryFolder;
using multinode::testing::text_of;
using namespace std::chrono_literals;

Outcome run(const Command& command, const TemporaryFolder& folder, const Variables& variables = {}) {
  return Processes(command, variables, folder / "log", 60s).end();
}
Command shell(const std::string& text) { return {"sh", "-c", text}; }
Command sleeper(const std::filesystem::path& pid_file) {
  return shell("echo $$ >" + pid_file.string() + "; exec sleep 60");
}

pid_t written_pid(const std::filesystem::path& path) {
  if (!soon([&] { return text_of(path).ends_with('\n'); })) throw std::runtime_error("nobody wrote " + path.string());
  return std::stoi(text_of(path));
}

TEST(Processes, StatusAndOutput) {
  const TemporaryFolder folder;
  EXPECT_EQ(run(shell("echo out; echo err >&2; exit 3"), folder).exit_status, 3);
  EXPECT_EQ(text_of(folder / "log"), "out\nerr\n");
  EXPECT_EQ(run(shell("kill -9 $$"), folder).exit_status, 128 + SIGKILL);
  EXPECT_EQ(run(shell("exit $N"), folder, {{"N", "5"}}).exit_status, 5);
  EXPECT_EQ(run({"/nowhere/program"}, folder).exit_status, 127);
  EXPECT_NE(text_of(folder / "log").find("cannot start '/nowhere/program': no such file"), std::string::npos);
  EXPECT_EQ(run(shell("sleep 0.2 & exit 0"), folder).left_over, 0);  // it has a moment to end
  const auto before = signal(SIGCHLD, SIG_IGN);                      // by `trap '' CHLD` in a shell
  EXPECT_EQ(run(shell("exit 4"), folder).exit_status, 4);
  signal(SIGCHLD, before);
}

TEST(Processes, DeadlineEndsWhatIgnoresTermination) {
  const TemporaryFolder folder;
  const auto outcome =
      Processes(shell("trap '' TERM; while :; do sleep 1; done"), {}, folder / "log", 300ms, {.terminated = 500ms})
          .wait(100s)
          .value();
  EXPECT_TRUE(outcome.timed_out);
  EXPECT_GE(outcome.seconds, 500ms);
  EXPECT_EQ(outcome.stuck, 0);
  EXPECT_LT(outcome.seconds, 50s);
}

// Two endless loops share a CPU; one that sleeps needs none, and beside one that is stopped nothing counts.
TEST(Processes, TellWhatWaitsForACpuFromWhatHangs) {
  const TemporaryFolder folder;
  if (text_of("/proc/self/schedstat").empty()) GTEST_SKIP() << "the kernel does not count how long threads wait";
  const std::string loop = "while :; do :; done", file = folder / "started",
                    on_one = "taskset -pc $(taskset -pc $$ | sed 's/.*[ ,-]//') $$; echo >" + file + "; ";
  const auto waited = [&](const std::string& text) {
    std::filesystem::remove(file);
    Processes one(shell(on_one + text), {}, folder / "log", 60s);
    soon([&] { return !text_of(file).empty(); });
    one.wait(3s);
    one.stop();
    return one.end().waited_for_cpus;
  };
  EXPECT_GE(waited(loop + " & " + loop), 1.5);
  EXPECT_LT(waited("sleep 60"), 1.5);
  EXPECT_EQ(waited(loop + " & " + loop + " & kill -STOP $!; wait"), 0);
}

// A traced process that is killed waits in the kernel for its tracer, as one in state D waits for a disk or a network.
TEST(Processes, WhatCannotBeKilledDoesNotHoldUpTheOutcome) {
  const TemporaryFolder folder;
  const auto pid_file = folder / "pid";
  Processes one(sleeper(pid_file), {}, folder / "log", 60s, {500ms, 500ms});
  const pid_t process = written_pid(pid_file);
  if (ptrace(PTRACE_SEIZE, process, nullptr, PTRACE_O_TRACEEXIT) != 0)
    GTEST_SKIP() << "processes cannot be traced here";
  one.stop();
  const auto outcome = one.wait(30s);
  int status = 0;
  waitpid(process, &status, __WALL);
  ptrace(PTRACE_CONT, process, nullptr, nullptr);  // to its end
  ASSERT_TRUE(outcome) << "no outcome in 30 s";
  EXPECT_EQ(outcome->stuck, 1);
  EXPECT_TRUE(ends(process));
}

TEST(Processes, NoDescendantStays) {
  const TemporaryFolder folder;
  const auto pid_file = folder / "pid";
  const auto outcome = run(shell("setsid sh -c 'echo $$ >" + pid_file.string() +
                                 "; trap \"\" TERM HUP; while :; do sleep 1; done' & until [ -s " + pid_file.string() +
                                 " ]; do sleep 0.01; done"),
                           folder);
  EXPECT_EQ(outcome.exit_status, 0);
  EXPECT_FALSE(outcome.timed_out);
  EXPECT_GE(outcome.left_over, 1);
  EXPECT_TRUE(ends(written_pid(pid_file)));
}

TEST(Processes, EndWithTheirObject) {
  const TemporaryFolder folder;
  const auto pid_file = folder / "pid";
  {
    Processes one(sleeper(pid_file), {}, folder / "log", 60s);
    written_pid(pid_file);
    EXPECT_FALSE(one.wait(10ms));
  }
  EXPECT_TRUE(ends(written_pid(pid_file)));
}

TEST(ShellWords, CanBePasted) {
  EXPECT_EQ(shell_words({{"A", "b c"}}, Command{"prog", "it's", "", "-x=1"}), "A='b c' prog 'it'\\''s' '' -x=1");
}

}  // namespace image_check::process_test
