#include "ddp/sampler.hpp"
#include "ddp/philox.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace sampler_test {

using ddp::DistributedSampler;
using ddp::Remainder;

// All samples of an epoch as the ranks get them: step by step, and in a step rank by rank.
std::vector<std::uint32_t> epoch_of(std::size_t samples, std::size_t batch, int size, Remainder remainder,
                                    std::uint32_t epoch = 2) {
  std::vector<DistributedSampler> samplers;
  for (int rank = 0; rank < size; ++rank) {
    samplers.emplace_back(samples, batch, rank, size, 3, remainder);
    samplers.back().set_epoch(epoch);
  }
  std::vector<std::uint32_t> all;
  for (std::size_t step = 0; step < samplers[0].steps(); ++step)
    for (DistributedSampler& sampler : samplers) {
      const auto part = sampler.local_batch(step);
      all.insert(all.end(), part.begin(), part.end());
    }
  return all;
}

// The known answers that come with the paper's own implementation.
TEST(Philox, KnownAnswers) {
  static_assert(ddp::philox({0, 0, 0, 0}, 0) == ddp::PhiloxWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  EXPECT_EQ(ddp::philox({~0u, ~0u, ~0u, ~0u}, ~0ull),
            (ddp::PhiloxWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(ddp::philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822),
            (ddp::PhiloxWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

constexpr std::size_t sample_counts[] = {1, 7, 64, 100, 1001};
constexpr std::size_t batches[] = {1, 5, 32, 64, 2000};

TEST(Sampler, AnEpochHasEverySampleOnceInTheSameOrderForEveryNumberOfRanks) {
  for (const std::size_t samples : sample_counts)
    for (const std::size_t batch : batches) {
      const std::vector<std::uint32_t> alone = epoch_of(samples, batch, 1, Remainder::smaller);
      std::vector<std::uint32_t> all(samples);
      std::iota(all.begin(), all.end(), 0);
      EXPECT_TRUE(std::ranges::is_permutation(alone, all));
      for (int size = 2; size <= 8; ++size)
        EXPECT_EQ(epoch_of(samples, batch, size, Remainder::smaller), alone)
            << samples << " in batches of " << batch << " on " << size;
    }
}

TEST(Sampler, DropLeavesOutTheLastOfTheOrder) {
  for (const std::size_t samples : sample_counts)
    for (const std::size_t batch : batches) {
      if (samples < batch) {
        EXPECT_THROW(epoch_of(samples, batch, 1, Remainder::drop), std::logic_error);
        continue;
      }
      std::vector<std::uint32_t> expected = epoch_of(samples, batch, 1, Remainder::smaller);
      expected.resize(samples - samples % batch);
      for (int size = 1; size <= 8; ++size)
        EXPECT_EQ(epoch_of(samples, batch, size, Remainder::drop), expected)
            << samples << " in batches of " << batch << " on " << size;
    }
}

TEST(Sampler, TheRanksShareABatchEvenly) {
  for (const std::size_t batch : {1u, 49u, 50u})
    for (int size = 1; size <= 7; ++size) {
      std::size_t least = 1000, most = 0, sum = 0;
      for (int rank = 0; rank < size; ++rank) {
        const std::size_t part = DistributedSampler(batch, 50, rank, size, 9).local_batch(0).size();
        least = std::min(least, part);
        most = std::max(most, part);
        sum += part;
      }
      EXPECT_LE(most - least, 1u);
      EXPECT_EQ(sum, batch);
    }
  DistributedSampler sampler(1001, 50, 0, 7, 9);
  EXPECT_EQ(sampler.steps(), 21u);
  EXPECT_EQ(sampler.global_batch(20).size(), 1u) << "the last batch is uneven: 6 of 7 ranks get none of it";
  EXPECT_EQ(sampler.local_batch(20).size(), 0u);
  EXPECT_THROW(sampler.local_batch(0), std::logic_error) << "another epoch, without set_epoch()";
  sampler.set_epoch(1);
  EXPECT_NO_THROW(sampler.local_batch(0));
}

}  // namespace sampler_test
