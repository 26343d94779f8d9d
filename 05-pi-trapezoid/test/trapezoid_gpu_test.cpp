// The GPU gives the CPU's bits.
#include "recorded.hpp"
#include "trapezoid_cuda.hpp"

#include <multinode/device.hpp>

#include <gtest/gtest.h>

#include <vector>

namespace {

using namespace trapezoid;

class Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (multinode::device_count() == 0) GTEST_SKIP() << "there is no GPU here";
  }
};

TEST_F(Gpu, GivesTheRecordedBits) {
  for (const auto& [n, answer, hash] : recorded) {
    std::vector<double> sums(static_cast<std::size_t>(block_count(n)));
    sum_blocks_on_gpu(n, {0, block_count(n)}, sums);
    EXPECT_EQ(integral(n, sums), answer) << "n = " << n;
    EXPECT_EQ(hash_of_bits(sums), hash) << "n = " << n;
  }
}

TEST_F(Gpu, GivesEveryBlockTheCpusBits) {
  for (const std::int64_t n : {1LL, 2LL, 513LL, 65'537LL, 300'000LL, 100'000'000LL}) {
    const Range part = share(block_count(n), 1, 3);  // not from the first block on
    std::vector<double> cpu(static_cast<std::size_t>(part.size())), gpu(cpu);
    sum_blocks(n, part, cpu, available_isas().back());
    sum_blocks_on_gpu(n, part, gpu);
    EXPECT_EQ(gpu, cpu) << "n = " << n;
  }
}

}  // namespace
