// Signals, child processes.
#include <multinode/base/descriptor.hpp>
#include <multinode/base/signals.hpp>
#include <multinode/process/child_process.hpp>
#include <multinode/process/process_tree.hpp>
#include <test/support/program_test.hpp>
#include <test/support/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <functional>
#include <future>
#include <string>
#include <system_error>
#include <vector>

namespace {

using namespace multinode;

bool is_blocked(int number) {
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  return sigismember(&mask, number) == 1;
}

TEST(Signals, AreReadAndTheMaskIsRestored) {
  ASSERT_FALSE(is_blocked(SIGUSR1));
  {
    Signals signals{SIGUSR1, SIGUSR2};
    EXPECT_TRUE(is_blocked(SIGUSR1) && is_blocked(SIGUSR2));
    EXPECT_FALSE(sigismember(&signals.before(), SIGUSR1));
    EXPECT_FALSE(signals.next());
    kill(getpid(), SIGUSR2);
    const auto info = signals.next();
    ASSERT_TRUE(info);
    EXPECT_EQ(info->ssi_signo, static_cast<unsigned>(SIGUSR2));
    EXPECT_EQ(info->ssi_pid, static_cast<unsigned>(getpid()));
    EXPECT_FALSE(signals.next());
    signals.unblock();
    EXPECT_FALSE(is_blocked(SIGUSR1));
    signals.block();
    kill(getpid(), SIGUSR1);  // would end this process if ~Signals did not discard it
  }
  EXPECT_FALSE(is_blocked(SIGUSR1));
}

TEST(Signals, CallAFunctionOnAnotherThread) {
  const Signals signals{SIGUSR1};
  std::promise<int> first, second;
  std::promise<int>* next = &first;
  std::jthread caller = signals.call([&](int number) { std::exchange(next, &second)->set_value(number); });
  kill(getpid(), SIGUSR1);
  EXPECT_EQ(first.get_future().get(), SIGUSR1);
  kill(getpid(), SIGUSR1);
  EXPECT_EQ(second.get_future().get(), SIGUSR1);
  caller = {};  // ends without a signal
  kill(getpid(), SIGUSR1);
  EXPECT_TRUE(signals.next());
}

// The output of a command, and how it ended.
std::string output_of(ChildCommand command, Ending& ending) {
  auto [from, to] = make_pipe();
  command.descriptors = {0, to.get(), 2};
  ChildProcess process(command);
  to.reset();
  std::string text;
  std::array<char, 256> bytes{};
  for (ssize_t count; (count = read(from.get(), bytes.data(), bytes.size())) > 0;)
    text.append(bytes.data(), static_cast<std::size_t>(count));
  ending = process.wait();
  EXPECT_FALSE(process.poll());
  return text;
}

TEST(ChildProcess, RunsAProgramAndReportsItsEnding) {
  Ending ending;
  const std::string large(100, 'a');
  EXPECT_EQ(output_of({.arguments = {"sh", "-c", "echo $A $0 $1; exit 3", "zero", "one two"},
                       .environment = std::vector<std::string>{"A=" + large, "B=b"}},
                      ending),
            large + " zero one two\n");
  EXPECT_EQ(ending.as_exit_status(), 3);
  EXPECT_TRUE(ending.failed());
  output_of({.arguments = {"any name", "-c", "kill -TERM $$"}, .file = "/bin/sh"}, ending);
  EXPECT_EQ(ending.signal, SIGTERM);
  EXPECT_EQ(ending.as_exit_status(), 128 + SIGTERM);
}

TEST(ChildProcess, HasTheRequestedSignals) {
  const auto before = signal(SIGUSR2, SIG_IGN);
  const ChildCommand grep{.arguments = {"grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"}};
  ChildCommand fresh = grep, masked = grep;
  fresh.default_signals = true;
  sigaddset(&masked.mask, SIGHUP);  // the first bit
  Ending ending;
  EXPECT_EQ(output_of(fresh, ending), "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
  EXPECT_EQ(output_of(masked, ending), "SigBlk:\t0000000000000001\nSigIgn:\t0000000000000800\n");
  signal(SIGUSR2, before);
}

TEST(ChildProcess, GetsOnlyItsDescriptors) {
  auto [from, to] = make_pipe();
  ASSERT_EQ(fcntl(from.get(), F_SETFD, 0), 0);  // as a library may leave it
  Ending ending;
  const std::string open = "/proc/self/fd/" + std::to_string(from.get());
  output_of({.arguments = {"test", "-e", open}}, ending);
  EXPECT_EQ(ending.status, 0);
  output_of({.arguments = {"test", "-e", open}, .only_these = true}, ending);
  EXPECT_EQ(ending.status, 1);
  // One that has its number already, and is closed at an exec.
  const Descriptor null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  for (const bool only_these : {false, true}) {
    ChildCommand command{.arguments = {"test", "-e", "/proc/self/fd/3"}, .only_these = only_these};
    const int kept = dup(3);  // -1: 3 was free
    ASSERT_EQ(dup3(null.get(), 3, O_CLOEXEC), 3);
    command.descriptors = {0, 1, 2, 3};
    EXPECT_EQ(ChildProcess(command).wait().status, 0) << only_these;
    if (kept >= 0) dup3(kept, 3, O_CLOEXEC);
    close(kept >= 0 ? kept : 3);
  }
}

// As after `trap '' CHLD` in a shell. The kernel then keeps no ending.
TEST(ChildProcess, EndsWhereSigchldWasIgnored) {
  const auto before = signal(SIGCHLD, SIG_IGN);
  ChildProcess process({.arguments = {"sh", "-c", "exit 3"}});
  EXPECT_EQ(process.wait().status, 3);
  ChildProcess reaped({.arguments = {"true"}});
  ASSERT_EQ(waitpid(reaped.pid(), nullptr, 0), reaped.pid());
  EXPECT_THROW(reaped.wait(), std::system_error);  // not an endless loop
  signal(SIGCHLD, before);
}

TEST(ChildProcess, AGroupIsKilledWithTheObject) {
  auto [from, to] = make_pipe();
  char byte = 0;
  {
    const ChildProcess process(
        {.arguments = {"sh", "-c", "sleep 60 & echo; wait"}, .descriptors = {0, to.get(), 2}, .own_group = true});
    to.reset();
    ASSERT_EQ(read(from.get(), &byte, 1), 1);
  }
  EXPECT_EQ(read(from.get(), &byte, 1), 0);  // the last writer, sleep, has ended
}

TEST(ChildProcess, AStartErrorHasItsReason) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer replaces vfork with fork: the child's error stays in its own memory";
#endif
  try {
    const ChildProcess process({.arguments = {"no-such-program"}});
    FAIL();
  } catch (const StartError& e) {
    EXPECT_EQ(e.status, 127);
    EXPECT_EQ(e.error, ENOENT);
    EXPECT_STREQ(e.what(), "cannot start 'no-such-program': No such file or directory");
  }
  EXPECT_THROW(ChildProcess({.arguments = {"x"}, .file = "/"}), StartError);
}

// A keeper in a separate process, so that the orphans of its job become its children and not this test's.
int keeper_of(const std::string& job, const std::function<bool(std::vector<pid_t>)>& expected) {
  const pid_t keeper = fork();
  if (keeper == 0) {
    adopt_orphans();
    ChildProcess({.arguments = {"sh", "-c", job}}).wait();
    const bool as_expected = expected(descendants());
    while (reap_children()) kill_descendants(), usleep(1000);
    _exit(as_expected && descendants().empty() ? 0 : 1);
  }
  int status = -1;
  waitpid(keeper, &status, 0);
  return status;
}

TEST(ProcessTree, KeepsOrphansOfOtherSessions) {
  // Their parent has ended, and they are in a session of their own.
  const multinode::testing::TemporaryFolder folder;
  const std::string pids = folder / "pids";
  const std::string job = "(setsid sh -c 'sleep 1000 & echo $! $$ >" + pids +
                          "; exec sleep 1000' &); while ! test -s " + pids + "; do sleep 0.01; done";
  EXPECT_EQ(keeper_of(job, [](const std::vector<pid_t>& left) { return left.size() == 2; }), 0);
  std::ifstream file(pids);
  int seen = 0;
  for (pid_t pid = 0; file >> pid; ++seen) EXPECT_TRUE(kill(pid, 0) != 0 && errno == ESRCH) << pid;
  EXPECT_EQ(seen, 2);
}

TEST(ProcessTree, HasNoDescendantsThatHaveEnded) {
  EXPECT_EQ(keeper_of("true", [](const std::vector<pid_t>& left) { return left.empty(); }), 0);
}

}  // namespace
