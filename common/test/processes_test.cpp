// Descriptors, signals, child processes.
#include <multinode/descriptor.hpp>
#include <multinode/signals.hpp>

#include <gtest/gtest.h>

#include <array>
#include <future>
#include <string>

namespace {

using namespace multinode;

bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

TEST(Descriptor, ClosesItsFileOnce) {
  Descriptor first(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int number = first.get();
  ASSERT_TRUE(first && is_open(number));
  Descriptor second = std::move(first);
  EXPECT_TRUE(is_open(number));
  second = Descriptor();
  EXPECT_FALSE(second || is_open(number));
  {
    const Descriptor third(open("/dev/null", O_RDONLY | O_CLOEXEC));
    ASSERT_EQ(third.get(), number);
  }
  EXPECT_FALSE(is_open(number));
  Descriptor released(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const Descriptor owner(released.release());
  EXPECT_FALSE(released);
  EXPECT_TRUE(is_open(owner.get()));
}

TEST(Pipe, EndsWhenItsLastWriterIsGone) {
  auto [from, to] = make_pipe();
  ASSERT_EQ(write(to.get(), "abc", 3), 3);
  std::array<char, 8> bytes{};
  EXPECT_EQ(read(from.get(), bytes.data(), bytes.size()), 3);
  to.reset();
  EXPECT_EQ(read(from.get(), bytes.data(), bytes.size()), 0);
  EXPECT_EQ(fcntl(from.get(), F_GETFD), FD_CLOEXEC);
}

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
    kill(getpid(), SIGUSR1);  // would end this process, were it not dropped
  }
  EXPECT_FALSE(is_blocked(SIGUSR1));
}

TEST(Signals, CallAFunctionOnAThreadOfItsOwn) {
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

TEST(QuietThread, GetsNoSignals) {
  bool quiet = false;
  quiet_thread([&] { quiet = is_blocked(SIGTERM) && is_blocked(SIGUSR1); }).join();
  EXPECT_TRUE(quiet);
  EXPECT_FALSE(is_blocked(SIGTERM));
}

}  // namespace
