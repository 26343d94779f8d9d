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

TEST(Outbox, OutputWaitsUpToItsLimitAndNothingElseIsLost) {
  std::promise<void> go;
  std::shared_future<void> gone = go.get_future().share();
  std::size_t outputs = 0, others = 0;
  {
    Outbox<FromNode> outbox([&](const FromNode& message) {
      gone.wait();
      ++(message.has_output() ? outputs : others);
      return true;
    });
    FromNode large = output(std::string(1 << 20, 'x'));
    for (int i = 0; i < 3; ++i) {
      FromNode copy = large;
      EXPECT_TRUE(outbox.put_output(copy));
    }
    EXPECT_FALSE(outbox.put_output(large));
    EXPECT_EQ(large.output().text().size(), 1u << 20) << "the caller still has it";
    FromNode end;
    end.mutable_ended()->set_status(1);
    outbox.put(end);
    go.set_value();
  }
  EXPECT_EQ(outputs, 3u);
  EXPECT_EQ(others, 1u);
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
