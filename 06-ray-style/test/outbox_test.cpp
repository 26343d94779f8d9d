#include "control-plane/outbox.hpp"

#include <testing/program_test.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <numeric>
#include <thread>
#include <vector>

namespace outbox_test {

using cluster::Outbox;

TEST(Outbox, WritesAllInOrderBeforeItEnds) {
  std::vector<int> all(1000), written;
  std::iota(all.begin(), all.end(), 0);
  {
    Outbox<int> outbox([&](int message) {
      written.push_back(message);
      return true;
    });
    for (const int message : all) outbox.put(message);
  }
  EXPECT_EQ(written, all);
}

// A beat does not wait behind output. Behind 4 MiB for a slow head it would come too late.
TEST(Outbox, BeatsBeforeTheMessagesThatWait) {
  enum Message { beat, output };
  std::promise<void> came;
  Outbox<Message> outbox(
      [&](Message message) {
        if (message == beat) came.set_value();
        if (message == output) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        return message != beat;
      },
      [] { return beat; });
  for (int i = 0; i < 100'000; ++i) outbox.put(output);
  EXPECT_EQ(came.get_future().wait_for(multinode::testing::patience), std::future_status::ready);
}

TEST(Outbox, WritesNothingMoreWhenTheCallIsOver) {
  std::atomic<int> writes{0};
  {
    Outbox<int> outbox([&](int) {
      ++writes;
      return false;
    });
    for (int i = 0; i < 10; ++i) outbox.put(i);
  }
  EXPECT_EQ(writes, 1);
}

}  // namespace outbox_test
