#include "ddp/sampler.hpp"
#include "ddp/philox.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

namespace {

using ddp::DistributedSampler;

// The known answers that come with the paper's own implementation.
TEST(Philox, KnownAnswers) {
  static_assert(ddp::philox({0, 0, 0, 0}, 0) == ddp::PhiloxWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  EXPECT_EQ(ddp::philox({~0u, ~0u, ~0u, ~0u}, ~0ull),
            (ddp::PhiloxWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(ddp::philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822),
            (ddp::PhiloxWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Sampler, EverySampleExactlyOnceInAnEpoch) {
  for (const std::size_t samples : {1u, 7u, 64u, 1001u})
    for (const std::size_t batch : {1u, 5u, 32u, 64u, 2000u})
      for (int size = 1; size <= 7; ++size) {
        std::vector<int> seen(samples);
        for (int rank = 0; rank < size; ++rank) {
          DistributedSampler sampler(samples, batch, rank, size, 3);
          sampler.set_epoch(2);
          for (std::size_t step = 0; step < sampler.steps(); ++step)
            for (const std::uint32_t sample : sampler.local_batch(step)) ++seen.at(sample);
        }
        EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), static_cast<std::ptrdiff_t>(samples))
            << samples << " in batches of " << batch << " on " << size;
      }
}

TEST(Sampler, TheGlobalBatchIsTheSameForEveryNumberOfRanks) {
  DistributedSampler alone(1001, 50, 0, 1, 9);
  alone.set_epoch(4);
  for (int size = 1; size <= 7; ++size)
    for (std::size_t step = 0; step < alone.steps(); ++step) {
      std::vector<std::uint32_t> joined;
      std::size_t least = 1000, most = 0;
      for (int rank = 0; rank < size; ++rank) {
        DistributedSampler sampler(1001, 50, rank, size, 9);
        sampler.set_epoch(4);
        const auto part = sampler.local_batch(step);
        joined.insert(joined.end(), part.begin(), part.end());
        least = std::min(least, part.size());
        most = std::max(most, part.size());
      }
      const auto whole = alone.local_batch(step);
      EXPECT_TRUE(std::equal(joined.begin(), joined.end(), whole.begin(), whole.end()));
      EXPECT_LE(most - least, 1u);
    }
  EXPECT_EQ(alone.steps(), 21u);
  EXPECT_EQ(alone.global_batch(20).size(), 1u) << "the last batch is uneven: 6 of 7 ranks get none of it";
}

// Exercise 1.
TEST(Sampler, SevenRanksAndAnUnevenLastBatch) {
  for (int rank = 0; rank < 7; ++rank) {
    const std::size_t part = DistributedSampler(60'000, 50'000, rank, 7, 1).local_batch(1).size();
    EXPECT_TRUE(part == 1428 || part == 1429) << part;
    EXPECT_EQ(DistributedSampler(60'000, 59'999, rank, 7, 1).local_batch(1).size(), rank == 6 ? 1u : 0u);
  }
}

// Exercise 2: the mean of the ranks' means is the mean of all only where the parts are equal.
TEST(Sampler, MeansOfMeansAreRightForEqualPartsOnly) {
  for (const std::size_t batch : {60u, 64u}) {
    double mean = 0, mean_of_means = 0;
    for (int rank = 0; rank < 3; ++rank) {
      const DistributedSampler sampler(batch, batch, rank, 3, 1);
      const auto part = sampler.local_batch(0);
      const double sum = std::accumulate(part.begin(), part.end(), 0.0);
      mean += sum / static_cast<double>(batch);
      mean_of_means += sum / static_cast<double>(part.size()) / 3;
    }
    if (batch % 3 == 0)
      EXPECT_NEAR(mean, mean_of_means, 1e-12);
    else
      EXPECT_GT(std::abs(mean - mean_of_means), 1e-3);
  }
}

TEST(Sampler, EpochAndSeedMakeTheOrder) {
  const auto order = [](std::uint64_t seed, std::uint32_t epoch) {
    DistributedSampler sampler(1000, 1000, 0, 1, seed);
    sampler.set_epoch(epoch);
    const auto all = sampler.global_batch(0);
    return std::vector<std::uint32_t>(all.begin(), all.end());
  };
  EXPECT_EQ(order(1, 1), order(1, 1));
  EXPECT_NE(order(1, 1), order(1, 2));
  EXPECT_NE(order(1, 1), order(2, 1));
}

// Each place of a permutation of 6 must see each sample equally often: chi-square with 25 degrees of freedom is above
// 60 with a probability of 1e-4; the seed is fixed.
TEST(Sampler, EveryOrderIsAsLikely) {
  constexpr int epochs = 6000;
  std::vector<int> counts(36);
  DistributedSampler sampler(6, 6, 0, 1, 5);
  for (std::uint32_t epoch = 0; epoch < epochs; ++epoch) {
    sampler.set_epoch(epoch);
    for (std::size_t place = 0; place < 6; ++place) ++counts[place * 6 + sampler.global_batch(0)[place]];
  }
  double chi_square = 0;
  for (const int count : counts) chi_square += (count - epochs / 6.0) * (count - epochs / 6.0) / (epochs / 6.0);
  EXPECT_LT(chi_square, 60);
}

TEST(Sampler, RefusesNonsense) {
  EXPECT_THROW(DistributedSampler(0, 1, 0, 1, 1), std::logic_error);
  EXPECT_THROW(DistributedSampler(1, 0, 0, 1, 1), std::logic_error);
  EXPECT_THROW(DistributedSampler(1, 1, 1, 1, 1), std::logic_error);
  EXPECT_THROW(DistributedSampler(10, 5, 0, 1, 1).local_batch(2), std::logic_error);
}

}  // namespace
