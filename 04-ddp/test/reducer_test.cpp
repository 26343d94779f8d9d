#include "ddp/reducer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <stdexcept>

namespace {

using ddp::ReducerOptions;

std::vector<std::size_t> last_to_first(std::size_t count) {
  std::vector<std::size_t> order(count);
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  return order;
}

ddp::BucketPlan plan_buckets(const std::vector<std::size_t>& counts, std::size_t bytes, const ReducerOptions& options) {
  return ddp::plan_buckets(counts, last_to_first(counts.size()), bytes, options);
}

std::vector<ddp::NamedBlock> parameters_of(const std::vector<std::size_t>& counts) {
  std::vector<ddp::NamedBlock> parameters;
  for (const std::size_t count : counts)
    parameters.push_back(
        {"p" + std::to_string(parameters.size()), {count}, {nullptr, count, multinode::DataType::float64}});
  return parameters;
}

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

  ddp::Peers peers() {
    return {[this](multinode::Block block, const char*) {
              started.push_back({static_cast<double*>(block.data), block.count});
              return multinode::Work(std::make_unique<Doubling>(started.back(), waited));
            },
            [](const std::string& text) { return text; }};
  }
};

struct Reducing : ::testing::Test {
  Recorder recorder;
  std::vector<std::size_t> counts{4, 3, 2, 1};
  std::vector<double> storage = std::vector<double>(10);
  // Buckets: parameter 3; parameters 2 and 1; parameter 0.
  ddp::Reducer<double> reducer{recorder.peers(), parameters_of(counts), storage, ReducerOptions{8, 40}};

  void write() {
    for (std::size_t i = 0; i < counts.size(); ++i)
      for (double& element : reducer.gradient(i)) element = static_cast<double>(i + 1);
  }
};

TEST_F(Reducing, ABucketStartsWhenItsLastGradientIsReady) {
  write();
  reducer.begin(8);
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
  reducer.wait();
  EXPECT_EQ(recorder.waited, 3);
  for (std::size_t i = 0; i < counts.size(); ++i)
    for (const double element : reducer.gradient(i)) EXPECT_EQ(element, 2 * static_cast<double>(i + 1) / 8);
}

TEST_F(Reducing, BucketsStartInOrderOfIndexWhateverTheOrderOfMarking) {
  std::vector<std::size_t> order{0, 1, 2, 3};
  do {
    recorder.started.clear();
    write();
    reducer.begin(1);
    for (const std::size_t i : order) reducer.mark_ready(i);
    reducer.wait();
    ASSERT_EQ(recorder.started.size(), 3u);
    for (std::size_t b = 0; b < 3; ++b)
      EXPECT_EQ(recorder.started[b].data(), storage.data() + reducer.plan().buckets[b].offset);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(Reducing, NothingStartsBeforeTheFirstBucket) {
  reducer.begin(1);
  for (const std::size_t i : {0u, 1u, 2u}) reducer.mark_ready(i);
  EXPECT_TRUE(recorder.started.empty());
  reducer.mark_ready(3);
  EXPECT_EQ(recorder.started.size(), 3u);
}

TEST_F(Reducing, MistakesAreErrorsAndNotHangs) {
  reducer.begin(1);
  reducer.mark_ready(3);
  EXPECT_THROW(reducer.mark_ready(3), std::logic_error) << "twice";
  EXPECT_THROW(reducer.wait(), std::logic_error) << "others are missing";
  EXPECT_THROW(reducer.mark_ready(4), std::out_of_range);
  EXPECT_THROW(ddp::Reducer<double>(recorder.peers(), parameters_of(counts), std::span(storage).first(9)),
               std::logic_error);
}

TEST_F(Reducing, StepsAreIndependent) {
  for (int step = 0; step < 3; ++step) {
    write();
    reducer.begin(2);
    for (const std::size_t i : {3u, 2u, 1u, 0u}) reducer.mark_ready(i);
    reducer.wait();
    EXPECT_EQ(reducer.gradient(0)[3], 1.0);
    EXPECT_EQ(reducer.gradient(3)[0], 4.0);
  }
  EXPECT_EQ(recorder.started.size(), 9u);
}

TEST(ReducerAlone, AveragesAndReducesNothing) {
  const std::vector<std::size_t> counts{2, 2};
  std::vector<float> storage(4);
  ddp::Reducer<float> reducer(ddp::Peers(), parameters_of(counts), storage);
  std::iota(storage.begin(), storage.end(), 1.0f);
  reducer.begin(4);
  reducer.mark_ready(0);
  reducer.mark_ready(1);
  reducer.wait();
  EXPECT_EQ(storage, (std::vector<float>{0.25f, 0.5f, 0.75f, 1.0f}));
}

TEST(ReducerOnADevice, ScalesAsItIsTold) {
  const std::vector<std::size_t> counts{3};
  std::vector<float> storage(3, 1.0f);
  ddp::Reducer<float> reducer(ddp::Peers(), parameters_of(counts), storage);
  std::size_t elements = 0;
  float by = 0;
  reducer.set_scale([&](std::span<float> block, float factor) {
    elements += block.size();
    by = factor;
  });
  reducer.begin(8);
  reducer.mark_ready(0);
  reducer.wait();
  EXPECT_EQ(elements, 3u) << "each element once";
  EXPECT_EQ(by, 0.125f);
}

}  // namespace
