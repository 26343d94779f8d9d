#include "ddp/reducer.hpp"

#include <test/support/says.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>

namespace reducer_test {

using ddp::plan_buckets;
using ddp::ReducerOptions;

std::vector<ddp::NamedBlock> parameters_of(const std::vector<std::size_t>& counts) {
  std::vector<ddp::NamedBlock> parameters;
  for (const std::size_t count : counts)
    parameters.push_back(
        {"p" + std::to_string(parameters.size()), {count}, {nullptr, count, multinode::DataType::float64}});
  return parameters;
}

TEST(Buckets, CoverTheStorageInReverseOrder) {
  const std::vector<std::size_t> counts{3, 0, 10, 1, 7, 2, 2};
  const ddp::BucketPlan plan = plan_buckets(counts, 4, {8, 32, 1});
  EXPECT_EQ(plan.bucket, (std::vector<std::size_t>{3, 3, 2, 2, 1, 1, 0}));
  EXPECT_EQ(plan.size, 25u);
  std::size_t at = 0;
  for (std::size_t i = counts.size(); i-- > 0; at += counts[i]) EXPECT_EQ(plan.offset[i], at) << i;
}

// The perceptron's output layer has 10 biases: without padding all that lies behind them is 40 bytes off.
TEST(Buckets, BeginAtMultiplesOfTheAlignment) {
  const std::vector<std::size_t> counts{784 * 512, 512, 512 * 512, 512, 512 * 10, 10};
  for (const std::size_t bytes : {4, 8}) {
    const ddp::BucketPlan plan = plan_buckets(counts, bytes, {});
    std::size_t end = 0;
    for (std::size_t i = counts.size(); i-- > 0; end = plan.offset[i] + counts[i]) {
      EXPECT_EQ(plan.offset[i] * bytes % 256, 0u) << i;
      EXPECT_GE(plan.offset[i], end) << i;
      EXPECT_LT(plan.offset[i], end + 256 / bytes) << i;
    }
    end = 0;
    for (const auto& bucket : plan.buckets) {
      EXPECT_EQ(bucket.offset, end);
      EXPECT_EQ(bucket.count * bytes % 256, 0u) << "NCCL's last pack is a whole one, too";
      end += bucket.count;
    }
    EXPECT_EQ(plan.size, end);
  }
}

// Stands in for a communicator of two ranks, the other of which has the same gradients: writes down what it was asked
// to do, in which order, and doubles the block when it is waited for.
struct Recorder {
  struct Doubling : multinode::Work::State {
    Doubling(multinode::Block block, int& waited) : block_(block), waited_(waited) {}
    void wait() override {
      multinode::combine(block_.type, multinode::Reduction::sum, block_.data, block_.data, block_.data, block_.count);
      ++waited_;
    }
    multinode::Block block_;
    int& waited_;
  };
  std::vector<multinode::Block> started;
  int waited = 0;

  ddp::AllReduce all_reduce() {
    return [this](multinode::Block block, std::size_t, const char*) {
      started.push_back(block);
      return multinode::Work(std::make_unique<Doubling>(block, waited));
    };
  }
};

struct Reducing : ::testing::Test {
  Recorder recorder;
  std::vector<std::size_t> counts{4, 3, 2, 1};
  std::vector<double> storage = std::vector<double>(10);
  std::optional<ddp::Reducer<double>> made;

  // Buckets: parameter 3; parameters 2 and 1; parameter 0.
  ddp::Reducer<double>& make(ReducerOptions options = {}) {
    options.first_bucket_bytes = 8;
    options.bucket_bytes = 40;
    options.alignment = 1;
    const ddp::AllReduce all_reduce = recorder.all_reduce();
    return made.emplace(options.wrap ? options.wrap(all_reduce) : all_reduce, parameters_of(counts), storage, options);
  }
  ddp::Reducer<double>& reducer = make();
};

TEST_F(Reducing, MistakesAreErrorsAndNotHangs) {
  const auto error_of = [](const auto& call) { return multinode::testing::error_text<std::logic_error>(call); };
  EXPECT_EQ(error_of([&] { reducer.mark_ready(3); }), "Reducer::mark_ready() before begin() or accumulate()");
  reducer.accumulate();
  EXPECT_EQ(error_of([&] { reducer.begin(1); }), "Reducer::begin() before the wait() of the pass before");
  for (std::size_t i = 0; i < 4; ++i) reducer.mark_ready(i);
  reducer.wait();
  EXPECT_EQ(error_of([&] { reducer.wait(); }), "Reducer::wait() before begin() or accumulate()");
  EXPECT_FALSE(reducer.reduced());
  reducer.begin(1);
  EXPECT_EQ(error_of([&] { reducer.accumulate(); }), "Reducer::accumulate() before the wait() of the pass before");
  reducer.mark_ready(3);
  EXPECT_THROW(reducer.mark_ready(3), std::logic_error) << "twice";
  EXPECT_EQ(error_of([&] { reducer.wait(); }), "Reducer: the gradient of 'p0' was not marked ready in this pass");
  EXPECT_THROW(reducer.mark_ready(4), std::out_of_range);
  EXPECT_THROW(ddp::Reducer<double>(recorder.all_reduce(), parameters_of(counts), std::span(storage).first(9)),
               std::logic_error);
}

TEST_F(Reducing, WhatIsUnderWayIsWaitedForBeforeTheStorageGoes) {
  reducer.begin(1);
  for (const std::size_t i : {3, 2, 1}) reducer.mark_ready(i);
  EXPECT_EQ(recorder.waited, 0);
  made.reset();
  EXPECT_EQ(recorder.waited, 2);
}

// Every place, in blocks of every length near the 32 that are looked at together.
TEST(Finite, IsSeenEverywhere) {
  for (const std::size_t count : {1u, 31u, 32u, 33u, 100u}) {
    std::vector<float> storage(count, std::numeric_limits<float>::max());
    const std::vector<std::size_t> counts{count};
    const auto step = [&] {
      ddp::Reducer<float> reducer(ddp::AllReduce(), parameters_of(counts), storage, {.alignment = 1});
      reducer.begin(1);
      reducer.mark_ready(0);
      reducer.wait();
    };
    EXPECT_NO_THROW(step());
    storage[0] = std::numeric_limits<float>::denorm_min();
    EXPECT_NO_THROW(step());
    for (std::size_t i = 0; i < count; ++i) {
      const float before = std::exchange(storage[i], i % 2 ? NAN : -INFINITY);
      EXPECT_THROW(step(), std::runtime_error) << i << " of " << count;
      storage[i] = before;
    }
  }
}

struct Compressed : Reducing, ::testing::WithParamInterface<ddp::Compression> {
  const bool is_float16 = GetParam() == ddp::Compression::float16;
  const double u = is_float16 ? 0x1p-11 : 0x1p-8, e = is_float16 ? 0x1p-25 : 0x1p-134;
};

// Two equal ranks.
TEST_P(Compressed, TheErrorStaysWithinItsBound) {
  std::mt19937_64 random(5);
  std::normal_distribution<double> normal;
  for (const std::size_t divisor : {1u, 2u, 3u, 1000u, 1024u, 1'000'000u}) {
    counts = {5000};
    storage.resize(5000);
    Recorder other;
    ddp::Reducer<double> big(ddp::compressed(GetParam())(other.all_reduce()), parameters_of(counts), storage,
                             {.alignment = 1});
    // From numbers that are small in float16 to sums of large batches, which are above its largest.
    const auto scale = static_cast<double>(divisor) * 10;
    for (double& x : storage) x = normal(random) * scale * std::exp2(-static_cast<double>(random() % 30));
    const std::vector<double> before = storage;
    big.begin(divisor);
    big.mark_ready(0);
    big.wait();
    EXPECT_EQ(other.started.at(0).type, is_float16 ? multinode::DataType::float16 : multinode::DataType::bfloat16);
    double largest = 0;
    for (std::size_t i = 0; i < storage.size(); ++i) {
      const double mean = 2 * before[i] / static_cast<double>(divisor);
      const auto [relative, absolute] = ddp::error_bound(GetParam(), 2);
      const double bound = relative * std::abs(mean) + absolute;
      EXPECT_LE(std::abs(storage[i] - mean), bound) << before[i] << " / " << divisor;
      largest = std::max(largest, std::abs(storage[i] - mean) / bound);
    }
    EXPECT_GT(largest, 0.2) << "the bound is no wider than it must be";
  }
}

TEST_P(Compressed, ASumThatDoesNotFitIsNamed) {
  make({.wrap = ddp::compressed(GetParam())});
  storage.assign(10, 1);
  reducer.gradient(1)[2] = 40'000;
  reducer.begin(1);
  for (const std::size_t i : {0, 1, 2, 3}) reducer.mark_ready(i);
  if (!is_float16) return reducer.wait();
  EXPECT_EQ(multinode::testing::error_text<std::exception>([&] { reducer.wait(); }),
            "all_reduce of bucket 1: the sum is not finite in float16; bfloat16 has the range of float");
}

INSTANTIATE_TEST_SUITE_P(To, Compressed, ::testing::Values(ddp::Compression::float16, ddp::Compression::bfloat16),
                         [](const auto& info) {
                           return info.param == ddp::Compression::float16 ? "float16" : "bfloat16";
                         });

}  // namespace reducer_test
