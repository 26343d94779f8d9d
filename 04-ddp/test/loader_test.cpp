#include "data/loader.hpp"

#include <testing/says.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <numeric>
#include <string>

namespace loader_test {

using Batch = std::vector<std::size_t>;
using Loader = data::Loader<Batch>;

void fill(std::size_t step, Batch& batch) {
  batch.resize(100);
  std::iota(batch.begin(), batch.end(), 1000 * step);
}

TEST(Loader, GivesEveryStepOnceAndInOrder) {
  Loader loader(7, 500, fill);
  for (std::size_t step = 7; step < 500; ++step) {
    const Batch& batch = loader.next();
    ASSERT_EQ(batch.size(), 100u);
    ASSERT_EQ(batch.front(), 1000 * step);
    ASSERT_EQ(batch.back(), 1000 * step + 99);
  }
  EXPECT_THROW(loader.next(), std::logic_error);
}

// The batch that the training works on, and two more; then the thread waits.
TEST(Loader, MakesTwoAheadAndLeavesTheBatchInUseAlone) {
  std::atomic<std::size_t> filled = 0;
  std::promise<void> two, five;
  std::vector<Batch*> seen;  // read after the promise that follows its last change
  const auto counting = [&](std::size_t step, Batch& batch) {
    fill(step, batch);
    seen.push_back(&batch);
    if (++filled == 2) two.set_value();
    if (filled == 5) five.set_value();
  };
  Loader loader(0, 100, counting);
  two.get_future().wait();
  EXPECT_EQ(filled, 2u) << "made without being asked for";
  loader.next();
  loader.next();
  const Batch& used = loader.next();
  five.get_future().wait();
  for (int i = 0; i < 1000; ++i) {
    std::this_thread::yield();
    ASSERT_EQ(filled, 5u) << "step 2 is in use, 3 and 4 are ready";
  }
  EXPECT_EQ(seen[2], &used);
  EXPECT_NE(seen[3], &used);
  EXPECT_NE(seen[4], &used);
  EXPECT_EQ(seen[3], seen[0]) << "memory is used again";
  EXPECT_EQ(used.front(), 2000u);
}

TEST(Loader, CarriesAnExceptionToItsStep) {
  Loader loader(0, 10, [](std::size_t step, Batch& batch) {
    if (step == 3) throw std::runtime_error("step 3 is damaged");
    fill(step, batch);
  });
  for (std::size_t step = 0; step < 3; ++step) EXPECT_EQ(loader.next().front(), 1000 * step);
  EXPECT_EQ(multinode::testing::error_text<std::runtime_error>([&] { loader.next(); }), "step 3 is damaged");
}

// The thread has not begun, waits for room, is in the middle of a fill, or has ended with an exception that nobody
// fetched: the destructor returns in every case, and does not have the other steps made first.
TEST(Loader, IsDestroyedAtAnyTime) {
  for (int round = 0; round < 400; ++round) {
    std::atomic<std::size_t> filled = 0;
    {
      Loader loader(0, 1'000'000'000, [&](std::size_t step, Batch& batch) {
        fill(step, batch);
        if (++filled == 2 && round % 4 == 3) throw std::runtime_error("unseen");
      });
      if (round % 4 == 1 || round % 4 == 3)
        while (filled < 2) std::this_thread::yield();
      if (round % 4 == 2) loader.next();
    }
    EXPECT_LE(filled, 3u);
  }
}

}  // namespace loader_test
