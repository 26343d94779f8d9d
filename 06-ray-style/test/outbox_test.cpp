#include "control-plane/outbox.hpp"

#include "control-plane/cluster.pb.h"

#include <testing/program_test.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

namespace outbox_test {

using cluster::FromNode;
using cluster::Outbox;

FromNode output(const std::string& text) {
  FromNode message;
  message.mutable_output()->set_text(text);
  return message;
}

TEST(Outbox, WritesAllInOrderBeforeItEnds) {
  std::vector<std::string> written;
  {
    Outbox<FromNode> outbox([&](const FromNode& message) {
      if (message.has_output()) written.push_back(message.output().text());
      return true;
    });
    for (int i = 0; i < 1000; ++i) outbox.put(output(std::to_string(i)));
  }
  ASSERT_EQ(written.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(written[static_cast<std::size_t>(i)], std::to_string(i));
}

// Also while output waits: a beat that stands behind 4 MiB for a slow head would come too late.
TEST(Outbox, BeatsBeforeTheMessagesThatWait) {
  std::promise<void> beat;
  Outbox<FromNode> outbox(
      [&, beats = 0](const FromNode& message) mutable {
        if (message.has_beat() && beats++ == 0) beat.set_value();
        if (message.has_output()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        return beats == 0;
      },
      [] {
        FromNode message;
        message.mutable_beat()->set_sent(1);
        return message;
      });
  for (int i = 0; i < 100'000; ++i) outbox.put(output("x"));
  EXPECT_EQ(beat.get_future().wait_for(multinode::testing::patience), std::future_status::ready);
}

TEST(Outbox, SaysHowManyMessagesWait) {
  std::promise<void> first, go;
  Outbox<FromNode> outbox([&, writes = 0](const FromNode&) mutable {
    if (writes++ == 0) {
      first.set_value();
      go.get_future().wait();
    }
    return true;
  });
  outbox.put(output("being written"));
  first.get_future().wait();
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(outbox.waiting(), i);
    outbox.put(output("waits"));
  }
  go.set_value();
}

TEST(Outbox, WritesNothingMoreWhenTheCallIsOver) {
  std::atomic<int> writes{0};
  {
    Outbox<FromNode> outbox([&](const FromNode&) {
      ++writes;
      return false;
    });
    for (int i = 0; i < 10; ++i) outbox.put(output("x"));
  }
  EXPECT_EQ(writes, 1);
}

}  // namespace outbox_test
