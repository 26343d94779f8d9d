// The GPU gives the CPU's bits.
#include "trapezoid_cuda.hpp"

#include <multinode/communicator/device.hpp>

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

namespace {

using namespace trapezoid;

class Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (multinode::device_count() == 0) GTEST_SKIP() << "there is no GPU here";
  }
};

TEST_F(Gpu, GivesEveryBlockTheCpusBits) {
  std::mt19937 random(std::random_device{}());
  std::vector<std::int64_t> all{1, 2, 513, 65'537, 300'000, 100'000'000};
  for (int i = 0; i < 6; ++i) all.push_back(1 + static_cast<std::int64_t>(random() % 30'000'000));
  for (const std::int64_t n : all) {
    const Range part = share(block_count(n), 1, 3);  // not from the first block on
    std::vector<double> cpu(static_cast<std::size_t>(part.size()));
    std::vector<double> gpu(cpu.size(), std::numeric_limits<double>::quiet_NaN());
    sum_blocks(n, part, cpu, available_isas().back());
    SumsOnGpu(part.size()).sum_blocks(n, part, gpu);
    EXPECT_EQ(gpu, cpu) << "n = " << n;
  }
}

}  // namespace
