#include "cluster/outbox.hpp"

#include "cluster/cluster.pb.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>
#include <vector>

namespace outbox_test {

using cluster::Outbox;
using cluster::ToClient;

ToClient output(const std::string& text) {
  ToClient message;
  message.mutable_output()->set_text(text);
  return message;
}

TEST(Outbox, WritesAllInOrderBeforeItEnds) {
  std::vector<std::string> written;
  {
    Outbox<ToClient> outbox([&](const ToClient& message) {
      if (message.what_case() == ToClient::kOutput) written.push_back(message.output().text());
      return true;
    });
    for (int i = 0; i < 1000; ++i) outbox.put(output(std::to_string(i)));
  }
  ASSERT_EQ(written.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(written[static_cast<std::size_t>(i)], std::to_string(i));
}

TEST(Outbox, BeatsWhereThereIsNothingToSay) {
  std::promise<std::size_t> bytes;
  std::atomic<int> beats{0};
  Outbox<ToClient> outbox([&](const ToClient& message) {
    if (beats++ == 0) bytes.set_value(message.ByteSizeLong());
    return true;
  });
  auto first = bytes.get_future();
  ASSERT_EQ(first.wait_for(cluster::silence), std::future_status::ready);
  EXPECT_EQ(first.get(), 0u);
}

TEST(Outbox, OutputWaitsUpToItsLimitAndNothingElseIsLost) {
  std::promise<void> go;
  std::shared_future<void> gone = go.get_future().share();
  std::size_t outputs = 0, others = 0;
  {
    Outbox<ToClient> outbox([&](const ToClient& message) {
      gone.wait();
      ++(message.what_case() == ToClient::kOutput ? outputs : others);
      return true;
    });
    const ToClient large = output(std::string(1 << 20, 'x'));
    EXPECT_TRUE(outbox.put_output(large));
    EXPECT_TRUE(outbox.put_output(large));
    EXPECT_TRUE(outbox.put_output(large));
    EXPECT_FALSE(outbox.put_output(large));
    ToClient result;
    result.mutable_result()->set_status(1);
    outbox.put(result);
    go.set_value();
  }
  EXPECT_EQ(outputs, 3u);
  EXPECT_GE(others, 1u);
}

TEST(Outbox, WritesNothingMoreWhenTheCallIsOver) {
  std::atomic<int> writes{0};
  {
    Outbox<ToClient> outbox([&](const ToClient&) {
      ++writes;
      return false;
    });
    for (int i = 0; i < 10; ++i) outbox.put(output("x"));
  }
  EXPECT_EQ(writes, 1);
}

}  // namespace outbox_test
