// Descriptors, signals, child processes.
#include <multinode/descriptor.hpp>

#include <gtest/gtest.h>

#include <array>

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

}  // namespace
