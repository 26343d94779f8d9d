#include "ddp/reducer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <stdexcept>

namespace {

using ddp::plan_buckets;
using ddp::ReducerOptions;

TEST(Buckets, ThePerceptronsTwo) {
  // 784-512-512-10 in float: the first bucket closes behind the weights of layer 2, so that they travel while the
  // gradient of layer 1, the largest product of the backward pass, is computed.
  const std::vector<std::size_t> counts{784 * 512, 512, 512 * 512, 512, 512 * 10, 10};
  const ddp::BucketPlan plan = plan_buckets(counts, 4, {});
  ASSERT_EQ(plan.buckets.size(), 2u);
  EXPECT_EQ(plan.bucket, (std::vector<std::size_t>{1, 1, 0, 0, 0, 0}));
  EXPECT_EQ(plan.buckets[0].count, 10u + 5120 + 512 + 262144);
  EXPECT_EQ(plan.buckets[1].offset, plan.buckets[0].count);
  EXPECT_EQ(plan.buckets[1].count, 512u + 401408);
}

TEST(Buckets, CoverTheStorageInReverseOrder) {
  const std::vector<std::size_t> counts{3, 0, 10, 1, 7, 2, 2};
  const ddp::BucketPlan plan = plan_buckets(counts, 4, {8, 32});
  std::size_t offset = 0, parameters = 0;
  for (const auto& bucket : plan.buckets) {
    EXPECT_EQ(bucket.offset, offset);
    EXPECT_GT(bucket.parameters, 0u);
    offset += bucket.count;
    parameters += bucket.parameters;
  }
  EXPECT_EQ(offset, 25u);
  EXPECT_EQ(parameters, counts.size());
  std::size_t at = 0;
  for (std::size_t i = counts.size(); i-- > 0; at += counts[i]) EXPECT_EQ(plan.offset[i], at) << i;
  EXPECT_EQ(plan.bucket, (std::vector<std::size_t>{3, 3, 2, 2, 1, 1, 0}));
}

TEST(Buckets, OneForEachParameterAndOneForAll) {
  const std::vector<std::size_t> counts{5, 5, 5};
  EXPECT_EQ(plan_buckets(counts, 4, {1, 1}).buckets.size(), 3u);
  EXPECT_EQ(plan_buckets(counts, 4, {1000, 1000}).buckets.size(), 1u);
  EXPECT_EQ(plan_buckets({}, 4, {}).buckets.size(), 0u);
}

// Stands in for a communicator: writes down what it was asked to do, in which order, and doubles the block when it is
// waited for, as the sum of two equal ranks would.
struct Recorder {
  struct Doubling : multinode::Work::State {
    Doubling(std::span<double> block, int& waited) : block_(block), waited_(waited) {}
    void wait() override {
      for (double& element : block_) element *= 2;
      ++waited_;
    }
    std::span<double> block_;
    int& waited_;
  };
  std::vector<std::span<double>> started;
  int waited = 0;

  ddp::Reducer<double>::AllReduce all_reduce() {
    return [this](std::span<double> block) {
      started.push_back(block);
      return multinode::Work(std::make_unique<Doubling>(block, waited));
    };
  }
};

struct Reducing : ::testing::Test {
  Recorder recorder;
  std::vector<std::size_t> counts{4, 3, 2, 1};
  std::vector<double> storage = std::vector<double>(10);
  // Buckets: parameter 3; parameters 2 and 1; parameter 0.
  ddp::Reducer<double> reducer{recorder.all_reduce(), counts, storage, ReducerOptions{8, 40}};

  void write() {
    for (std::size_t i = 0; i < counts.size(); ++i)
      for (double& element : reducer.gradient(i)) element = static_cast<double>(i + 1);
  }
};

TEST_F(Reducing, ABucketStartsWhenItsLastGradientIsReady) {
  write();
  reducer.mark_ready(3);
  ASSERT_EQ(recorder.started.size(), 1u);
  EXPECT_EQ(recorder.started[0].data(), reducer.gradient(3).data()) << "the gradient's own memory, no copy";
  reducer.mark_ready(2);
  EXPECT_EQ(recorder.started.size(), 1u);
  reducer.mark_ready(1);
  ASSERT_EQ(recorder.started.size(), 2u);
  EXPECT_EQ(recorder.started[1].size(), 5u);
  EXPECT_EQ(recorder.waited, 0) << "nothing is waited for in the backward pass";
  reducer.mark_ready(0);
  reducer.wait(8);
  EXPECT_EQ(recorder.waited, 3);
  for (std::size_t i = 0; i < counts.size(); ++i)
    for (const double element : reducer.gradient(i)) EXPECT_EQ(element, 2 * static_cast<double>(i + 1) / 8);
}

TEST_F(Reducing, BucketsStartInOrderOfIndexWhateverTheOrderOfMarking) {
  std::vector<std::size_t> order{0, 1, 2, 3};
  do {
    recorder.started.clear();
    write();
    for (const std::size_t i : order) reducer.mark_ready(i);
    reducer.wait(1);
    ASSERT_EQ(recorder.started.size(), 3u);
    for (std::size_t b = 0; b < 3; ++b)
      EXPECT_EQ(recorder.started[b].data(), storage.data() + reducer.plan().buckets[b].offset);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(Reducing, NothingStartsBeforeTheFirstBucket) {
  for (const std::size_t i : {0u, 1u, 2u}) reducer.mark_ready(i);
  EXPECT_TRUE(recorder.started.empty());
  reducer.mark_ready(3);
  EXPECT_EQ(recorder.started.size(), 3u);
}

TEST_F(Reducing, MistakesAreErrorsAndNotHangs) {
  reducer.mark_ready(3);
  EXPECT_THROW(reducer.mark_ready(3), std::logic_error) << "twice";
  EXPECT_THROW(reducer.wait(1), std::logic_error) << "others are missing";
  EXPECT_THROW(reducer.mark_ready(4), std::out_of_range);
  EXPECT_THROW(ddp::Reducer<double>(recorder.all_reduce(), counts, std::span(storage).first(9)), std::logic_error);
}

TEST_F(Reducing, StepsAreIndependent) {
  for (int step = 0; step < 3; ++step) {
    write();
    for (const std::size_t i : {3u, 2u, 1u, 0u}) reducer.mark_ready(i);
    reducer.wait(2);
    EXPECT_EQ(reducer.gradient(0)[3], 1.0);
    EXPECT_EQ(reducer.gradient(3)[0], 4.0);
  }
  EXPECT_EQ(recorder.started.size(), 9u);
}

TEST(ReducerAlone, AveragesAndReducesNothing) {
  const std::vector<std::size_t> counts{2, 2};
  std::vector<float> storage(4);
  ddp::Reducer<float> reducer(ddp::Reducer<float>::AllReduce(), counts, storage);
  std::iota(storage.begin(), storage.end(), 1.0f);
  reducer.mark_ready(0);
  reducer.mark_ready(1);
  reducer.wait(4);
  EXPECT_EQ(storage, (std::vector<float>{0.25f, 0.5f, 0.75f, 1.0f}));
}

TEST(ReducerOnADevice, ScalesAsItIsTold) {
  const std::vector<std::size_t> counts{3};
  std::vector<float> storage(3, 1.0f);
  ddp::Reducer<float> reducer(ddp::Reducer<float>::AllReduce(), counts, storage);
  std::size_t elements = 0;
  float by = 0;
  reducer.set_scale([&](std::span<float> block, float factor) {
    elements += block.size();
    by = factor;
  });
  reducer.mark_ready(0);
  reducer.wait(8);
  EXPECT_EQ(elements, 3u) << "each element once";
  EXPECT_EQ(by, 0.125f);
}

}  // namespace
