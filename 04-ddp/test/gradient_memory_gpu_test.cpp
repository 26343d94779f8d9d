// What the reducer does to gradients in a GPU's memory. Skipped where there is none.
#include "ddp/gradient_memory_gpu.hpp"

#include <multinode/device.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>
#include <random>
#include <vector>

namespace gradient_memory_gpu_test {

template <class T>
class GradientMemoryGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (multinode::device_count() == 0) GTEST_SKIP() << "no GPU can be used here";
    const std::uint32_t seed = std::random_device()();
    std::cout << "seed " << seed << std::endl;
    random_.seed(seed);
  }
  std::vector<T> numbers(std::size_t count) {
    std::vector<T> all(count);
    for (T& one : all) one = std::uniform_real_distribution<T>(-2, 2)(random_);
    return all;
  }
  std::mt19937 random_;
};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(GradientMemoryGpu, Types);

TYPED_TEST(GradientMemoryGpu, ScalesThoseElementsAlone) {
  using T = TypeParam;
  multinode::Stream stream;
  ddp::GradientMemoryGpu<T> memory(stream.get());
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{257}, 1001 + this->random_() % 100'000}) {
    const std::vector<T> before = this->numbers(count + 13);
    multinode::DeviceBuffer<T> device(before.size());
    device.copy_from(before, stream.get());
    memory.scale(device.span().subspan(5, count), T(0.3));
    std::vector<T> after(before.size(), std::numeric_limits<T>::quiet_NaN());
    device.copy_to(after, stream.get());
    stream.synchronize();
    for (std::size_t i = 0; i < before.size(); ++i) {
      const bool scaled = i >= 5 && i < 5 + count;
      const double wanted = scaled ? double{before[i]} * double{T(0.3)} : double{before[i]};
      ASSERT_LE(std::abs(after[i] - wanted), scaled ? std::numeric_limits<T>::epsilon() : 0) << i << " of " << count;
    }
  }
}

TYPED_TEST(GradientMemoryGpu, MovesPieces) {
  using T = TypeParam;
  using Move = typename ddp::GradientMemory<T>::Move;
  multinode::Stream stream;
  ddp::GradientMemoryGpu<T> memory(stream.get());
  std::vector<std::size_t> counts(7);
  for (std::size_t& count : counts) count = 1 + this->random_() % 5000;
  std::vector<Move> moves;
  std::size_t all = 0;
  for (const std::size_t count : counts) {
    moves.push_back({all, 0, count});
    all += count;
  }
  std::shuffle(moves.begin(), moves.end(), this->random_);
  std::size_t at = 0;
  for (Move& move : moves) {
    move.to = at;
    at += move.count;
  }
  const std::vector<T> before = this->numbers(all);
  multinode::DeviceBuffer<T> device(all);
  device.copy_from(before, stream.get());
  memory.move(device.span(), moves);
  std::vector<T> after(all, std::numeric_limits<T>::quiet_NaN());
  device.copy_to(after, stream.get());
  stream.synchronize();
  for (const Move& move : moves)
    for (std::size_t i = 0; i < move.count; ++i) ASSERT_EQ(after[move.to + i], before[move.from + i]);
}

}  // namespace gradient_memory_gpu_test
